"""`pipeline.fit`: what docs/notebook.md says, and what a child process is told."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline import fit
from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.tools import notebook
from tests.imports import TOP

CHILD = """\
#!{python}
import signal, sys, time
count = 0
def stop(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, stop)
print(sys.argv[1:], flush=True)
while not count:
    time.sleep(0.01)
time.sleep(0.2)
print("saved after", count, flush=True)
print("error: interrupted", flush=True)
sys.exit(130)
"""


def child(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `fit` run a script in place of Python."""
    path = folder / "python"
    path.write_text(text.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setattr(notebook.sys, "executable", str(path))


@pytest.fixture
def _heard() -> Iterator[None]:
    """A process in the background of a shell ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_an_interrupt_is_passed_on_once_and_raised_after_the_child_has_saved(tmp_path: Path, monkeypatch, capsys) -> None:
    child(tmp_path, CHILD, monkeypatch)

    def press() -> None:
        while "repro" not in (printed := capsys.readouterr().out):
            time.sleep(0.01)
        seen.append(printed)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    seen: list[str] = []
    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fit(
            {
                "optimizer.learning_rate": np.float64(0.1),
                "model.weights": Path("a b.safetensors"),
                "augment": None,
                "train.epochs": np.int64(2),
                "model.dropout": np.float32(0.003),
            }
        )
    thread.join()
    assert "saved after 1\n" in capsys.readouterr().out
    for assignment in (
        "optimizer.learning_rate=0.1",
        'model.weights="a b.safetensors"',
        "augment=null",
        "train.epochs=2",
        "model.dropout=0.003",
    ):
        assert repr(assignment) in seen[0]


ALONE = """\
#!{python}
import os, signal, sys
from pathlib import Path
from pipeline.tools import checkout_lock, supervision
signal.alarm(20)
with checkout_lock.alone(Path()) as lock:
    is_free = ("flock", "--nonblock", checkout_lock.COMMAND_LOCK, "true")
    shares = ("flock", "--nonblock", str(lock))  # succeeds for the file descriptor that has the lock
    print("error:", [supervision.run_all([command], os.environ, top=Path(), lock=lock) for command in (is_free, shares)])
sys.exit(1)
"""


def test_its_child_and_what_that_starts_share_its_lock(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").touch()
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    child(tmp_path, ALONE, monkeypatch)
    with pytest.raises(Refusal, match=r"^\[1, 0\]$"):
        fit()


def test_what_a_failed_child_has_said_is_raised(tmp_path: Path, monkeypatch) -> None:
    child(tmp_path, "#!/bin/sh\necho 'error: params.yaml:14: one' >&2\necho ERROR: dvc\necho error: two\nexit 2\n", monkeypatch)
    with pytest.raises(Refusal, match=r"^params\.yaml:14: one\ntwo$"):
        fit()
    child(tmp_path, "#!/bin/sh\nexit 7\n", monkeypatch)
    with pytest.raises(Refusal, match="exit code 7"):
        fit()
    with pytest.raises(Refusal, match=r"^train\.steps: a value of the type object cannot be written"):
        fit({"train.steps": object()})


def test_another_folder_than_a_checkout_is_refused_with_the_one_to_change_to(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        Refusal, match=re.escape(f"{tmp_path}: `fit` trains in the current folder") + ".*" + re.escape(f"os.chdir('{TOP}')")
    ):
        fit()


def test_a_result_finds_its_model_from_another_folder_unless_it_was_replaced(tmp_path: Path, monkeypatch) -> None:
    model, loaded = tmp_path / "models/model.safetensors", []
    files.write_text(model, "one")
    result = notebook.Result({}, [], {}, "run-000001", files.digest(model), tmp_path)
    monkeypatch.setattr(notebook, "tool", lambda _: SimpleNamespace(load_model=loaded.append))
    assert result.model is None
    assert loaded == [model]
    files.write_text(model, "another")
    with pytest.raises(Refusal, match=re.escape(f"os.chdir('{tmp_path}')")):
        _ = replace(result).model
