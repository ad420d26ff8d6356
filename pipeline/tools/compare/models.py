"""Finds the models that a user names for a comparison, what is recorded about them, and earlier prepared data in DVC's cache."""

import csv
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files, untrusted
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import PreparedRecord
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.section import flatten, formatted
from pipeline.core.spec import MOST_BYTES
from pipeline.core.untrusted import reason, shown
from pipeline.core.yaml_document import parse
from pipeline.evaluate.reports import recorded
from pipeline.inference import model_file, tensor_file
from pipeline.inference.model_file import Manifest
from pipeline.inference.tensor_file import Tensors
from pipeline.runs import find, run_description
from pipeline.runs.mlflow.store import Store
from pipeline.runs.record import EVALUATE, TRAIN, Record, run_of_model

if TYPE_CHECKING:
    from dvc.api import DVCFileSystem
    from mlflow.entities import Run

SCORED = (f"{TEST}/", f"{VALID}/")


@dataclass(frozen=True)
class Facts:
    """The facts about a training that its run or a git revision records outside of the model file. Unknown facts are missing.

    `origin` names the run or revision, such as "run run-000001-...". `params` has the parameters of the sections `source` and `evaluate` by dotted
    key, `provenance` the facts of `provenance.facts`, `splits` the digest of each split, and `metrics` the metrics of the exported weights.
    """

    origin: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparedModel:
    """A model to compare. `name` is the user's name for it, `digest` the SHA-256 of the model file, and `manifest` the file's metadata.

    `weights` are the tensors of the file, and `facts` what is recorded outside of it. The tensors are mapped from the file, so the system can
    drop them from memory at any time: the weights of many models take no more memory than there is to spare.
    """

    name: str
    digest: str
    manifest: Manifest
    weights: Tensors
    facts: Facts
    run: Record | None = None
    """The named run, or the newest one in this checkout with the same model file; None if there is none."""


def read(name: str, paths: Paths, environment: Environment) -> ComparedModel:
    """Return the model that `name` denotes: a model file, a run, a model in MLflow, a DVC experiment or a git revision.

    Its facts come from the run that `name` denotes, or else from the newest run in this checkout that has the same model file. If there is
    none, the facts of a name in MLflow come from MLflow, and those of a path from `metrics/evaluate.json` if it has the scores of this file.
    Nothing in the checkout is written. Raises Refusal if there is nothing with this name, or if its model file is missing or damaged.
    """
    with find.located(name, paths, environment) as found:
        model = parsed(name, found.path)
        run = found.run or run_of_model(environment.root, model.digest)
        facts = of_run(run, model.manifest.step) if run else None
        if found.commit:
            facts = of_revision(name, found.commit, paths.top, model.digest, facts or Facts())
        elif facts is None:
            facts = of_results(found.path, paths) if found.is_file else of_mlflow(name, environment, model.manifest.step)
        return replace(model, facts=facts, run=run)


def have_same(split: str, first: ComparedModel, other: ComparedModel) -> bool:
    """Return True if both models were trained on the same data, or their runs recorded the same split. Without tracking, there is no record."""
    known = ((each.manifest.inputs.get("data"), each.facts.splits.get(split)) for each in (first, other))
    return any(one is not None and one == two for one, two in zip(*known, strict=True))


def parsed(name: str, path: Path) -> ComparedModel:
    """Return the model in the file `path`, without facts. `name` is the user's name for it. The network is not built.

    Raises Refusal if the file is not a model file, or is damaged.
    """
    weights, metadata = tensor_file.load(path, header_bytes=model_file.HEADER_BYTES)
    with model_file.refusing(path):
        manifest = Manifest.model_validate(metadata)
    return ComparedModel(name, files.digest(path), manifest, weights, Facts())


def of_results(model: Path, paths: Paths) -> Facts:
    """Return the scores in `metrics/evaluate.json` if they belong to the file `model`; otherwise return empty Facts."""
    try:
        return Facts(metrics=run_description.test_metrics(recorded.scores(paths.metrics / "evaluate.json", model)))
    except Refusal:
        return Facts()


