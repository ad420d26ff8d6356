"""Finds the model that a user names, for all commands: by its path, by the run that trained it, in MLflow, or in a git revision."""

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown
from pipeline.runs import journal
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.saved_model import find_model
from pipeline.runs.mlflow.store import MODEL_TAG, Store
from pipeline.runs.record import Record, runs_of

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

FEWEST_CHARACTERS = 4
"""The length of the shortest beginning or end of a journal's name that denotes the run."""
MOST_CANDIDATES = 5
"""The number of runs that the message about an ambiguous name lists at most."""


def unknown(name: str, root: Path) -> Refusal:
    """Return the refusal of a name that denotes no model: it names the newest runs.

    If `name` is too short, it says how long a part of a run's name must be.
    """
    named = shown(name) or '""'
    runs = runs_of(root)
    note = f" (a part of a run's name must have at least {FEWEST_CHARACTERS} characters)" if len(name) < FEWEST_CHARACTERS else ""
    known = (
        f"give another name; the newest runs are {newest(runs)}"
        if runs
        else f"there is no run in {journal.journals_folder(root)}: train a model, by `make repro`"
    )
    return Refusal(f"{named}: is no {KINDS} of this checkout{note}: {known}")


def newest(runs: Sequence[Record]) -> str:
    """Return the names of the newest runs for a message. The last of `runs` is the newest."""
    more = ", ..." if len(runs) > MOST_CANDIDATES else ""
    return ", ".join(run.name for run in runs[: -MOST_CANDIDATES - 1 : -1]) + more


def recorded_run(name: str, root: Path) -> Record | None:
    """Return the run in the checkout `root` that `name` denotes; None if there is none. Raises Refusal if several runs have the name.

    A run is denoted by the path or the name of its journal, by a unique beginning or end of this name of at least FEWEST_CHARACTERS
    characters, or by its run id in MLflow.
    """
    runs = runs_of(root)
    for run in runs:
        if name in {run.name, *run.run_ids.values()} or run.folder.resolve() == Path(name).resolve():
            return run
    if len(name) < FEWEST_CHARACTERS:
        return None
    matching = [run for run in runs if run.name.startswith(name) or run.name.endswith(name)]
    if len(matching) > 1:
        raise Refusal(f"{name}: is the beginning or end of the names of {len(matching)} runs ({newest(matching)}): write more of the name")
    return matching[0] if matching else None


REGISTERED = re.compile(r"models:/(?P<name>[^/@]+)(@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))?")
RUN_ID, MODEL_ID = re.compile("[0-9a-f]{32}"), re.compile("m-[0-9a-f]{32}")
FORMS = "models:/NAME@ALIAS, models:/NAME/VERSION or models:/MODEL_ID"


KINDS = "model file, run, model in MLflow, DVC experiment or git revision"


@dataclass(frozen=True)
class Found:
    """The model that a name denotes: the path of its file, and what the name is.

    `run` is set for a run that has a journal in this checkout, and `commit` for a DVC experiment or git revision. Neither is set for a
    model file, for which `is_file` is True, and for a name in MLflow.
    """

    path: Path
    run: Record | None = None
    commit: str | None = None
    is_file: bool = False


