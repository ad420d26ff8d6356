"""Selects what tracking records of the run of a stage: metadata, files and metrics."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import section_types
from pipeline.core.prepared import PreparedRecord, read_record, shared_samples
from pipeline.core.raw_dataset import TRAIN, VALID
from pipeline.core.refusal import rounded
from pipeline.core.registry import SOURCES, USUAL_TASK
from pipeline.core.section import Scalar, flatten, formatted
from pipeline.core.spec import Direction
from pipeline.core.yaml_document import parse
from pipeline.evaluate.reports import recorded
from pipeline.prepare.params import PrepareParams, data_name
from pipeline.runs import provenance
from pipeline.runs import run as tracking
from pipeline.runs.journal import DIRECTION_TAG, EXPORTED, SECTIONS, SHARED_TAG, Dataset, RunInfo, architecture
from pipeline.runs.run import Run
from pipeline.train.params import TrainParams

if TYPE_CHECKING:
    from pipeline.inference.model_file import Manifest

SOURCE = {"mlflow.source.name": "python -m pipeline", "mlflow.source.type": "LOCAL"}
PARAMS = PrepareParams.model_fields | TrainParams.model_fields
CONTEXTS = {"train": "training", "valid": "validation", "test": "test"}
SHORT = {"learning_rate": "lr", "batch_size": "batch", "weight_decay": "wd"}
MOST_CHANGES = 4
LONGEST_EXPERIMENT = 200
DESCRIBED = ("loss", "objective", "perplexity", "accuracy")
MOST_LISTED = 100
"""Longer lists in the description of a dataset are replaced by their length: MLflow sends all descriptions to its table of runs."""
LONGEST_VALUE = 24


def of_training(
    document: Mapping[str, Any], paths: Paths, environment: Environment, more: Mapping[str, Any], *, direction: Direction
) -> RunInfo:
    """Return the metadata of a training run.

    `document` is the content of params.yaml. `more` has further entries for the provenance, which otherwise has facts about code, libraries
    and machine. `direction` is that of `train.metric`.
    """
    info = of_evaluation(document, paths, environment, ("train", "valid"))
    context = dict(environment.mlflow_run_context or {})
    name = context.pop("mlflow.runName", None) or info.name
    return replace(
        info,
        tags={**SOURCE, **provenance.tags(info.provenance), **info.tags, DIRECTION_TAG: direction, **context},
        provenance={**info.provenance, **more},
        description=f"in training, {info.subject}",
        name=name,
    )


def of_evaluation(document: Mapping[str, Any], paths: Paths, environment: Environment, splits: Sequence[str] = ("test",)) -> RunInfo:
    """Return the metadata of an evaluation, with a dataset for each of `splits` that was prepared. Tracking adds it to the run that trained the
    model.

    If tracking does not find that run, it creates a run with this metadata; only then are `name` and `description` used.
    """
    record = read_record(paths.prepared)
    # a model can be evaluated again with other settings, and MLflow can change tags but not params
    settings = {name: formatted(value) for name, value in flatten({"evaluate": document.get("evaluate", {})}).items()}
    return RunInfo(
        params=params_of(document),
        tags={**settings, SHARED_TAG: "; ".join(shared_samples(record.splits)) or "none"},
        provenance=provenance.gather(environment),
        datasets=[dataset_of(document, record, split) for split in splits if split in record.splits],
        subject=subject(document),
        description=f"{subject(document)}; trained elsewhere",
        name=name_of(document, paths, environment),
        experiment=experiment(document),
    )


def experiment(document: Mapping[str, Any]) -> str:
    """Return the MLflow experiment of runs for which the user chooses none: the name of the data, with the task if it is not classification.

    Other data or another task are another experiment, because their results cannot be compared.
    """
    params = params_of(document)
    task = SOURCES.settings(str(params["source.name"])).task_of(document["source"])
    return data_name(params)[:LONGEST_EXPERIMENT] + ("" if task == USUAL_TASK else f" {task}")


def dataset_of(document: Mapping[str, Any], prepared: PreparedRecord, split: str) -> Dataset:
    """Return a split for MLflow. Its digest covers the inputs and the targets."""
    record = prepared.splits[split]
    return Dataset(
        name=f"{data_name(params_of(document))} {split}",
        digest=files.digest_of([record.inputs_digest, record.targets_digest]),
        context=CONTEXTS[split],
        profile={**summarized(prepared.spec.model_dump(mode="json")), "samples": record.samples, "also_in": record.also_in},
    )


def summarized(value: Any) -> Any:
    """Return JSON data with the number of entries in place of each list of more than MOST_LISTED, such as a vocabulary."""
    if isinstance(value, Mapping):
        return {name: summarized(each) for name, each in value.items()}
    return f"{len(value)} entries" if isinstance(value, list | tuple) and len(value) > MOST_LISTED else value


def params_of(document: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the parameters of the stages prepare and train, by dotted key."""
    return flatten({name: document[name] for name in PARAMS if name in document})