def of_run(run: Record, step: int) -> Facts:
    """Return what `run` recorded. The metrics are those at `step`, the training step of the exported weights."""
    params, splits = dict[str, str](), dict[str, str]()
    for fields in run.begun:
        params |= section_of(fields["params"], "source") if fields["stage"] != EVALUATE else {}
        params |= section_of(fields["tags"], EVALUATE)
        splits |= {split_named(each["name"]): each["digest"] for each in fields.get("datasets", [])}
    return Facts(f"run {run.name}", params, texts(run.provenance), splits, run.metrics(*SCORED, step=step))


def of_mlflow(name: str, environment: Environment, step: int) -> Facts:
    """Return what the run of a model in MLflow recorded. The metrics of the validation are those at `step`, the training step of the
    exported weights. Raises Refusal if MLflow does not answer.
    """
    store = Store(environment)
    with store.refusing(name, "could not read its run from MLflow", ": check MLFLOW_TRACKING_URI"), redirect_stdout(sys.stderr):
        run = store.client.get_run(str(find.find_logged(name, store).source_run_id))
        with tempfile.TemporaryDirectory() as folder:
            provenance = read_provenance(store, run, folder)
        metrics = {metric: value for metric, value in run.data.metrics.items() if metric.startswith(f"{TEST}/")}
        names = [name for name in run.data.metrics if name.startswith(f"{VALID}/")]  # with their last values
        points = [point for name in names for point in store.client.get_metric_history(run.info.run_id, name)]
    metrics |= {point.key: point.value for point in points if point.step == step}
    inputs = run.inputs.dataset_inputs if run.inputs else []
    splits = {split_named(each.dataset.name): json.loads(each.dataset.profile or "{}").get("digest", "") for each in inputs}
    params = section_of(run.data.params, "source") | section_of(run.data.tags, EVALUATE)
    return Facts(f"run {run.info.run_name} in MLflow", params, provenance, splits, metrics)


def read_provenance(store: Store, run: "Run", folder: str) -> dict[str, str]:
    """Return the provenance that the stage `train` logged to `run`; {} if there is none. The file is downloaded to `folder`."""
    if "train.json" not in {Path(each.path).name for each in store.client.list_artifacts(run.info.run_id, "provenance")}:
        return {}
    path = Path(store.client.download_artifacts(run.info.run_id, "provenance/train.json", folder))
    return texts(json.loads(path.read_bytes()))


def texts(provenance: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in provenance.items() if isinstance(value, str)}


def section_of(params: Mapping[str, Any], section: str) -> dict[str, str]:
    return {key: formatted(value) for key, value in params.items() if key.startswith(f"{section}.")}


def split_named(dataset: str) -> str:
    """Return the split in the name of a dataset, such as "test" of "digits test"."""
    return dataset.rpartition(" ")[2]


def of_revision(name: str, commit: str, top: Path, digest: str, run: Facts) -> Facts:
    """Return what a git revision records about its model, whose file has the SHA-256 `digest`.

    The properties of the machine are those of `run`, the facts of a run here with the same model file. Raises Refusal if the revision has no
    valid params.yaml.
    """
    from dvc.api import DVCFileSystem

    tree, paths = DVCFileSystem(str(top), rev=commit), Paths()
    try:
        document, _ = parse(tree.read_text(paths.params.as_posix()))
    except Exception as error:  # git and DVC raise their own types
        raise Refusal(f"{shown(name)}: could not read {paths.params} of this revision ({reason(error)}): give another one") from None
    return Facts(
        origin=f"revision {commit[:12]}",
        params=section_of(flatten(document), "source") | section_of(flatten(document), EVALUATE),
        provenance={**run.provenance, "git.commit": commit, "git.difference": "none"},
        splits={**run.splits, **revision_splits(tree, paths)},
        metrics={**run.metrics, **revision_metrics(tree, paths, digest)},
    )


