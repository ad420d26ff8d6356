"""The MLflow side: the client, the experiment, and the run that a journal goes to."""

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline import files
from pipeline.environment import Environment
from pipeline.tracking.address import Address

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

JOURNAL_TAG = "pipeline.journal"
MODEL_TAG = "pipeline.model_sha256"
NOTE_TAG = "mlflow.note.content"
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
        """Raises whatever MLflow raises when it cannot be reached."""
        if self._opened is None:
            self._settle_variables()
            with contextlib.ExitStack() as stack:
                if not self.address.is_server:
                    # several processes creating one database at once leave it broken; what MLflow puts beside it belongs under the root
                    stack.enter_context(files.locked(self.address.root / ".pipeline" / "store.lock", wait=True))
                    stack.enter_context(contextlib.chdir(self.address.root))
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
            tags[NOTE_TAG] = start["description"]
        run: Run = self.client.create_run(
            self.experiment_id, start_time=start.get("time_ms"), run_name=start.get("name") or journal, tags=tags
        )
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


def is_passing(error: Exception) -> bool:
    """Whether another attempt may succeed: MLflow was away, not the event refused."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return error.error_code not in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "INVALID_STATE"}
    return isinstance(error, (OSError, SQLAlchemyError))
