import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.interruption import Interrupted
from pipeline.runs import events, journal, run
from pipeline.runs.events import Cursor, is_pending
from pipeline.runs.journal import RunInfo
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.address import Address
from tests.runs import tiny


def last_status(environment: Environment) -> str:
    return str(list(events.read(journal.journals(environment.root)[-1] / events.EVENTS))[-1].fields["status"])


@pytest.fixture
def trained(without_mirror: Environment, tmp_path: Path) -> Path:
    """Return the journal of a training that has ended."""
    with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo()) as training:
        pass
    assert training.folder
    return training.folder


@pytest.mark.parametrize(
    ("error", "variables", "status", "waits"),
    [
        (None, {}, "FINISHED", True),
        (None, {"PIPELINE_SUMMARY_FOLLOWS": "true"}, "FINISHED", False),
        (None, {"DVC_STAGE": "train"}, "FINISHED", False),
        (SystemExit(), {"DVC_STAGE": "train"}, "FAILED", True),
        (KeyboardInterrupt(), {}, "KILLED", False),
        (Interrupted(signal.SIGTERM), {}, "KILLED", False),
    ],
)
def test_the_end_of_a_stage_sets_the_status_and_waits_for_mlflow_only_if_nothing_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, variables: dict[str, str], status: str, waits: bool
) -> None:
    waited = MagicMock()
    monkeypatch.setattr(mirror, "start", lambda *_: MagicMock(subprocess.Popen))
    monkeypatch.setattr(mirror, "wait", waited)
    environment = Environment.model_validate({"DVC_ROOT": tmp_path, **variables})
    with (
        pytest.raises(type(error)) if error else nullcontext(),
        run.training(environment, resume_file=tmp_path / "run", info=RunInfo()),
    ):
        if error:
            raise error
    assert (last_status(environment), waited.called) == (status, waits)


def test_a_resumed_training_reopens_its_journal_and_a_repeated_one_creates_another(without_mirror, trained: Path, tmp_path: Path) -> None:
    for name, num_journals in (("run", 1), ("another", 2)):
        with run.training(without_mirror, resume_file=tmp_path / name, info=RunInfo()):
            pass
        assert len(journal.journals(tmp_path)) == num_journals
    assert last_status(without_mirror) == "FINISHED"


def test_a_training_killed_before_its_first_line_begins_its_journal_again(without_mirror, trained: Path, tmp_path: Path) -> None:
    (trained / events.EVENTS).write_bytes(b'{"kind":"start","time_')
    assert journal.journals(tmp_path) == []
    assert not is_pending(trained)
    with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo(name="again")) as again:
        assert again.folder == trained
    begin = next(events.read(trained / events.EVENTS))
    assert (begin.kind, begin.fields["name"]) == ("start", "again")


def test_an_addition_finds_the_journal_of_its_model(without_mirror: Environment, tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "model.safetensors")
    with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo()) as training:
        training.model(model)
    with run.addition(without_mirror, model, info=RunInfo()) as same:
        assert same.folder == training.folder
        with run.addition(without_mirror, model, info=RunInfo()) as simultaneous:  # another evaluation at the same time waits for none
            assert simultaneous.folder != training.folder
    tiny.write(model, seed=1)
    with run.addition(without_mirror, model, info=RunInfo()) as other:
        assert other.folder not in {training.folder, simultaneous.folder}


def test_a_journal_names_its_experiment(tmp_path: Path, without_mirror: Environment) -> None:
    environment = without_mirror.model_copy(update={"mlflow_experiment_name": "mine"})
    model = tiny.write(tmp_path / "model.safetensors")
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo()), run.addition(environment, model, info=RunInfo()):
        pass
    begins = [next(events.read(folder / events.EVENTS)) for folder in journal.journals(tmp_path)]
    assert [begin.fields["experiment"] for begin in begins] == ["mine", "mine"]


