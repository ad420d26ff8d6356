"""`check` and the stages refuse wrong environment variables with the remedy."""

from collections.abc import Callable

import pytest

from pipeline.__main__ import main
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
NO_ADDRESS = "is not a tracking address: write http://HOST:PORT or sqlite:///PATH, or unset the variable"
DEVICES = "should be `auto`, `cpu`, `cuda` or `cuda:N`"
VARIABLES = [
    ("PIPELINE_DEVICE", "gpu", f"{DEVICES}, not 'gpu'"),
    ("PIPELINE_DEVICE", "cuda:one", f"{DEVICES}, not 'cuda:one'"),
    ("PIPELINE_DEVICE", "cuda:99999", f"{DEVICES}, not 'cuda:99999'"),
    ("PIPELINE_THREADS", "0", "should be greater than 0, not '0'"),
    ("PIPELINE_THREADS", "two", "should be a valid integer, not 'two'"),
    ("PIPELINE_THREADS", "9" * 30, "should be less than or equal to 1024"),
    ("PIPELINE_WORKERS", "-1", "should be greater than 0, not '-1'"),
    ("PIPELINE_CLUSTER", "host:8786", "is not the address of a scheduler: write tcp://HOST:PORT, or unset the variable"),
    ("PIPELINE_CLUSTER", "http://host:8786", "is not the address of a scheduler"),
    ("PIPELINE_CHECKPOINT_EVERY_S", "nan", "should be greater than or equal to 0, not 'nan'"),
    ("PIPELINE_CHECKPOINTS_KEPT", "0", "should be greater than 0, not '0'"),
    ("PIPELINE_PROCESSES", "0", "should be `auto` or greater than 0, not '0'"),
    ("PIPELINE_PROCESSES", "many", "should be `auto` or a valid integer, not 'many'"),
    ("PIPELINE_PROCESSES", "2.5", "should be `auto` or a valid integer, not '2.5'"),
    ("PIPELINE_RESTARTS", "-1", "should be greater than or equal to 0, not '-1'"),
    ("PIPELINE_TIMEOUT_S", "0", "should be greater than 0, not '0'"),
    ("MLFLOW_RUN_CONTEXT", "{", 'should be tags as JSON, such as {"team": "vision"}, not \'{\''),
    ("MLFLOW_RUN_CONTEXT", '{"trial": 1}', 'should be tags as JSON, such as {"team": "vision"}, not 1'),
    ("PIPELINE_TRACKING", "maybe", "should be a valid boolean, not 'maybe'"),
    *(
        ("MLFLOW_TRACKING_URI", address, NO_ADDRESS)
        for address in (
            "htp://user:hunter2@host",
            "http://user:hunter2@",
            "http://user:hunter2@host:port",
            "http://user:hunter2@host:99999",
            "http://[::1",
            "http://host\nname",
            "file:///runs",
            "./mlruns",
            "sqlite://",
            "postgresql://",
            "host:5000",
        )
    ),
]


@pytest.mark.parametrize(("name", "value", "words"), VARIABLES, ids=[f"{name}={value[:24]!r}" for name, value, _ in VARIABLES])
def test_a_bad_variable_is_named_with_the_remedy(
    parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    for verb in ("check", "prepare", "train", "evaluate"):
        [said] = refused(verb)
        assert said.startswith(f"{name}: {words}")
        assert "hunter2" not in said


def test_all_bad_variables_are_named_at_once(parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_DEVICE", "gpu")
    monkeypatch.setenv("PIPELINE_THREADS", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense")
    assert [line.split(":")[0] for line in refused("check")] == ["PIPELINE_DEVICE", "PIPELINE_THREADS", "MLFLOW_TRACKING_URI"]


def test_a_gpu_that_is_not_there_is_refused(parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for wish in ("cuda", "cuda:1"):
        monkeypatch.setenv("PIPELINE_DEVICE", wish)
        for verb in ("check", "train", "evaluate"):
            [said] = refused(verb)
            assert said.startswith(f"PIPELINE_DEVICE={wish}: no CUDA GPU can be used: this machine has no NVIDIA GPU: use `auto` or `cpu`")


def test_a_precision_that_a_gpu_cannot_do_is_refused_at_its_line(
    parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from pipeline.inference.machine import Machine

    monkeypatch.setattr("pipeline.inference.machine.Machine.set_up", lambda _: Machine(torch.device("cuda", 0), 1))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (7, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "Old GPU")
    line = parameters.put("train.precision", "bf16")
    parameters.write()
    assert refused("check") == [
        f"params.yaml:{line}: train.precision: bf16 needs compute capability 8.0, but Old GPU has 7.0: write `train.precision: auto`"
    ]


@pytest.mark.parametrize(
    "address", ["http://host:5000", "https://user:p%40ss@host/prefix", "sqlite:///runs.db", "postgresql+psycopg2://u:p@h/db", ""]
)
def test_good_addresses_and_empty_variables_pass(
    parameters: Parameters, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("PIPELINE_THREADS", "")
    assert main(["check"]) == 0