@contextlib.contextmanager
def located(name: str, paths: Paths, environment: Environment) -> Iterator[Found]:
    """Yield the model that `name` denotes. A file that was downloaded from MLflow, or read from git, is removed when the `with` block ends.

    `name` can be the path of a model file, a run with a journal in this checkout (see `recorded_run`), the id of any other run in MLflow,
    a model in MLflow, written as in `FORMS`, a DVC experiment or a git revision. The first of them counts. A name that ends in
    `.safetensors` is a model file, even if it does not exist. The model of a run is any file on this machine with the SHA-256 of the run's
    model, or else that in MLflow. Raises Refusal if nothing has this name, or if its model file can neither be found nor be downloaded.
    """
    if not name.strip():
        raise unknown(name, environment.root)
    is_registered = name.startswith("models:")
    if is_registered and not REGISTERED.fullmatch(name):
        raise Refusal(f"{shown(name)}: is not a model in MLflow: write {FORMS}")
    if not is_registered and (Path(name).is_file() or Path(name).suffix == paths.model.suffix):
        refuse_removed(Path(name), paths, environment.root)
        if Path(name) != paths.model and not Path(name).exists():
            raise Refusal(f"{shown(name)}: there is no such file: correct the path")
        yield Found(Path(name), is_file=True)
        return
    run = None if is_registered else recorded_run(name, environment.root)
    is_in_mlflow = is_registered or (RUN_ID.fullmatch(name) and not (run and run.digest))
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        if is_in_mlflow:
            yield Found(from_mlflow(name, paths, environment, Path(folder)))
        elif run:
            path = on_this_machine(run.model_digest, paths, environment.root)
            yield Found(path or from_mlflow(run_id_of(run, environment), paths, environment, Path(folder)), run)
        elif commit := resolved(name, paths.top):
            yield Found(of_revision(name, commit, paths.top, Path(folder)), commit=commit)
        else:
            raise unknown(name, environment.root)


def resolved(name: str, top: Path) -> str | None:
    """Return the commit of a git revision or DVC experiment; None if there is none of this name, or no git repository with DVC."""
    if find_spec("dvc") is None:
        return None
    from dvc.exceptions import DvcException  # late: DVC takes a second to import
    from dvc.repo import Repo
    from dvc.scm import NoSCMError, RevError, resolve_rev
    from scmrepo.exceptions import SCMError

    try:
        with Repo(str(top)) as repo:
            return str(resolve_rev(repo.scm, name))
    except (DvcException, NoSCMError, RevError, SCMError, AssertionError):  # DVC asserts that there is a git repository
        return None


def of_revision(name: str, commit: str, top: Path, folder: Path) -> Path:
    """Copy the model file that `dvc.lock` of a git revision names from DVC's cache or remote to `folder`, and return its path."""
    from dvc.api import DVCFileSystem

    tree, paths = DVCFileSystem(str(top), rev=commit), Paths()
    if not tree.exists(paths.dvc_lock.as_posix()):
        raise Refusal(f"{shown(name)}: this revision has no dvc.lock, so it names no model: run `dvc repro`, and commit dvc.lock")
    copy = folder / paths.model.name
    try:
        tree.get_file(paths.model.as_posix(), str(copy))
    except Exception as error:  # git, DVC and each kind of remote raise their own types
        raise Refusal(
            f"{shown(name)}: could not read the model of this revision ({reason(error)}): run `dvc pull {paths.model}` in a clone of it, or "
            "`dvc repro` if no remote has it"
        ) from None
    return copy


def run_id_of(found: Record, environment: Environment) -> str:
    """Return the id of the run `found` in the configured MLflow store, or else in another one to which it was sent.

    Raises Refusal if `delivered.json` of its journal has no id, because the run was never sent to MLflow.
    """
    if ids := found.run_ids:
        return ids.get(Address.of(environment).key) or next(iter(ids.values()))
    raise Refusal(
        f"{found.name}: the model of this run is neither on this machine nor in MLflow: run `dvc repro` with the run's parameters, which "
        "restores the model from DVC's cache if it is there"
    )


def refuse_removed(path: Path, paths: Paths, root: Path) -> None:
    """Raise Refusal if `path` is the checkout's model file, and DVC has removed it: it does so when it starts the stage `train`."""
    finished = [run.name for run in runs_of(root) if run.digest]
    if path == paths.model and not path.exists() and finished:
        raise Refusal(
            f"{path}: is missing: DVC removes it until the training of a `dvc repro` has ended: name a finished run, such as {finished[-1]}, "
            "or run `dvc repro` if none runs"
        )


def on_this_machine(digest: str, paths: Paths, root: Path) -> Path | None:
    """Return the path of a file with the SHA-256 `digest`; None if there is none. Only the model files of this checkout and of its journals
    are searched.
    """
    copies = [run.folder / journal.MODEL for run in runs_of(root)]
    return next((path for path in (paths.model, *copies) if path.is_file() and files.digest(path) == digest), None)


