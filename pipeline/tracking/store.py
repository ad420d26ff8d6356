"""Access to MLflow: the client, the experiment, and the run of a journal."""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline.io import files
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment
from pipeline.tracking.address import Address

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

JOURNAL_TAG = "pipeline.journal"
KEPT_TAG = "pipeline.kept_tags"
USER_TAG = "mlflow.user"
MODEL_TAG = "pipeline.model_sha256"
NOTE_TAG, DESCRIBED_TAG = "mlflow.note.content", "pipeline.description_sha256"
LONGEST_NAME, LONGEST_TAG = 250, 8000
# No retries by MLflow: the mirror retries and resumes by itself, and MLflow's retries would block it for minutes.
QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "MLFLOW_PRINT_MODEL_URLS_ON_CREATION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Store:
    """An MLflow store. The client is opened at its first use; a failed attempt is repeated at the next use."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.address = Address.of(environment)
        self._opened: MlflowClient | None = None

    @property
    def client(self) -> "MlflowClient":
        """Return the client. Raises MLflow's exceptions when it is unreachable, and Refusal for an unusable SQLite file."""
        if self._opened is None:
            self._settle_variables()
            with contextlib.nullcontext() if self.address.is_server else locked_database(self.address):
                from mlflow import MlflowClient

                self._opened = MlflowClient(tracking_uri=self.address.for_mlflow, registry_uri=self.address.for_mlflow)
        return self._opened

    def answers(self) -> bool:
        """Return True if MLflow is reachable."""
        try:
            self.client.search_experiments(max_results=1)
        except Exception:  # whatever MLflow raises
            return False
        return True

    def run_for(self, journal: str, start: Mapping[str, Any], known: str | None) -> "Run":
        """Return the run of the journal whose first event is `start`.

        In this order: the run with the id `known`, the one that the user named, the one tagged with the journal,
        the one that trained the model, or a new one.
        """
        named = start.get("run_id")
        for run_id in (known, named):
            if run_id and (run := self._active(run_id)):
                return run
        experiment_id = self.experiment_id(start.get("experiment"))  # journals of earlier versions have no experiment
        found = self._tagged(experiment_id, JOURNAL_TAG, journal)
        if found is None and start.get("model_sha256"):
            found = self._tagged(experiment_id, MODEL_TAG, start["model_sha256"])
        run = found or self._create(journal, start, experiment_id)
        if named:
            print(f"tracking: {unused_run_message(named, journal, run.info.run_id)}", flush=True)
        return run

    def protect_tags(self, run: "Run") -> frozenset[str]:
        """Return the names of the tags that journals must not change: those that the run had before its first journal, and its user.

        They are recorded in a tag at the first call.
        """
        tags = run.data.tags
        if KEPT_TAG not in tags and not any(name.startswith("pipeline.") for name in tags):
            kept = json.dumps(sorted(tags))
            if len(kept) > LONGEST_TAG:  # MLflow would truncate it
                kept = json.dumps(sorted(name for name in tags if name.startswith("mlflow.")))
            self.client.set_tag(run.info.run_id, KEPT_TAG, kept)
        else:
            kept = tags.get(KEPT_TAG, "[]")
        return frozenset(json.loads(kept)) | ({USER_TAG} & tags.keys())

    def _create(self, journal: str, start: Mapping[str, Any], experiment_id: str) -> "Run":
        """Create the run of a journal, tagged with the name of the journal."""
        tags = {JOURNAL_TAG: journal, **start.get("tags", {})}
        if start.get("description"):
            tags |= describing(start["description"])
        run: Run = self.client.create_run(
            experiment_id, start_time=start.get("time_ms"), run_name=(start.get("name") or journal)[:LONGEST_NAME], tags=tags
        )
        return run

    def _tagged(self, experiment_id: str, tag: str, value: str) -> "Run | None":
        """Return the newest run with this tag value, or None."""
        runs = self.client.search_runs([experiment_id], f"tags.`{tag}` = '{value}'", max_results=1, order_by=["attributes.start_time DESC"])
        return runs[0] if runs else None

    def _active(self, run_id: str) -> "Run | None":
        """Return the run, or None where it does not exist or was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            run: Run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def experiment_id(self, name: str | None = None) -> str:
        """Return the id of the experiment with this name (by default that of the environment), creating it where it is missing."""
        name = name or self._environment.mlflow_experiment_name
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        # a server chooses the artifact location itself
        place = None if self.address.is_server else (self.address.root / "mlruns" / quote(name, safe="")).as_uri()
        return str(self.client.create_experiment(name, artifact_location=place))

    def _settle_variables(self) -> None:
        """Set MLflow's environment variables: `QUIET` where the user left them unset, and the credentials of the address."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        # MLflow's fluent API would use them implicitly.
        os.environ.pop("MLFLOW_RUN_ID", None)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        if self.address.credentials:
            os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"] = self.address.credentials