def subject(document: Mapping[str, Any]) -> str:
    """Return architecture and dataset of a run, such as "convnet on digits"."""
    params = params_of(document)
    return f"{architecture(params)} on {data_name(params)}"


def name_of(document: Mapping[str, Any], paths: Paths, environment: Environment) -> str:
    """Return the run's name: architecture, dataset and the changed parameters, such as "convnet-digits width=32 lr=5e-3".

    The parameters are those that differ from the last commit's params.yaml; none if git cannot read that file. At most `MOST_CHANGES` are
    listed; `+3` means that three more have changed. If there is a DVC experiment, its name follows in brackets.
    """
    try:
        changes = changes_since(parse(provenance.git("show", f"HEAD:./{paths.params.as_posix()}"))[0], document)
    except Exception:  # a run without changes in its name is better than a failure
        changes = []
    more = [f"+{len(changes) - MOST_CHANGES}"] if len(changes) > MOST_CHANGES else []
    experiment = [f"[{environment.dvc_experiment}]"] if environment.dvc_experiment else []
    return " ".join([subject(document).replace(" on ", "-"), *changes[:MOST_CHANGES], *more, *experiment])


def changes_since(origin: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """Return `key=value` for each parameter of `document` that differs from `origin`, in the order of `SECTIONS`.

    A section whose `name` differs, such as another model, is compared with the values that `python -m pipeline set model=NAME` writes. A
    section that is null in only one of the two is one change, such as `augment=on`. The parameters in the subject of the run are left out, because its name begins with them.
    """
    params, before = params_of(document), params_of({section: reference(section, origin, document) for section in PARAMS})
    named = {("model.name", params["model.name"]), ("source.name", params["source.name"])}
    named |= {(name, architecture(params)) for name in params if name.startswith("model.")}
    if data_name(params) != params["source.name"]:
        named.add(("source.root", params["source.root"]))
    begun = [name for name, value in before.items() if name in PARAMS and value is None and isinstance(document.get(name), Mapping)]
    params = {name: value for name, value in params.items() if name.partition(".")[0] not in begun} | dict.fromkeys(begun, "on")
    changed = [name for name, value in params.items() if (name, value) not in named and (name not in before or before[name] != value)]
    changed.sort(key=lambda name: SECTIONS.index(name.partition(".")[0]))
    keys = short_keys(changed)
    return [f"{keys[name]}={short(params[name])}" for name in changed]


def reference(section: str, origin: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """Return the values with which a section of `document` is compared: those of `origin`, or the recommended ones of another `name`."""
    before, present, types = origin.get(section), document[section], section_types(section, PARAMS[section])
    if types is None or (isinstance(before, Mapping) and before.get("name") == present["name"]):
        return before
    settings: Any = types.settings(present["name"])
    return settings.recommended(name=present["name"], task=SOURCES.settings(document["source"]["name"]).task_of(document["source"]))


def short_keys(names: Sequence[str]) -> dict[str, str]:
    """Return a short name for each dotted key: its last part, abbreviated, or the whole key if two have the same last part.

    The short name of `optimizer.name` is `optimizer`.
    """
    last = [name.removesuffix(".name").rpartition(".")[2] for name in names]
    taken = [*last, *({"seed"} - {*names})]  # `source.seed` is not `seed`
    return {name: SHORT.get(part, part) if taken.count(part) == 1 else name for name, part in zip(names, last, strict=True)}


def short(value: Scalar) -> str:
    """Return the value of a parameter as a text for the name of a run.

    A float has its shortest form, such as `5e-3`. Any other value is written as in params.yaml, cut to `LONGEST_VALUE` characters.
    """
    if not isinstance(value, float):
        return textwrap.shorten(formatted(value), LONGEST_VALUE, placeholder="...")
    plain, (mantissa, _, exponent) = f"{value:g}", f"{value:e}".partition("e")
    scientific = f"{float(mantissa):g}e{int(exponent)}" if exponent else plain
    return min(plain, scientific, key=len)


def add_training(run: Run, paths: Paths, info: RunInfo) -> None:
    """Log the files and the model of a finished training to `run`.

    Then log the metrics of the exported weights once more, with names that begin with `EXPORTED`, and set the description to them: those of
    the validation, or of train if it has none. The description ends with the `subject` of `info`.
    """
    for path in (paths.params, paths.lock, paths.dvc_lock):
        if path.exists():
            run.artifact(path)
    run.artifact(paths.history, folder="plots/train")
    trained = json.loads((paths.metrics / "train.json").read_bytes())
    step, split = trained["exported_step"], VALID if VALID in trained else TRAIN
    values = trained.get(split, {})
    run.metrics(step, {f"{EXPORTED}{split}/{name}": value for name, value in values.items()})
    scores = ", ".join(f"{name} {rounded(value)}" for name, value in values.items() if name in DESCRIBED)
    of = f" of {trained['steps']}" if step != trained["steps"] else ""
    early = f"; ended early, after step {trained['ended_at']}, by a non-finite value" if "ended_at" in trained else ""
    run.describe(f"{split} {scores} at step {step}{of}{early}; {info.subject}")
    run.model(paths.model)


def record_evaluation(
    document: Mapping[str, Any], paths: Paths, environment: Environment, *, manifest: "Manifest", scores: Mapping[str, Any]
) -> None:
    """Add the evaluation of the model file to the run that trained the model, or to a new run if this checkout has no journal of that run.

    A new run gets the files and metrics of the training, too, if DVC has restored the training from its cache (see `restored_training`).
    """
    if not environment.tracking:
        return
    info = of_evaluation(document, paths, environment)
    trained = restored_training(document, paths, environment, manifest)
    if trained:
        inputs = {**manifest.inputs, "fingerprint": manifest.fingerprint}
        info = replace(info, provenance={**info.provenance, "inputs": inputs, "restored": "by DVC; trained elsewhere or earlier"})
    with tracking.addition(environment, paths.model, info=info) as run:
        if trained:
            run.metrics(manifest.step, recorded.metrics_at(manifest.step, recorded.read_table(paths.history, TRAIN), TRAIN, VALID))
            add_training(run, paths, info)
        add_evaluation(run, paths, info, step=manifest.step, scores=scores)


def restored_training(document: Mapping[str, Any], paths: Paths, environment: Environment, manifest: "Manifest") -> dict[str, Any] | None:
    """Return the content of `metrics/train.json` if DVC has restored the training of the model; None if a run of this checkout has trained it.

    The files of the training are those of the model if its parameters are in `document`, the content of params.yaml, and its step in
    `metrics/train.json`; otherwise, return None. Return None if PIPELINE_TRACKING_MODEL is false, because a run is then not known by its model.
    """
    if not environment.tracking_model or tracking.journal_of(environment, paths.model):
        return None
    of_checkout = flatten(manifest.params).items() <= flatten(document).items()
    return recorded.trained(paths.metrics / "train.json", manifest.step) if of_checkout else None


def add_evaluation(run: Run, paths: Paths, info: RunInfo, *, step: int, scores: Mapping[str, Any]) -> None:
    """Log the scores, tables and figures of an evaluation to `run`, and set the description of the run to the main scores.

    The description ends with the `subject` of `info`. The scores are logged at `step`, the training step of the evaluated weights.
    """
    run.metrics(step, test_metrics(scores))
    run.describe(f"{recorded.result_line(scores)}; {info.subject}")
    for path in files.members(paths.evaluation_plots):
        run.artifact(path, folder="plots/evaluate")
    if parts := recorded.parts(scores):
        run.text(f"{parts}.csv", class_scores(scores[parts], recorded.PARTS[parts]), folder="tables")
    if paths.dvc_lock.exists():
        run.artifact(paths.dvc_lock)


def test_metrics(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores as metrics named `test/NAME`. The scores of single classes are left out.

    With many classes, they would make the other metrics hard to find in MLflow.
    """
    overall = {name: value for name, value in scores.items() if name not in (*recorded.PARTS, recorded.POSITIVE)}
    return {name: float(str(value)) for name, value in flatten({"test": overall}, "/").items()}


def class_scores(per_class: Mapping[str, Mapping[str, Any]], part: str = "class") -> str:
    """Return the scores per class as CSV, with a header and one row per class. `part` is the name of the first column."""
    return files.as_csv([part, *next(iter(per_class.values()))], [(name, *scores.values()) for name, scores in per_class.items()])