def test_the_end_of_a_stage_reports_what_mlflow_does_not_have_and_which_run_has_the_journal(
    without_mirror: Environment, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / events.SYSTEM).write_text('{"kind":"metrics","time_ms":1,"step":0,"values":{}}\n')
    log, environment = trained / mirror.LOG, without_mirror.model_copy(update={"mlflow_run_id": "another"})
    mirror.report(trained, without_mirror)
    log.write_text("tracking: an earlier one\ntracking: the token is expired\nTraceback\n")
    mirror.report(trained, environment)
    offsets = {name: (trained / name).stat().st_size for name in (events.EVENTS, events.SYSTEM)}
    Cursor("this", offsets=offsets, has_ended=True).save(trained, Address.of(without_mirror).key)
    mirror.report(trained, environment)
    without_log, unused, with_log, used = capsys.readouterr().err.splitlines()
    assert without_log.startswith(f"tracking: run {trained.name} is not completely in MLflow yet: `python -m pipeline sync` delivers")
    assert without_log.endswith(f"The last error in {log}: none")
    assert with_log.endswith(f"The last error in {log}: the token is expired")
    for line, run_id in ((unused, "none yet"), (used, "this")):
        assert line.startswith("tracking: MLFLOW_RUN_ID is not used")
        assert line.endswith(f"that of {trained.name} is {run_id}")


def test_a_run_that_one_store_has_is_not_sent_to_another(without_mirror: Environment, trained: Path, capsys) -> None:
    offsets = {events.EVENTS: (trained / events.EVENTS).stat().st_size, events.SYSTEM: 0}
    Cursor(run_id="there", offsets=offsets, has_ended=True).save(trained, "another store")
    assert mirror.sync(without_mirror) == 0
    assert "every run of this checkout is in an MLflow store, and is not sent to another one" in capsys.readouterr().out


def test_an_addition_waits_for_a_lock_that_is_held_for_a_moment(without_mirror: Environment, tmp_path: Path, monkeypatch) -> None:
    model = tiny.write(tmp_path / "model.safetensors")
    with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo()) as training:
        training.model(model)
    assert training.folder
    lock = ExitStack()
    assert lock.enter_context(files.locked(training.folder / journal.WRITER_LOCK, wait=False))
    monkeypatch.setattr(time, "sleep", lambda _: lock.close())
    with run.addition(without_mirror, model, info=RunInfo()) as addition:
        assert addition.folder == training.folder


def test_a_broken_pipe_as_stderr_stops_nothing(without_mirror: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (BrokenPipeError, ValueError):
        monkeypatch.setattr("sys.stderr", MagicMock(write=MagicMock(side_effect=error)))
        with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo()) as reports:
            reports.artifact(tmp_path / "absent")
    assert last_status(without_mirror) == "FINISHED"


def test_the_wait_for_a_mirror_ends_at_its_limit_or_with_the_mirror_or_the_delivery(without_mirror: Environment, trained: Path) -> None:
    def waited_s(limit_s: float, *folders: Path) -> float:
        begin_s = time.monotonic()
        mirror.wait(without_mirror.model_copy(update={"tracking_wait_s": limit_s}), *folders)
        return time.monotonic() - begin_s

    assert waited_s(60) < 30
    with files.locked(trained / journal.MIRROR_LOCK, wait=False):
        assert min(waited_s(0.3), waited_s(0.3, trained)) > 0.3
        with files.locked(trained / journal.WRITER_LOCK, wait=False):
            assert waited_s(60) < 30, "the stage that writes it waits itself"
        offsets = {events.EVENTS: (trained / events.EVENTS).stat().st_size, events.SYSTEM: 0}
        Cursor("a run", offsets=offsets, has_ended=True).save(trained, "a store")
        assert waited_s(60) < 30


def test_a_stage_leaves_no_mirror_and_does_not_wait_for_one_that_no_signal_ends(
    without_mirror: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = MagicMock(subprocess.Popen, poll=MagicMock(return_value=None))
    hanging.wait.side_effect = subprocess.TimeoutExpired("mirror", 5)
    monkeypatch.setattr(mirror, "start", lambda *_: hanging)
    environment = without_mirror.model_copy(update={"tracking_mirror": True, "tracking_wait_s": 0.0})
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo()):
        pass
    hanging.kill.assert_called_once()


