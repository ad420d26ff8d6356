"""An MLflow server or database: the client for it, and the experiment and the run of a journal. `run_description.experiment` names the experiment.

The SQLite file of a store is created whole, or not at all.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown
from pipeline.runs.mlflow.address import Address

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Answer = TypeVar("Answer")
JOURNAL_TAG = "pipeline.journal"
PARENT_TAG = "pipeline.parent"
"""The name of the journal of the parent run, such as that of a search."""
MODEL_TAG = "pipeline.model_sha256"
NOTE_TAG, DESCRIBED_TAG = "mlflow.note.content", "pipeline.description_sha256"
MISSING = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}
"""MLflow's answers for something that it does not have; some stores answer INVALID_PARAMETER_VALUE for an unknown or impossible id."""
UNNAMED = "pipeline"
"""The experiment of runs that name none."""
LONGEST_NAME, LONGEST_FOLDER = 250, 100
RELOCATIONS = [
    f"UPDATE {table} SET {column} = :now || substr({column}, length(:before) + 1) WHERE instr({column}, :before || '/') = 1"  # noqa: S608  # two constants
    for table, column in (
        ("experiments", "artifact_location"),
        ("runs", "artifact_uri"),
        ("logged_models", "artifact_location"),
        ("model_versions", "storage_location"),
    )
]
"""SQL that replaces the folder `:before` in the addresses of artifacts by `:now`."""
# No retries by MLflow: the mirror retries and resumes by itself, and MLflow's retries would block it for minutes.
QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "PGCONNECT_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_PRINT_MODEL_URLS_ON_CREATION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Store:
    """The MLflow server or database to which runs are sent. `Address.of(environment)` is its address."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.address = Address.of(environment)

    @cached_property
    def client(self) -> "MlflowClient":
        """Return MLflow's client. Raises Refusal if MLflow cannot open a SQLite file, and MLflow's exceptions for other failures.

        Set the environment variables that MLflow reads: each variable in `QUIET` that is not set yet, and the user and password for the
        server, if its address contains them. Remove MLFLOW_TRACKING_URI. Asynchronous logging, which drops what a server fails to store, is
        off whatever the user has set.
        """
        os.environ["MLFLOW_ENABLE_ASYNC_LOGGING"] = "false"
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        os.environ.pop("MLFLOW_TRACKING_URI", None)  # MLflow's fluent API would use it implicitly
        if self.address.credentials:
            os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"] = self.address.credentials
        from mlflow import MlflowClient  # late: it takes seconds, and reads the variables

        with contextlib.nullcontext() if self.address.is_server else locked_database(self.address):
            return MlflowClient(tracking_uri=self.address.for_mlflow, registry_uri=self.address.for_mlflow)

    @contextlib.contextmanager
    def refusing(self, name: str, problem: str, remedy: str) -> Iterator[None]:
        """Within this context, turn an exception of MLflow into a Refusal, whose message is `NAME: PROBLEM (the reason): REMEDY`."""
        try:
            yield
        except Refusal:
            raise
        except Exception as error:  # whatever MLflow and each kind of artifact store raise
            raise Refusal(f"{shown(name)}: {problem} ({self.address.redacted(reason(error))}){remedy}") from None

    def is_reachable(self) -> bool:
        """Return True if the store answers a request."""
        try:
            self.client.search_experiments(max_results=1)
        except Exception:  # whatever MLflow raises
            return False
        return True

    def run_for(self, journal: str, start: Mapping[str, Any], known: str | None) -> "Run":
        """Return the MLflow run for the journal called `journal`. `start` has the fields of the journal's first event.

        The first of these runs that exists and is not deleted is returned: 1. the run with the id `known`, to which an earlier delivery
        sent this journal; 2. the run in the experiment whose tag `pipeline.journal` is the journal's name; 3. the run in any experiment
        that trained the model with the SHA-256 `start["model_sha256"]`. If there is none, create a run. Passes on MLflow's exceptions.
        """
        if known and (run := self.active(known)):
            return run
        experiment_id = self.experiment_id(start.get("experiment") or UNNAMED)
        found = self._tagged([experiment_id], JOURNAL_TAG, journal)
        if found is None and (digest := start.get("model_sha256")):
            found = self._tagged([each.experiment_id for each in self.client.search_experiments()], MODEL_TAG, digest)
        if found is None:
            # MLflow creates no run at all if it refuses one of the tags: those of the journal follow one by one
            user = {name: text for name, text in start.get("tags", {}).items() if name == "mlflow.user"}
            tags = {JOURNAL_TAG: journal, **user} | describing(start.get("description", ""))
            name = (start.get("name") or journal)[:LONGEST_NAME]
            found = self.client.create_run(experiment_id, start_time=start.get("time_ms"), run_name=name, tags=tags)
        return found

    def make_child(self, run_id: str, parent: str, experiment_id: str) -> None:
        """Make a run a child of the run in the experiment whose journal is called `parent`. Do nothing if the store lacks that run yet."""
        if found := self._tagged([experiment_id], JOURNAL_TAG, parent):
            self.client.set_tag(run_id, "mlflow.parentRunId", found.info.run_id)

    def _tagged(self, experiments: list[str], tag: str, value: str) -> "Run | None":
        """Return the newest run of the experiments with these ids whose tag called `tag` has the value `value`; None if there is none."""
        runs = self.client.search_runs(experiments, f"tags.`{tag}` = '{value}'", max_results=1, order_by=["attributes.start_time DESC"])
        return runs[0] if runs else None

    def refuse_other_registry(self) -> None:
        """Raise Refusal if MLFLOW_REGISTRY_URI names another store: a registry finds a logged model only in its own store."""
        given = self._environment.mlflow_registry_uri
        if given and Address(given, self.address.root).key != self.address.key:
            raise Refusal("MLFLOW_REGISTRY_URI: models are registered in the store of MLFLOW_TRACKING_URI only: unset MLFLOW_REGISTRY_URI")

    def active(self, run_id: str) -> "Run | None":
        """Return the run with this id; None if it does not exist or was deleted."""
        run = existing(lambda: self.client.get_run(run_id))
        return run if run and run.info.lifecycle_stage == "active" else None

    def experiment_id(self, name: str) -> str:
        """Return the id of the experiment called `name`, which is created if it does not exist.

        Raises Refusal with the remedy if it was deleted: MLflow keeps its name, and accepts no run for it.
        """
        if found := self.client.get_experiment_by_name(name):
            if found.lifecycle_stage == "deleted":
                remedy = f"{restoring(self._environment, found.experiment_id)}, then `python -m pipeline sync`"
                raise Refusal(f"{self.address.shown}: the experiment {shown(name)} was deleted, so MLflow accepts no run for it: {remedy}")
            return str(found.experiment_id)
        # A server chooses the artifact location itself. MLflow cannot load models from a folder whose name it must quote, such as one with a space.
        folder = re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:LONGEST_FOLDER]
        if folder != name or not folder.strip("."):
            folder = f"{folder}-{files.digest_of(name)[:8]}"
        location = None if self.address.is_server else (self.address.root / "mlruns" / folder).as_uri()
        return str(self.client.create_experiment(name, artifact_location=location))

    @contextlib.contextmanager
    def as_default(self) -> Iterator[None]:
        """Let MLflow take this store in the block where none is named, instead of `mlflow.db` in the working directory."""
        os.environ["MLFLOW_TRACKING_URI"] = self.address.for_mlflow
        try:
            yield
        finally:
            del os.environ["MLFLOW_TRACKING_URI"]


@contextlib.contextmanager
def locked_database(address: Address) -> Iterator[None]:
    """Hold a lock in the block, so that only one process at a time opens the database. If the SQLite file does not exist, create it first.

    Connect to any other database first: where it does not answer, SQLAlchemy raises at once, and MLflow would try again for minutes.

    Raises Refusal if the SQLite file cannot be opened, for example because it is damaged. Passes on OSError, the error of a database that
    is locked by another process, and all errors of databases other than SQLite.
    """
    import sqlite3  # late: a stage that only writes its journal does not need them

    from sqlalchemy import NullPool, create_engine, make_url

    url = make_url(address.for_mlflow)
    database = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    lock = Path(f"{database or address.root / '.pipeline' / 'store'}.lock")
    # MLflow creates files in the working directory, and these should be in the root.
    with files.locked(lock, wait=True), contextlib.chdir(address.root):
        try:
            if database is None:
                create_engine(url, poolclass=NullPool).connect().close()
            elif not database.exists():
                create(database, artifacts=address.root / "mlruns")
            yield
            if database and database.parent == address.root:
                relocate(database, address.root / "mlruns")
        except Exception as error:  # of SQLite, Alembic or MLflow
            cause = error.__cause__ or error  # MLflow's error is caused by that of SQLAlchemy, which has that of SQLite as `orig`
            code = getattr(getattr(cause, "orig", cause), "sqlite_errorcode", 0)
            if database is None or isinstance(error, OSError) or code & 0xFF == sqlite3.SQLITE_BUSY:  # the other bits tell kinds of it
                raise
            raise Refusal(unusable(database, error)) from None
        finally:
            lock.unlink()


def create(database: Path, *, artifacts: Path) -> None:
    """Create the SQLite file of an MLflow store under a temporary name, and rename it when complete.

    MLflow creates the tables by dozens of migrations. A kill during a migration leaves a file that no later attempt can complete. The
    caller must hold the lock of `locked_database`. `artifacts` is the folder where MLflow will store artifacts.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for leftover in database.parent.glob(f".{database.name}.*.draft*"):  # including SQLite's own journal files
        leftover.unlink()
    with contextlib.suppress(FileExistsError), files.replacing(database) as draft:
        SqlAlchemyStore(f"sqlite:///{draft}", artifacts.as_uri()).engine.dispose()  # type: ignore[no-untyped-call]  # MLflow's
        if database.exists():
            raise FileExistsError(database)  # created by a server that was started in the meantime


