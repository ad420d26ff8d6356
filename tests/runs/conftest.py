"""A store with one training and its evaluation, shared by all tests here: to make it takes longer than most of them."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.core.environment import Environment
from pipeline.runs import run
from pipeline.runs.journal import Dataset, Journal, RunInfo, journals
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.store import Store
from pipeline.runs.utilization import Sampler
from tests.faults import comparison
from tests.runs import tiny

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

NUM_STEPS = 300
RUN_INFO = RunInfo(
    params={"seed": 1, "model.name": "tiny", "train.compile": False, "train.clip": None, "train.metric": "valid/accuracy"},
    tags={"mlflow.source.git.commit": "c0ffee", "mlflow.user": "someone"},
    provenance={"git.commit": "c0ffee", "gpu": "unknown: no NVIDIA driver is installed"},
    datasets=(Dataset("digits train", "d" * 64, "training", {"classes": 3}),),
    description="A run for the **tests**.",
    name="tiny-digits",
)


@dataclass(frozen=True)
class Tracked:
    """A store, and the run in it."""

    environment: Environment
    model: Path
    journal: Path
    client: "MlflowClient"

    def begin(self, info: RunInfo | None = None, stage: str = "train", **more: str | None) -> Journal:
        """Create a journal in the checkout of the store."""
        return Journal.create(self.environment.root, stage=stage, info=info or RunInfo(), **more)

    def deliver(self, journal: Path) -> bool:
        return mirror.deliver(journal, Store(self.environment))

    def run_of(self, journal: str) -> "Run":
        return comparison.only_run(self.client, journal)


def finish(*journals: Journal) -> None:
    for journal in journals:
        journal.end("FINISHED")
        journal.close()


def opened(environment: Environment) -> "MlflowClient":
    """Return MLflow's client of the store of an environment, which is created. MLflow warns about its own libraries while it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import pyfunc

        assert pyfunc.load_model  # it is imported when it is first touched
        return Store(environment).client


@contextmanager
def turned_to(tracked: Tracked) -> Iterator[None]:
    """Turn MLflow's own functions to the store within the block."""
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "")  # to be restored, because MLflow sets it, too
        mlflow.set_tracking_uri(f"sqlite:///{tracked.environment.root}/mlflow.db")
        yield
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # of later tests, the default of their own folder counts


@pytest.fixture(scope="session")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    root = tmp_path_factory.mktemp("tracked")
    environment = Environment.model_validate({"DVC_ROOT": root})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "start", lambda *_: None)
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID"):
            patch.delenv(name, raising=False)
        model = tiny.write(root / "model.safetensors")
        with run.training(environment, resume_file=root / "work" / "run", info=RUN_INFO) as reports:
            for step in range(1, NUM_STEPS + 1):
                reports.metrics(step, {"train/loss": 1 / step, "train/scale": float("inf"), "valid/loss": float("nan")})
            history = root / "history.csv"
            history.write_text("step,loss\n")
            reports.artifact(history, folder="plots")
            history.write_text("changed after it was logged")
            reports.model(model)
        (journal,) = journals(root)
        sampler = Sampler(journal)
        sampler.start()
        sampler.stop()
        with run.addition(environment, model, info=RunInfo(params={"seed": 2}, tags={"evaluate.top_k": "3"})) as reports:
            reports.metrics(NUM_STEPS, {"test/accuracy": 0.75, "valid/accuracy": 0.5})
        tracked = Tracked(environment, model, journal, opened(environment))
        assert tracked.deliver(journal)
    return tracked


@pytest.fixture
def without_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A root without MLflow: stages write their journals, and no mirror is started."""
    monkeypatch.setattr(mirror, "start", lambda *_: None)
    return Environment.model_validate({"DVC_ROOT": tmp_path})


@pytest.fixture
def make_environment(tmp_path: Path) -> Callable[[str], Environment]:
    def build(address: str, **more: str) -> Environment:
        return Environment.model_validate({"DVC_ROOT": tmp_path, "MLFLOW_TRACKING_URI": address, **more})

    return build
