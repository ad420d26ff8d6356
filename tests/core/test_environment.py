"""The environment variables: their names, their defaults and the place of the store. `tools/check/test_environment.py` tests what is refused."""

from pathlib import Path

import pytest

from pipeline.core.environment import Environment


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Environment.model_fields.values():
        monkeypatch.delenv(str(field.validation_alias), raising=False)


def test_nothing_set_means_these_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = Environment.read()
    assert (environment.device, environment.threads, environment.workers) == ("auto", None, None)
    assert (environment.checkpoint_every_s, environment.checkpoints_kept, environment.tracking) == (30.0, 2, True)
    assert environment.root == tmp_path
    assert environment.tracking_address == f"sqlite:///{tmp_path}/mlflow.db"


def test_variables_are_read_by_their_whole_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIPELINE_DEVICE": "cuda:1",
        "PIPELINE_THREADS": "3",
        "PIPELINE_CHECKPOINT_EVERY_S": "0",
        "PIPELINE_TRACKING": "off",
        "MLFLOW_TRACKING_URI": "http://host:5000",
        "DVC_ROOT": "/elsewhere",
        "DEVICE": "cpu",
        "device": "cpu",
    }.items():
        monkeypatch.setenv(name, value)
    environment = Environment.read()
    assert (environment.device, environment.threads, environment.checkpoint_every_s, environment.tracking) == ("cuda:1", 3, 0, False)
    assert environment.tracking_address == "http://host:5000"
    assert environment.root == Path("/elsewhere")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Environment.read()
    for field in Environment.model_fields.values():
        monkeypatch.setenv(str(field.validation_alias), "")
    assert Environment.read() == before