def from_mlflow(name: str, paths: Paths, environment: Environment, folder: Path) -> Path:
    """Return the path of the model file that belongs to a logged model of MLflow.

    If this machine has a file with the same SHA-256, return that file. Otherwise download the file to `folder`. `name` is the id of a run,
    or a model in MLflow, written as in `FORMS`, such as `models:/NAME/VERSION`. Raises Refusal if MLflow is not installed or cannot be
    reached, if it has no such model, or if the download fails.
    """
    refuse_missing_store(name, environment)
    store, remedy = Store(environment), ": check the name and MLFLOW_TRACKING_URI, or give a model file"
    # stdout is for predictions
    with store.refusing(name, "could not get this model from MLflow", remedy), contextlib.redirect_stdout(sys.stderr):
        model = find_logged(name, store)
        return on_this_machine(model.tags[MODEL_TAG], paths, environment.root) or download(name, model, store, folder)


def refuse_missing_store(name: str, environment: Environment) -> None:
    """Raise Refusal if MLflow is not installed, or if there is no store to look up `name` in: MLflow would create an empty one."""
    if find_spec("mlflow") is None:
        raise Refusal(f"{shown(name)}: needs MLflow, which is not installed here: install MLflow, or give a model file")
    if environment.mlflow_tracking_uri is None and not (environment.root / "mlflow.db").exists():  # else MLflow would create a store
        raise Refusal(f"{shown(name)}: there is no MLflow store in {environment.root}: set MLFLOW_TRACKING_URI, or give a model file")


def find_logged(name: str, store: Store) -> "LoggedModel":
    """Return the logged model that `name` denotes: the id of a run, or a model in MLflow, written as in `FORMS`.

    Raises Refusal if there is no logged model for `name`, or if another program logged it. Passes on MLflow's exceptions.
    """
    match = REGISTERED.fullmatch(name)
    if match is None:
        run = store.client.get_run(name)
        if model := find_model(store.client, run, run.data.tags.get(MODEL_TAG)):
            return model
        raise Refusal(
            f"{name}: this run has no model in MLflow, because its training did not finish or its model was not sent: finish the training, "
            "or run `python -m pipeline sync` where it ran"
        )
    model_id = match["name"]
    if match["alias"] or match["version"]:
        store.refuse_other_registry()
        if match["alias"]:
            version = store.client.get_model_version_by_alias(model_id, match["alias"])
        else:
            version = store.client.get_model_version(model_id, match["version"])
        # A database store returns no `model_id`; the source is the address of the logged model or its folder, and both contain the id.
        logged = MODEL_ID.search(version.model_id or version.source or "")
        if not logged:
            raise Refusal(
                f"{shown(name)}: this version in the model registry does not come from a model that this pipeline logged: give a model file"
            )
        model_id = logged[0]
    model = store.client.get_logged_model(model_id)
    if MODEL_TAG not in model.tags:
        raise Refusal(f"{shown(name)}: was not logged by this pipeline: give a model file")
    return model


def download(name: str, model: "LoggedModel", store: Store, folder: Path) -> Path:
    """Download the model file of the logged model `model` to `folder`, and return its path.

    Raises Refusal if the download fails, or if the file does not have the recorded SHA-256. The message names the model by `name`.
    """
    from mlflow import artifacts

    digest, uri = model.tags[MODEL_TAG], f"{model.artifact_location}/artifacts/{journal.MODEL}"
    remedy = f". A model that was logged by an older version of this pipeline lacks this file: give a model file with the SHA-256 {digest}"
    with store.refusing(name, f"could not download {journal.MODEL} from MLflow", remedy):
        path = Path(artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder), tracking_uri=store.address.for_mlflow))
    if files.digest(path) != digest:
        raise Refusal(
            f"{shown(name)}: the file in MLflow is damaged, because its SHA-256 is not {digest}: give a model file with this SHA-256"
        )
    return path