def revision_splits(tree: "DVCFileSystem", paths: Paths) -> dict[str, str]:
    """Return the digests of the prepared splits of a revision; {} if its record cannot be read, or has another format."""
    try:
        return split_digests(PreparedRecord.model_validate(read_json(tree, paths.prepared / "spec.json"), strict=False))
    except ValueError:
        return {}


def revision_metrics(tree: "DVCFileSystem", paths: Paths, digest: str) -> dict[str, float]:
    """Return the metrics of the model file with the SHA-256 `digest`; {} if the revision has those of another file.

    A commit made by hand can combine a model file with the metrics of another.
    """
    evaluated, trained = (read_json(tree, paths.metrics / f"{stage}.json") for stage in (EVALUATE, TRAIN))
    if evaluated.get(recorded.MODEL) != digest[: recorded.DIGITS]:
        return {}
    history = csv.DictReader(read_text(tree, paths.history).splitlines())
    return run_description.test_metrics(evaluated["test"]) | recorded.metrics_at(trained.get("exported_step", 0), history, VALID)


def read_json(tree: "DVCFileSystem", path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of the revision; {} if the file is missing or damaged, or is in no cache and no remote."""
    try:
        return dict(json.loads(read_text(tree, path)))
    except (ValueError, TypeError):
        return {}


def read_text(tree: "DVCFileSystem", path: Path) -> str:
    """Return the content of a file of the revision; "" if the file is missing, or is in no cache and no remote."""
    try:
        return str(tree.read_text(path.as_posix()))
    except Exception:  # git, DVC and each kind of remote raise their own types
        return ""


MOST_FOLDER_BYTES = 1 << 16
"""Upper bound for DVC's list of the files of prepared data, which are about ten. The list of a large dataset is longer, and is not read."""


@contextmanager
def located_data(folder: Path, top: Path, fits: Callable[[PreparedRecord], bool]) -> Iterator[Path]:
    """Yield `folder`, the prepared data of the checkout `top`, if `fits` returns True for its record.

    Otherwise yield a temporary folder with links to the first data in DVC's cache for which it does, or `folder` if there is none. The
    contents are not verified; `Prepared.open` does this.
    """
    cache = None if fitting(folder / "spec.json", fits) else cache_folder(top)
    for listing in sorted(cache.glob("*/*.dir")) if cache else ():
        try:
            listed = {str(each["relpath"]): str(each["md5"]) for each in json.loads(untrusted.read(listing, MOST_FOLDER_BYTES))}
        except (OSError, ValueError, LookupError, TypeError):
            continue
        objects = {name: listing.parents[1] / md5[:2] / md5[2:] for name, md5 in listed.items() if Path(name).name == name}
        if "spec.json" in objects and fitting(objects["spec.json"], fits):
            with tempfile.TemporaryDirectory(prefix="prepared-") as links:
                for name, path in objects.items():
                    (Path(links) / name).symlink_to(path.absolute())
                yield Path(links)
            return
    yield folder


def fitting(path: Path, fits: Callable[[PreparedRecord], bool]) -> bool:
    """Return True if the file `path` is a record of prepared data that fits."""
    try:
        return fits(PreparedRecord.model_validate_json(untrusted.read_json(path, MOST_BYTES)))
    except (OSError, ValueError):
        return False


def cache_folder(top: Path) -> Path | None:
    """Return the folder in which DVC's cache has files by their MD5; None if the checkout `top` has no DVC."""
    from dvc.exceptions import DvcException  # late: DVC takes a second to import
    from dvc.repo import Repo

    try:
        with Repo(str(top)) as repo:
            return Path(repo.cache.local.path)
    except DvcException:
        return None


def split_digests(record: PreparedRecord) -> dict[str, str]:
    """Return the digest of each split of prepared data, as a run records it."""
    return {name: files.digest_of([split.inputs_digest, split.targets_digest]) for name, split in record.splits.items()}
