"""How many processes are started, and what follows when one of them has failed. `laws/test_processes.py` starts real ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from pipeline.core.environment import Environment
from pipeline.core.interruption import Interrupted
from pipeline.core.refusal import Refusal
from pipeline.tools import torchrun
from pipeline.train.group.processes import LOST, OUT_OF_MEMORY

Failure = tuple[int, int]
Run = Callable[..., int]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def have(count: int) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))

    return have


@pytest.mark.parametrize(
    ("count", "variables", "expected"),
    [
        (0, {"PIPELINE_PROCESSES": "auto", "PIPELINE_DEVICE": "auto"}, 1),
        (0, {"PIPELINE_PROCESSES": "3", "PIPELINE_DEVICE": "auto"}, 3),
        (4, {"PIPELINE_PROCESSES": "auto", "PIPELINE_DEVICE": "auto"}, 4),
        (4, {"PIPELINE_PROCESSES": "auto", "PIPELINE_DEVICE": "cpu"}, 1),
        (4, {"PIPELINE_PROCESSES": "auto", "PIPELINE_DEVICE": "cuda:1"}, 1),
        (4, {"PIPELINE_PROCESSES": "8", "PIPELINE_DEVICE": "cpu"}, 8),
    ],
)
def test_there_is_one_process_per_gpu_or_as_many_as_are_asked_for(
    gpus: Callable[[int], None], count: int, variables: dict[str, str], expected: int
) -> None:
    gpus(count)
    assert torchrun.num_processes(Environment(**variables)) == expected


def test_more_processes_than_gpus_are_refused(gpus: Callable[[int], None]) -> None:
    gpus(2)
    with pytest.raises(Refusal, match=r"PIPELINE_PROCESSES=3: this machine has 2 usable .*for each process: use this number, or `auto`"):
        torchrun.num_processes(Environment(PIPELINE_PROCESSES="3", PIPELINE_DEVICE="auto"))


def test_a_process_that_was_started_by_torchrun_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    assert torchrun.num_processes(Environment(PIPELINE_PROCESSES="4", MASTER_ADDR="127.0.0.1")) == 1


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function: `run((1, 9), (0, 0))` runs the launcher, whose processes fail and end as listed."""
    monkeypatch.chdir(tmp_path)

    def run(*ends: Failure, restarts: int = 3) -> int:
        remaining = iter(ends)

        def attempt(arguments: list[str], count: int, folder: Path) -> Failure:
            rank, code = next(remaining)
            log = folder / f"agent/attempt_0/{rank}/stderr.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(f"[rank{rank}]: line {number}\n" for number in range(100)))
            return rank, code

        monkeypatch.setattr(torchrun, "attempt", attempt)
        code = torchrun.run(["-m", "pipeline", "train"], 2, Environment(PIPELINE_RESTARTS=restarts))
        assert next(remaining, None) is None
        return code

    return run


def test_the_processes_are_started_again_as_often_as_allowed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run((1, -9), (1, 1), (0, 0), restarts=2) == 0
    said = capsys.readouterr()
    assert (
        "warning: the process of rank 1 was killed by SIGKILL: starting all processes again from the last checkpoint (1 of at most 2 times)"
        in said.out
    )
    assert "rank 1 failed with exit code 1: starting all processes again from the last checkpoint (2 of at most 2 times)" in said.out
    assert list(Path(".pipeline").iterdir()) == [], "no log is left"


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [(1, 1, "failed with exit code 1"), (-9, 137, "was killed by SIGKILL"), (LOST, LOST, "lost the other processes")],
)
def test_the_last_lines_of_the_first_process_that_failed_are_shown_at_the_end(run, capsys, code: int, expected: int, words: str) -> None:
    assert run((1, code), restarts=0) == expected
    *shown, last = capsys.readouterr().err.splitlines()
    assert shown == [f"rank 1: line {number}" for number in range(85, 100)]
    (folder,) = Path(".pipeline").resolve().iterdir()
    assert last == f"error: the process of rank 1 {words}; the output of all ranks but 0 is in {folder}"


def test_a_refusal_is_final_and_the_first_process_has_written_to_the_terminal_itself(run: Run, capsys) -> None:
    assert run((0, 2)) == 2
    assert capsys.readouterr().err == "", "rank 0 has said it"
    assert run((0, 1), restarts=0) == 1
    (last,) = capsys.readouterr().err.splitlines()
    assert last.startswith("error: the process of rank 0 failed with exit code 1")
    assert run((1, 2)) == 2
    assert "rank 1: line 99" in capsys.readouterr().err


def test_out_of_memory_is_no_failure(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*((1, OUT_OF_MEMORY),) * 5, (0, 0), restarts=0) == 0
    assert capsys.readouterr().out.count("train: starting all processes again, with the smaller micro-batch") == 5


def test_a_process_that_was_stopped_by_a_signal_stops_the_job(run: Run) -> None:
    with pytest.raises(Interrupted) as raised:
        run((1, 143))
    assert raised.value.exit_code == 143


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ({0: (10, 1), 1: (9, 1)}, (1, 1)),
        ({0: (9, LOST), 1: (9, 1)}, (1, 1)),
        ({0: (9, 1), 1: (9, -9)}, (1, -9)),
        ({0: (9, LOST), 1: (9, LOST)}, (0, LOST)),
        ({0: (9, -15), 1: (9, -9)}, (1, -9)),
        ({0: (9, -15), 1: (9, LOST)}, (1, LOST)),
    ],
)
def test_the_first_failure_is_the_cause_of_the_others(failures: dict[int, Failure], first: Failure) -> None:
    """By time, in seconds. In the same second, the agent stops the others by SIGTERM: those that still import torch die of it."""

    class Failed:
        def __init__(self, timestamp: int, exitcode: int) -> None:
            self.timestamp, self.exitcode = timestamp, exitcode

    found: dict[int, ProcessFailure] = {rank: Failed(*failure) for rank, failure in failures.items()}
    assert torchrun.first_failure(found) == first
