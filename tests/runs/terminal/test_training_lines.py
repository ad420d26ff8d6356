"""The lines of a training: one per validation, and progress where nothing else was printed."""

import sys
from collections.abc import Callable

import pytest
import torch

from pipeline.core import limits
from pipeline.runs import terminal as module
from pipeline.runs.terminal import Throughput, duration, quantity, training_lines
from pipeline.train.params import LoopSettings
from tests.runs.terminal.test_live_line import Terminal

CPU = torch.device("cpu")
SETTINGS = LoopSettings.model_construct(steps=1000, batch_size=8, metric="valid/accuracy", patience=None)
Clock = Callable[[float], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a function that sets the time."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.delenv("CI", raising=False)
    return lambda value: now.__setitem__(0, value)


def output_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(", memory ")[0] for line in capsys.readouterr().out.splitlines()]


def train(clock: Clock, *, seconds: int, validate_every: int) -> None:
    """Report a step each second, with metrics every 5 steps and a validation every `validate_every` steps."""
    with training_lines(SETTINGS, 80, CPU, is_first=True) as lines:
        for step in range(1, seconds + 1):
            clock(float(step))
            metrics = {"train/objective": 1 / step, "train/accuracy": 0.5} if step % 5 == 0 else {}
            validation = {"valid/loss": 2 / step, "valid/accuracy": 0.25} if step % validate_every == 0 else {}
            lines.report(step, metrics | validation)


def test_without_a_terminal_there_is_a_line_for_each_validation_and_others_only_after_ten_silent_seconds(clock: Clock, capsys) -> None:
    train(clock, seconds=44, validate_every=25)
    assert output_of(capsys) == [
        "train: step 10 of 1000, epoch 1.0, 16 min left, loss 0.1000, 8 samples/s",
        "train: step 20 of 1000, epoch 2.0, 16 min left, loss 0.0500, 8 samples/s",
        "train: step 25 of 1000, epoch 2.5: train/objective 0.0400, valid/loss 0.0800, valid/accuracy 0.2500",
        "train: step 35 of 1000, epoch 3.5, 16 min left, loss 0.0286, valid/accuracy 0.2500, 8 samples/s",
    ]


def test_that_other_processes_use_the_cpus_is_said_once(clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(limits.OtherProcesses, "free_cpus", lambda *_: 1)
    for device, num_processes in ((CPU, 2), (torch.device("meta"), 1)):
        with training_lines(SETTINGS, 80, device, is_first=True, num_processes=num_processes) as lines:
            assert lines.others is None, "of several processes, each counts the others; a GPU needs few threads"
    train(clock, seconds=44, validate_every=50)
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "other processes" in line)
    assert "with PIPELINE_THREADS=1 a training is faster" in said


def test_under_ci_only_validations_are_printed(clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(sys, "stderr", Terminal())
    train(clock, seconds=44, validate_every=25)
    assert [line.split(":")[1] for line in output_of(capsys)] == [" step 25 of 1000, epoch 2.5"]
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(("is_first", "term"), [(False, "xterm"), (True, "dumb")])
def test_other_processes_and_dumb_terminals_get_no_live_line(clock: Clock, monkeypatch, is_first: bool, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with training_lines(SETTINGS, 80, CPU, is_first=is_first) as lines:
        clock(5.0)
        lines.report(1, {})
    assert sys.stderr.getvalue() == ""


def test_a_terminal_gets_a_live_line_twice_a_second_and_after_each_validation(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    with training_lines(SETTINGS, 80, CPU, is_first=True) as lines:
        for step in range(1, 11):
            clock(step / 10)
            lines.report(step, {})
        assert terminal.getvalue().count("train: step") == 2
        before = terminal.getvalue()
        lines.report(10, {"valid/loss": 1.0})
        validation, _, drawn = terminal.getvalue().removeprefix(before).partition("\n")
        assert validation.endswith("train: step 10 of 1000, epoch 1.0: valid/loss 1.0000")
        assert "train: step 10 of 1000, epoch 1.0, " in drawn


def test_a_long_validation_says_so(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with training_lines(SETTINGS, 80, CPU, is_first=True) as lines:
        lines.report(7, {})
        for second in range(1, 15):
            clock(float(second))
            lines.validating()
    assert output_of(capsys) == ["train: step 7 of 1000, validating, epoch 0.7"]


def test_the_first_step_and_earlier_runs_do_not_count_for_the_time_left() -> None:
    pace = Throughput()
    pace.mark(60.0, 501)  # the first step of this process took a minute
    assert (pace.steps_per_second(), pace.seconds_left(1000)) == (None, None)
    pace.mark(70.0, 601)
    assert (pace.steps_per_second(), pace.seconds_left(1001)) == (10.0, 40.0)


def test_the_rate_is_that_of_the_last_half_minute_and_the_time_left_that_of_the_mean() -> None:
    pace = Throughput()
    for second in range(101):
        pace.mark(float(second), 2 * second)
    for second in range(101, 151):
        pace.mark(float(second), 200 + second - 100)
    assert pace.steps_per_second() == pytest.approx(1.0)
    assert pace.seconds_left(500) == pytest.approx(250 / (250 / 150))


def test_with_patience_the_time_left_is_an_upper_bound(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with training_lines(SETTINGS.model_copy(update={"steps": 100, "patience": 1}), 80, CPU, is_first=True) as lines:
        for step in (1, 11):
            clock(float(step))
            lines.report(step, {})
    assert ", at most 1 min 29 s left, " in capsys.readouterr().out


def test_a_duration_has_at_most_two_units() -> None:
    texts = {0.2: "0 s", 59.6: "1 min 0 s", 599: "9 min 59 s", 600: "10 min", 5400: "1 h 30 min", 200_000: "2 d 7 h"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


def test_a_rate_has_three_digits() -> None:
    assert [quantity(value) for value in (12345.6, 99.95, 0.0251)] == ["12,346", "100", "0.0251"]


def test_on_a_gpu_the_memory_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 80_000_000_000

    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5_120_000_000 + device.index)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    assert module.memory(torch.device("cuda", 1)) == "GPU memory 5.1 of 80 GB"