def test_broken_tracking_is_reported_once_and_stops_nothing(without_mirror: Environment, tmp_path: Path, capsys) -> None:
    (tmp_path / ".pipeline").write_text("a file where a folder should be")
    with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo()) as reports:
        reports.metrics(1, {"train/loss": 1.0})
        reports.model(tmp_path / "absent")
    assert capsys.readouterr().err.count("tracking:") == 1


def test_a_full_disk_and_a_missing_file_stop_nothing(without_mirror: Environment, tmp_path: Path, monkeypatch, capsys) -> None:
    def full(descriptor: int, line: bytes) -> int:
        raise OSError(28, "No space left on device")

    with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo()) as reports:
        reports.artifact(tmp_path / "absent.png")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            reports.metrics(1, {"train/loss": 1.0})
            reports.metrics(2, {"train/loss": 1.0})
            reports.describe("a run")
        reports.metrics(2, {"train/loss": 1.0})  # was not recorded, so it is no repetition
    assert capsys.readouterr().err.count("tracking:") == 1
    recorded = [event.fields for event in events.read(journal.journals(tmp_path)[0] / events.EVENTS)]
    assert [fields["kind"] for fields in recorded] == ["start", "gap", "metrics", "end"]
    assert recorded[1]["missing"].startswith("metrics of 2 steps from 1 to 2, description: ")
    assert recorded[2]["step"] == 2


def test_tracking_can_be_switched_off(tmp_path: Path) -> None:
    environment = Environment.model_validate({"DVC_ROOT": tmp_path, "PIPELINE_TRACKING": False})
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo()) as reports:
        reports.metrics(1, {"train/loss": 1.0})
    assert reports.folder is None
    assert list(tmp_path.iterdir()) == []


def test_without_mlflow_the_journal_is_kept(without_mirror: Environment, trained: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert mirror.sync(without_mirror) == 1
    assert f"{trained.name}: not delivered: ModuleNotFoundError: import of mlflow halted" in capsys.readouterr().err
    assert is_pending(trained)


def test_a_metric_costs_the_loop_a_few_calls_and_no_wait_for_a_disk(without_mirror: Environment, tmp_path: Path) -> None:
    """Counted, since a clock says more about the machine: 0.011 ms a report of four metrics on an idle one (docs/reliability.md)."""
    calls: Counter[str] = Counter()

    def count(_: object, event: str, function: Any) -> None:
        if event == "c_call":
            calls[function.__qualname__] += 1
        elif event == "call":
            calls["of Python"] += 1

    with run.training(without_mirror, resume_file=tmp_path / "run", info=RunInfo()) as reports:
        for step in range(100):
            if step:
                sys.setprofile(count)
            reports.metrics(step, {f"train/{name}": 0.5 for name in "abcd"})
            sys.setprofile(None)
    assert calls.keys().isdisjoint({"fsync", "fdatasync", "flush", "open", "sleep", "stat"})
    assert calls["write"] <= 99
    assert calls.total() <= 99 * 60, calls


def test_mirror_and_copy_of_the_model_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "start", MagicMock(side_effect=AssertionError))
    environment = Environment.model_validate(
        {"DVC_ROOT": tmp_path, "PIPELINE_TRACKING_MIRROR": "false", "PIPELINE_TRACKING_MODEL": "false"}
    )
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo()) as reports:
        reports.metrics(1, {"train/loss": 1.0})
        reports.model(tiny.write(tmp_path / "model.safetensors"))
    kinds = [event.kind for event in events.read(journal.journals(tmp_path)[0] / events.EVENTS)]
    assert kinds == ["start", "metrics", "end"]


def test_a_stage_that_is_followed_leaves_a_mirror_for_which_others_can_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment.model_validate({"DVC_ROOT": tmp_path, "DVC_STAGE": "train"})
    slow = "import fcntl, sys, time; time.sleep(0.3); lock = open(sys.argv[1], 'a'); fcntl.flock(lock, fcntl.LOCK_EX); time.sleep(60)"
    monkeypatch.setattr(mirror, "command", lambda folder: [sys.executable, "-c", slow, str(folder / journal.MIRROR_LOCK)])
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo()):
        pass
    process = mirror.STARTED[-1]
    try:
        assert journal.is_mirrored(journal.journals(tmp_path)[0])
    finally:
        process.kill()
        process.wait()