@contextlib.contextmanager
def locked_database(address: Address) -> Iterator[None]:
    """Hold a lock while MLflow opens a database without a server. Create a missing SQLite file first; check an existing one."""
    from sqlalchemy import make_url

    url = make_url(address.for_mlflow)
    database = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    lock = Path(f"{database or address.root / '.pipeline' / 'store'}.lock")
    # MLflow creates files in the working directory; they belong under the root.
    with files.locked(lock, wait=True), contextlib.chdir(address.root):
        try:
            if database:
                if not database.exists():
                    create(database, artifacts=address.root / "mlruns")
                refuse_unusable(database)
            yield
        finally:
            lock.unlink()


def create(database: Path, *, artifacts: Path) -> None:
    """Create the SQLite file of an MLflow store as a draft, and rename it when complete. The caller holds the lock.

    MLflow creates it by dozens of migrations; a kill during one leaves a file that no later attempt can complete.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for leftover in database.parent.glob(f".{database.name}.*.draft*"):  # including SQLite's own journal files
        leftover.unlink()
    with contextlib.suppress(FileExistsError), files.replacing(database) as draft:
        SqlAlchemyStore(f"sqlite:///{draft}", artifacts.as_uri()).engine.dispose()  # type: ignore[no-untyped-call]  # MLflow's
        if database.exists():
            raise FileExistsError(database)  # created by a server that was started in the meantime


def refuse_unusable(database: Path) -> None:
    """Raise Refusal where a SQLite file is damaged or was written by an incompatible version of MLflow."""
    import mlflow
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    known = [script.revision for script in scripts.walk_revisions()]
    found = schema_of(database)
    if found == known[0]:
        return
    version, away = f"MLflow {metadata.version('mlflow')}", f"move it away (`mv {database} {database}.damaged`)"
    if found is None:
        raise Refusal(
            f"{database}: is damaged, not a store of MLflow, or being created by it just now: {away}, then put a copy in its place or run `python -m pipeline sync`"
        )
    if found not in known:
        raise Refusal(f"{database}: was written by a newer version than {version} (schema {found}): use that version, or another store")
    raise Refusal(
        f"{database}: has schema {found}, but {version} needs {known[0]}: back it up, then run `mlflow db upgrade sqlite:///{database}`; "
        f"if the upgrade fails, {away} and run `python -m pipeline sync`"
    )


def schema_of(database: Path) -> str | None:
    """Return the revision of the database schema; None where the file is damaged or has none."""
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname in {"SQLITE_ERROR", "SQLITE_NOTADB"} or error.sqlite_errorname.startswith("SQLITE_CORRUPT"):
            return None
        raise
    return str(row[0]) if row else None


def describing(text: str) -> dict[str, str]:
    """Return the tags that set `text` as the description of a run; its digest shows later whether it was edited."""
    return {NOTE_TAG: text, DESCRIBED_TAG: files.digest_of(text)}


def unused_run_message(named: str, journal: str, run_id: str) -> str:
    """Return the message that the run that the user named is not used."""
    return f"MLFLOW_RUN_ID={named} is not used: the run does not exist, was deleted, or the model already has another run; {journal} is sent to run {run_id}"


def is_passing(error: Exception) -> bool:
    """Return True for a temporary failure, such as an unreachable server; False where MLflow rejected the event."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return error.error_code not in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "INVALID_STATE"}
    return isinstance(error, (OSError, SQLAlchemyError))
