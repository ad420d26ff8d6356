"""The environment variables that configure a job, and the paths of the files that the stages read and write."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, Json, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from pipeline.core.interruption import STARTED_BY_TORCHRUN
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown


class Paths:
    """The paths of the pipeline's files. `top` is the top of the checkout: every stage runs there, so the paths are relative.

    A trial of `search` has its parameters and results in a folder of its own, `trial`, and its prepared data, too, if it has a folder `data`.
    """

    def __init__(self, top: Path = Path(), *, trial: Path | None = None) -> None:
        self.top = top
        self.prepared = (trial if trial and (trial / "data").is_dir() else top) / "data/prepared"
        self.lock = top / "requirements.lock"
        results = trial or top
        self.params = results / "params.yaml"
        self.model = results / "models/model.safetensors"
        self.metrics = results / "metrics"
        self.plots = results / "plots"
        self.history = results / "plots/train/history.csv"
        self.evaluation_plots = results / "plots/evaluate"
        self.predictions = results / "predictions/test.parquet"
        self.dvc_lock = results / "dvc.lock"  # a trial has none: that of the checkout describes another training
        self.run = trial / "run" if trial else None
        """The file that names the journal of a trial's run. Other trainings have it in their work folder."""


TRACKING_ADDRESS = re.compile(r"https?://.*|sqlite(\+\w+)?:///.+|(postgresql|mysql|mssql)(\+\w+)?://.+|databricks(:.*)?")
DEVICE = r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"
DEVICE_NAMES = "should be `auto`, `cpu`, `cuda` or `cuda:N`"

SUMMARY_FOLLOWS = "PIPELINE_SUMMARY_FOLLOWS"

CaptureMode = Literal["auto", "on", "off"]
Threads = Annotated[int, Field(gt=0, le=1024)]


