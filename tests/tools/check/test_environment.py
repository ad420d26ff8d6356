"""`check` and the stages refuse wrong environment variables with the remedy, and paths that SQLite's URI, DVC or PATH cannot hold."""

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from tests import project
from tests.imports import TOP
from tests.repository import variables
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
DEVICES = "should be `auto`, `cpu`, `cuda` or `cuda:N`"
BAD = {
    "PIPELINE_DEVICE": ("gpu", f"{DEVICES}, not 'gpu'"),
    "PIPELINE_THREADS": ("two", "should be a valid integer, not 'two'"),
    "PIPELINE_WORKERS": ("9" * 30, "should be less than or equal to 1024"),
    "PIPELINE_CLUSTER": ("host:8786", "is not the address of a scheduler: write tcp://HOST:PORT, or unset the variable"),
    "PIPELINE_CHECKPOINT_EVERY_S": ("nan", "should be greater than or equal to 0, not 'nan'"),
    "PIPELINE_CHECKPOINTS_KEPT": ("0", "should be greater than 0, not '0'"),
    "PIPELINE_TRACKING": ("maybe", "should be a valid boolean, not 'maybe'"),
    "PIPELINE_PROCESSES": ("many", "should be `auto` or a valid integer, not 'many'"),
    "PIPELINE_RESTARTS": ("-1", "should be greater than or equal to 0, not '-1'"),
    "PIPELINE_TIMEOUT_S": ("0", "should be greater than 0, not '0'"),
    "MLFLOW_TRACKING_URI": ("nonsense", "is not a tracking address: write http://HOST:PORT or sqlite:///PATH, or unset the variable"),
    "MLFLOW_RUN_CONTEXT": ('{"trial": 1}', 'should be tags as JSON, such as {"team": "vision"}, not 1'),
}
"""For each variable a value, and how its message begins."""
NO_ADDRESSES = (
    *("htp://user:hunter2@host", "http://user:hunter2@", "http://user:hunter2@host:port", "http://user:hunter2@host:99999"),
    *("http://[::1", "http://host\nname", "file:///runs", "./mlruns", "sqlite://", "postgresql://", "host:5000"),
)
ADDRESSES = ("http://host:5000", "https://user:p%40ss@host/prefix", "sqlite:///runs.db", "postgresql+psycopg2://u:p@h/db", "")


def test_all_bad_variables_are_named_at_once_with_the_remedy(parameters, refused, monkeypatch) -> None:
    for name, (value, _) in BAD.items():
        monkeypatch.setenv(name, value)
    for verb in ("check", "train"):
        for said, (name, (_, words)) in zip(refused(verb), BAD.items(), strict=True):
            assert said.startswith(f"{name}: {words}")


def test_variables_that_would_have_no_effect_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"MLFLOW_TRACKING_URI": "http://host:5000", "MLFLOW_WORKSPACE": "team", "MLFLOW_ENABLE_WORKSPACES": "true"}
    for given, name in (
        ({"MLFLOW_EXPERIMENT_ID": "1"}, "MLFLOW_EXPERIMENT_ID"),
        ({"MLFLOW_EXPERIMENT_ID": "1", "PIPELINE_TRACKING": "false"}, None),
        ({"MLFLOW_WORKSPACE": "team"}, "MLFLOW_WORKSPACE"),
        ({"MLFLOW_ENABLE_WORKSPACES": "true"}, "MLFLOW_ENABLE_WORKSPACES"),
        (server, None),
    ):
        with monkeypatch.context() as patch:
            for variable, value in given.items():
                patch.setenv(variable, value)
            with pytest.raises(Refusal, match=f"^{name}: .*unset ") if name else nullcontext():
                Environment.read()


def test_an_address_is_accepted_or_refused_without_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ADDRESSES:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert Environment.read().mlflow_tracking_uri == (address or None)
    for address in NO_ADDRESSES:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(Refusal, match=r"^MLFLOW_TRACKING_URI: is not a tracking address") as refused:
            Environment.read()
        assert "hunter2" not in str(refused.value)


def test_a_gpu_that_is_not_there_is_refused(parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for verb, device in {"check": "cuda", "train": "cuda:1"}.items():
        monkeypatch.setenv("PIPELINE_DEVICE", device)
        [said] = refused(verb)
        assert said.startswith(f"PIPELINE_DEVICE={device}: no CUDA GPU can be used: this machine has no NVIDIA GPU: use `auto` or `cpu`")


def test_a_precision_that_a_gpu_cannot_do_is_refused_at_its_line(parameters: Parameters, refused: Refused, monkeypatch) -> None:
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


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    project.make(folder)
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(("name", "address"), [("what?", ""), ("100%", "sqlite:///runs.db")])
def test_a_path_that_the_address_of_the_store_cannot_hold_is_refused(refused, tmp_path, monkeypatch, name: str, address: str) -> None:
    enter(tmp_path / name, monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    [message] = refused("check")
    assert "`?` or `%`" in message
    assert "move the checkout" in message


@pytest.mark.parametrize("name", ["a{b", "a}b"])
def test_a_curly_brace_with_which_dvc_fails_after_a_stage_is_refused(refused: Refused, tmp_path: Path, monkeypatch, name: str) -> None:
    enter(tmp_path / name, monkeypatch)
    [message] = refused("check")
    assert "curly brace" in message


@pytest.mark.parametrize("name", ["data", "models"])
def test_a_link_to_a_folder_outside_is_refused_in_a_git_repository(refused: Refused, tmp_path: Path, monkeypatch, name: str) -> None:
    enter(tmp_path / "checkout", monkeypatch)
    Path(".git").mkdir()
    (tmp_path / "large").mkdir()
    if Path(name).exists():
        Path(name).rename(tmp_path / "large/before")
    Path(name).symlink_to(tmp_path / "large")
    assert any(f"{name} is a link to {tmp_path / 'large'}, and DVC refuses results outside" in message for message in refused("check"))


def test_make_refuses_a_colon_which_path_cannot_hold(tmp_path: Path) -> None:
    folder = tmp_path / "one:two"
    folder.mkdir()
    (folder / "Makefile").write_bytes((TOP / "Makefile").read_bytes())
    done = subprocess.run(
        ["make", "--no-print-directory", "-o", ".venv/.locked", "repro"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=variables(),
    )
    assert done.returncode == 2
    assert "one:two: this path has a colon" in done.stderr
    assert done.stdout == ""
