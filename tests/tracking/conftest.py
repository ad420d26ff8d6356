"""A store with one training and its evaluation, shared by all tests here: to make it takes longer than most of them."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.core.environment import Environment
from pipeline.tracking import mirror, mirror_process, run
from pipeline.tracking.journal import Dataset, RunInfo, journals
from pipeline.tracking.store import Store
from tests.tracking import mirror_command, tiny

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

    def run_of(self, journal: str) -> "Run":
        runs = self.client.search_runs(
            [each.experiment_id for each in self.client.search_experiments()], f"tags.`pipeline.journal` = '{journal}'"
        )
        assert len(runs) == 1, runs
        return self.client.get_run(runs[0].info.run_id)


@pytest.fixture(scope="session")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    root = tmp_path_factory.mktemp("tracked")
    environment = Environment.model_validate({"DVC_ROOT": root})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror_process, "command", mirror_command.command)
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
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
        patch.setattr(mirror_process, "start", lambda *_: None)
        with run.addition(environment, model, info=RunInfo(params={"seed": 2}, tags={"evaluate.top_k": "3"})) as reports:
            reports.metrics(NUM_STEPS, {"test/accuracy": 0.75, "valid/accuracy": 0.5})
    (journal,) = journals(root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns about its own libraries while it is imported
        from mlflow import MlflowClient, pyfunc

        assert pyfunc.load_model  # it is imported when it is first touched
        assert Store(environment).client
    assert mirror.deliver(journal, Store(environment), tiny.build)

    return Tracked(environment, model, journal, MlflowClient(f"sqlite:///{root}/mlflow.db"))


@pytest.fixture
def without_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A root without MLflow: stages write their journals, and no mirror is started."""
    monkeypatch.setattr(mirror_process, "start", lambda *_: None)
    return Environment.model_validate({"DVC_ROOT": tmp_path})


@pytest.fixture
def make_environment(tmp_path: Path) -> Callable[[str], Environment]:
    def build(address: str, **more: str) -> Environment:
        return Environment.model_validate({"DVC_ROOT": tmp_path, "MLFLOW_TRACKING_URI": address, **more})

    return build