def tracking_address(address: str) -> str:
    """Return the address. Raises ValueError if it is invalid. The message omits the address: it may contain a password."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises ValueError for an invalid port
        valid = bool(parts.hostname) or not parts.scheme.startswith("http")
    except ValueError:
        valid = False
    if not (valid and TRACKING_ADDRESS.fullmatch(address)):
        raise ValueError("is not a tracking address: write http://HOST:PORT or sqlite:///PATH, or unset the variable")
    return address


def scheduler(address: str) -> str:
    if not re.fullmatch(r"(tcp|tls)://[^/@\s]+:[0-9]{1,5}", address):
        raise ValueError("is not the address of a scheduler: write tcp://HOST:PORT, or unset the variable")
    return address


class Environment(BaseSettings):
    """The environment variables, read once at the start. An empty variable counts as unset."""

    model_config = SettingsConfigDict(frozen=True, env_ignore_empty=True, extra="ignore")

    device: Annotated[str, Field(pattern=DEVICE)] = Field("auto", validation_alias="PIPELINE_DEVICE")
    threads: Threads | None = Field(None, validation_alias="PIPELINE_THREADS")
    graphs: CaptureMode = Field("auto", validation_alias="PIPELINE_GRAPHS")
    """`auto` lets a training on a GPU replay its steps as CUDA graphs, which changes no result, if enough steps are left; `on` always, and in
    validations and evaluations, too."""
    workers: Threads | None = Field(None, validation_alias="PIPELINE_WORKERS")
    cluster: Annotated[str, AfterValidator(scheduler)] | None = Field(None, validation_alias="PIPELINE_CLUSTER")
    """Address of the scheduler of a dask.distributed cluster, whose workers then decode the images in `prepare`."""
    checkpoint_every_s: NonNegativeFloat = Field(30.0, validation_alias="PIPELINE_CHECKPOINT_EVERY_S")
    checkpoint_every_steps: NonNegativeInt = Field(0, validation_alias="PIPELINE_CHECKPOINT_EVERY_STEPS")
    checkpoints_kept: PositiveInt = Field(2, validation_alias="PIPELINE_CHECKPOINTS_KEPT")
    tracking: bool = Field(True, validation_alias="PIPELINE_TRACKING")
    tracking_wait_s: NonNegativeFloat = Field(120.0, validation_alias="PIPELINE_TRACKING_WAIT_S")
    tracking_mirror: bool = Field(True, validation_alias="PIPELINE_TRACKING_MIRROR")
    """False if another process, such as `search` or a later `sync`, sends the journals to MLflow."""
    tracking_model: bool = Field(True, validation_alias="PIPELINE_TRACKING_MODEL")
    """False if the runs should not have a copy of the model file."""
    processes: Literal["auto"] | Annotated[int, Field(gt=0, le=1024)] = Field(1, validation_alias="PIPELINE_PROCESSES")
    """Processes of a training on this machine; `auto` is one per GPU."""
    restarts: NonNegativeInt = Field(3, validation_alias="PIPELINE_RESTARTS")
    """How often a training of several processes is started again after one of them has died."""
    timeout_s: PositiveFloat = Field(600.0, validation_alias="PIPELINE_TIMEOUT_S")
    """Longest time that a process waits for the others in a step."""
    rank: NonNegativeInt = Field(0, validation_alias="RANK")
    """The variables from here to `master_port` are set by torch.distributed.run for the processes that it starts."""
    world_size: PositiveInt = Field(1, validation_alias="WORLD_SIZE")
    local_rank: NonNegativeInt = Field(0, validation_alias="LOCAL_RANK")
    local_world_size: PositiveInt = Field(1, validation_alias="LOCAL_WORLD_SIZE")
    master_addr: str | None = Field(None, validation_alias="MASTER_ADDR")
    master_port: str | None = Field(None, validation_alias="MASTER_PORT")
    summary_follows: bool = Field(False, validation_alias=SUMMARY_FOLLOWS)
    """True if the job ends with the verb `summary`. That verb prints the result, so the stage evaluate does not print it."""
    mlflow_tracking_uri: Annotated[str, AfterValidator(tracking_address)] | None = Field(None, validation_alias="MLFLOW_TRACKING_URI")
    mlflow_experiment_name: str | None = Field(None, validation_alias="MLFLOW_EXPERIMENT_NAME")
    mlflow_experiment_id: str | None = Field(None, validation_alias="MLFLOW_EXPERIMENT_ID")
    mlflow_registry_uri: str | None = Field(None, validation_alias="MLFLOW_REGISTRY_URI")
    mlflow_workspace: str | None = Field(None, validation_alias="MLFLOW_WORKSPACE")
    mlflow_enable_workspaces: bool = Field(False, validation_alias="MLFLOW_ENABLE_WORKSPACES")
    mlflow_run_id: str | None = Field(None, validation_alias="MLFLOW_RUN_ID")
    """Not used: the end of a stage says so."""
    mlflow_run_context: Json[dict[str, str]] | None = Field(None, validation_alias="MLFLOW_RUN_CONTEXT")
    """Tags of every training's run, as JSON. `mlflow.runName` is its name."""
    dvc_root: Path | None = Field(None, validation_alias="DVC_ROOT")
    dvc_stage: str | None = Field(None, validation_alias="DVC_STAGE")
    dvc_experiment: str | None = Field(None, validation_alias="DVC_EXP_NAME")

    @property
    def is_rank(self) -> bool:
        """Return True if torch.distributed.run has started this process."""
        return self.master_addr is not None and STARTED_BY_TORCHRUN in os.environ

    @property
    def root(self) -> Path:
        """The main checkout. It contains the journals (local records) of runs, the work folders of trainings and the default MLflow store.

        A work folder contains checkpoints. If the job runs in a temporary copy of the checkout (`dvc exp run --temp`), `root` is not the
        copy.
        """
        return self.dvc_root or Path.cwd()

    @property
    def tracking_address(self) -> str:
        return self.mlflow_tracking_uri or f"sqlite:///{self.root / 'mlflow.db'}"

    @classmethod
    def read(cls) -> "Environment":
        """Read and validate the environment variables. Raises Refusal with one line for each invalid variable."""
        by_torchrun = STARTED_BY_TORCHRUN in os.environ and "MASTER_ADDR" in os.environ
        left_over: dict[str, Any] = {} if by_torchrun else {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        try:
            environment = cls(**left_over)  # they replace the variables
        except ValidationError as error:
            last = {problem["loc"][0]: problem for problem in error.errors()}  # a value of no type of a union has several
            raise Refusal("\n".join(f"{name}: {explain(problem)}" for name, problem in last.items())) from None
        environment.refuse_contradictions()
        environment.refuse_unfit_root()
        return environment

    def refuse_contradictions(self) -> None:
        """Raise Refusal for variables of MLflow that would have no effect, so that runs would go to another place."""
        if self.mlflow_experiment_id and self.tracking:
            raise Refusal(
                "MLFLOW_EXPERIMENT_ID: experiments are chosen by name: set MLFLOW_EXPERIMENT_NAME, and unset MLFLOW_EXPERIMENT_ID"
            )
        if self.mlflow_workspace or self.mlflow_enable_workspaces:
            name = "MLFLOW_WORKSPACE" if self.mlflow_workspace else "MLFLOW_ENABLE_WORKSPACES"
            if self.tracking and not self.tracking_address.startswith(("http", "databricks")):
                raise Refusal(f"{name}: only a server has workspaces: set MLFLOW_TRACKING_URI to a server, or unset {name}")

    def refuse_unfit_root(self) -> None:
        """Raise Refusal if tracking is on, MLflow's SQLite store is below `root`, and the path of `root` contains `?` or `%`.

        The address of the store is a URI with this path. In a URI, `?` begins the query. `%` is read differently by MLflow and by Alembic,
        its library for database migrations.
        """
        root = str(self.root.resolve())
        below_root = self.mlflow_tracking_uri is None or re.match(r"sqlite(\+\w+)?:///(?!/)", self.mlflow_tracking_uri)
        if self.tracking and below_root and ("?" in root or "%" in root):
            raise Refusal(
                f"{shown(root)}: this path contains `?` or `%`, and the address of the MLflow store in this folder cannot contain them: "
                "move the checkout to a path without them, or set MLFLOW_TRACKING_URI to a server"
            )


def explain(problem: ErrorDetails) -> str:
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    expected = DEVICE_NAMES if problem["type"] == "string_pattern_mismatch" else problem["msg"].replace("Input should", "should")
    if problem["loc"][0] == "MLFLOW_RUN_CONTEXT":
        expected = 'should be tags as JSON, such as {"team": "vision"}'
    elif len(problem["loc"]) > 1:
        expected = expected.replace("should be", "should be `auto` or")
    return f"{expected.partition(', unable')[0]}, not {problem['input']!r}"