def relocate(database: Path, artifacts: Path) -> None:
    """If the checkout was moved or copied since `create`, replace its earlier path in the addresses of artifacts, which are absolute.

    Otherwise, a copy would store its artifacts in the original, and a moved checkout would not find those of its runs.
    """
    import sqlite3

    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        (location,) = connection.execute("SELECT artifact_location FROM experiments WHERE name = 'Default'").fetchone() or ("",)
        before, now = location.removesuffix("/0"), artifacts.as_uri()
        if before == now or not (before.startswith("file:///") and before.endswith("/mlruns") and artifacts.is_dir()):
            return  # such as the artifacts of a server of one's own
        for statement in RELOCATIONS:
            connection.execute(statement, {"before": before, "now": now})


def unusable(database: Path, error: Exception) -> str:
    """Return the message for the SQLite file `database`, which MLflow cannot open: the reason, taken from `error`, and the remedies."""
    cause = str(error).partition(". ")[0].splitlines()[0]
    return (
        f"{database}: MLflow {metadata.version('mlflow')} cannot open this SQLite file ({cause}). If an older MLflow wrote it, copy it and run "
        f"`mlflow db upgrade sqlite:///{database}`. If a newer MLflow wrote it, install that version. If it is damaged, move it away "
        f"(`mv {database} {database}.damaged`) and restore a backup, or run `python -m pipeline sync` to write a new one"
    )


