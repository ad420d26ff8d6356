"""The MLflow side: the client, the experiment, and the run that a journal goes to."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline import files
from pipeline.environment import Environment
from pipeline.refusal import Refusal
from pipeline.tracking.address import Address
from pipeline.tracking.journal import mark

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

JOURNAL_TAG = "pipeline.journal"
MODEL_TAG = "pipeline.model_sha256"
# the mirror repeats by itself and keeps its place: MLflow's own repetitions would block it for minutes
QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "MLFLOW_PRINT_MODEL_URLS_ON_CREATION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Store:
    """Opened at its first use, and again after a failure: MLflow may be away for a while."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.address = Address.of(environment)
        self._opened: tuple[MlflowClient, str] | None = None

    @property
    def client(self) -> "MlflowClient":
        return self.open()[0]

    @property
    def experiment_id(self) -> str:
        return self.open()[1]

    def open(self) -> "tuple[MlflowClient, str]":
        """Raises whatever MLflow raises when it cannot be reached, and Refusal for a SQLite file that it could not use."""
        if self._opened is None:
            self._settle_variables()
            with contextlib.nullcontext() if self.address.is_server else prepared(self.address):
                from mlflow import MlflowClient

                client = MlflowClient(tracking_uri=self.address.for_mlflow, registry_uri=self.address.for_mlflow)
                self._opened = client, self._experiment(client)
        return self._opened

    def answers(self) -> bool:
        """Whether MLflow is there, whatever it says of one run."""
        try:
            client, experiment_id = self.open()
            client.get_experiment(experiment_id)
        except Exception:  # whatever MLflow raises
            return False
        return True

    def run_for(self, journal: str, start: Mapping[str, Any], known: str | None) -> tuple[str, bool]:
        """The run of a journal that begins with `start`, and whether it was made here: the one known, named, tagged, trained, or a new one."""
        if known and self._is_usable(known):
            return known, False
        named = start.get("run_id")
        if named and self._is_usable(named):
            return named, False
        found = self._tagged(JOURNAL_TAG, journal)
        if found is None and start.get("model_sha256"):
            found = self._tagged(MODEL_TAG, start["model_sha256"])
        return (found, False) if found else (self._create(journal, start), True)

    def _create(self, journal: str, start: Mapping[str, Any]) -> str:
        tags = {JOURNAL_TAG: journal, **start.get("tags", {})}
        if start.get("description"):
            tags["mlflow.note.content"] = start["description"]
        name = f"{start['name']}-{mark(journal)}" if start.get("name") else journal
        run: Run = self.client.create_run(self.experiment_id, start_time=start.get("time_ms"), run_name=name, tags=tags)
        return str(run.info.run_id)

    def _tagged(self, tag: str, value: str) -> str | None:
        runs = self.client.search_runs(
            [self.experiment_id], f"tags.`{tag}` = '{value}'", max_results=1, order_by=["attributes.start_time DESC"]
        )
        return str(runs[0].info.run_id) if runs else None

    def _is_usable(self, run_id: str) -> bool:
        """Whether the run is there and was not deleted."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(self.client.get_run(run_id).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
                return False
            raise

    def _experiment(self, client: "MlflowClient") -> str:
        name = self._environment.mlflow_experiment_name
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        # a server decides for itself where artifacts lie
        place = None if self.address.is_server else (self.address.root / "mlruns" / quote(name, safe="")).as_uri()
        return str(client.create_experiment(name, artifact_location=place))

    def _settle_variables(self) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        # MLflow's fluent functions would act on them behind our back
        os.environ.pop("MLFLOW_RUN_ID", None)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        if self.address.credentials:
            os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"] = self.address.credentials


@contextlib.contextmanager
def prepared(address: Address) -> Iterator[None]:
    """Hold the lock of a database that MLflow shall open without a server. A SQLite file is created first, or checked."""
    from sqlalchemy import make_url

    url = make_url(address.for_mlflow)
    database = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    lock = Path(f"{database or address.root / '.pipeline' / 'store'}.lock")
    # what MLflow puts beside a database belongs under the root
    with files.locked(lock, wait=True), contextlib.chdir(address.root):
        if database:
            if not database.exists():
                create(database, artifacts=address.root / "mlruns")
            refuse_unusable(database)
        yield
        lock.unlink()


def create(database: Path, *, artifacts: Path) -> None:
    """Create an MLflow store in a draft that takes its place when it is whole. The caller holds the lock.

    MLflow creates one by dozens of migrations, and a kill in the middle of one leaves a file that no other attempt can finish.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for leftover in database.parent.glob(f".{database.name}.*.draft*"):  # SQLite's own journals are among them
        leftover.unlink()
    with contextlib.suppress(FileExistsError), files.replacing(database) as draft:
        SqlAlchemyStore(f"sqlite:///{draft}", artifacts.as_uri()).engine.dispose()  # type: ignore[no-untyped-call]  # MLflow's
        if database.exists():
            raise FileExistsError(database)  # by a server that was started in the meantime


def refuse_unusable(database: Path) -> None:
    """Raises Refusal for a SQLite file that is damaged or that another version of MLflow wrote."""
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
            f"{database}: is damaged, or not a store of MLflow: {away}, then put a copy in its place or run `python -m pipeline sync`"
        )
    if found not in known:
        raise Refusal(
            f"{database}: was written by a newer version than {version} (schema {found}): use that version, or name another store"
        )
    raise Refusal(
        f"{database}: has schema {found}, {version} needs {known[0]}: copy it, then run `mlflow db upgrade sqlite:///{database}`; "
        f"if the upgrade fails, {away} and run `python -m pipeline sync`"
    )


def schema_of(database: Path) -> str | None:
    """The revision of the schema; None where the file holds none that can be read."""
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname in {"SQLITE_ERROR", "SQLITE_NOTADB"} or error.sqlite_errorname.startswith("SQLITE_CORRUPT"):
            return None
        raise
    return str(row[0]) if row else None


def is_passing(error: Exception) -> bool:
    """Whether another attempt may succeed: MLflow was away, not the event refused."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return error.error_code not in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "INVALID_STATE"}
    return isinstance(error, (OSError, SQLAlchemyError))