def existing(get: Callable[[], Answer]) -> Answer | None:
    """Return what `get` asks MLflow for; None if MLflow does not have it. Passes on MLflow's other exceptions."""
    from mlflow.exceptions import MlflowException

    try:
        return get()
    except MlflowException as error:
        if error.error_code in MISSING:
            return None
        raise


def describing(text: str) -> dict[str, str]:
    """Return the tags that make `text` the description of a run in MLflow; {} if `text` is "".

    One of the tags is a digest of the text. A description that no longer matches this digest was edited by a person.
    """
    return {NOTE_TAG: text, DESCRIBED_TAG: files.digest_of(text)} if text else {}


def restoring(environment: Environment, number: str | int) -> str:
    """Return the command that restores the deleted experiment with this id."""
    store = "" if environment.mlflow_tracking_uri else f"MLFLOW_TRACKING_URI={shlex.quote(environment.tracking_address)} "
    return f"`{store}mlflow experiments restore --experiment-id {number}`"


def failure(error: Exception) -> str:
    """Return why a delivery failed, for a message. A Refusal has the remedy in its text. A note names the event that MLflow did not store."""
    text = str(error) if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
    return ": ".join([*getattr(error, "__notes__", []), text])


def is_refusal(error: Exception) -> bool:
    """Return True if the same request would fail again: MLflow rejects its content, a file is too large for the server, or the error is a
    LookupError, TypeError or ValueError.

    Return False for what may succeed later, for example after a lost connection or when a full disk has space again.
    """
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error.error_code in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "INVALID_STATE"}
    if getattr(getattr(error, "response", None), "status_code", None) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return True
    # An invalid JSON answer of a server is both an OSError and a ValueError.
    return isinstance(error, (LookupError, TypeError, ValueError)) and not isinstance(error, OSError)


def accepting(send: Callable[[], object]) -> None:
    """Call `send`, and once more if MLflow refuses it: two deliveries that make the same row at the same time refuse one of them."""
    try:
        send()
    except Exception as error:
        if not is_refusal(error):
            raise
        send()
