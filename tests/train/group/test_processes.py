"""How processes find and leave each other. `laws/test_processes.py` has those that train together, or say why they cannot."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.environment import Environment
from pipeline.core.interruption import Interrupted
from pipeline.core.refusal import Refusal
from pipeline.inference.machine import Machine
from pipeline.train.group.processes import LOST, Group
from tests.train.group import several


def test_lanes_and_graphs_that_processes_cannot_share_are_refused(train_params) -> None:
    settings = train_params({"train.batch_size": 24, "train.micro_batch_size": 24, "train.lanes": 4}).train
    settings.refuse_undivided(2)
    settings.refuse_undivided(1)
    with pytest.raises(Refusal, match=r"train\.lanes: 4 lanes cannot be shared equally .*change PIPELINE_PROCESSES, or write"):
        settings.refuse_undivided(3)
    graphs = settings.model_copy(update={"lanes": 1, "compile": "graphs"})
    graphs.refuse_undivided(1)
    with pytest.raises(Refusal, match=r"train\.compile: `graphs` works with one process only: write `train\.compile: default`"):
        graphs.refuse_undivided(2)


def test_one_gpu_is_not_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment(PIPELINE_DEVICE="cuda:0", LOCAL_WORLD_SIZE="2", PIPELINE_THREADS="1")
    with pytest.raises(Refusal, match="PIPELINE_DEVICE=cuda:0: is one GPU, but there are 2 processes: use `cuda` or `auto`"):
        Machine.set_up(environment)


def test_each_process_on_a_machine_takes_a_gpu_of_its_own_and_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr("pipeline.core.limits.usable_cpus", lambda: 8)
    monkeypatch.delenv("PIPELINE_THREADS")
    for local_rank, requested in ((3, "auto"), (2, "cuda")):
        machine = Machine.set_up(Environment(PIPELINE_DEVICE=requested, LOCAL_WORLD_SIZE=4, LOCAL_RANK=local_rank))
        assert (machine.device.index, machine.threads) == (local_rank, 2)
    assert chosen == [3, 2]


def leaves(group: Group, folder: Path) -> None:
    group.leave(group.problem(lambda: None))
    several.note(2, folder)  # the first process writes its results now


def stops(group: Group, folder: Path) -> None:
    raise Interrupted(signal.SIGTERM)


def is_refused(group: Group, folder: Path) -> None:
    if group.writes:
        raise Refusal("only the first process finds this")
    while not (folder / "0").exists():
        time.sleep(0.01)


def loses_the_other(group: Group, folder: Path) -> None:
    if not group.writes:
        os._exit(3)
    group.close()


def test_the_processes_end_their_communication_together_before_the_first_one_writes(tmp_path: Path) -> None:
    assert several.joined(leaves, tmp_path) == ([0, 0], ["closed", "closed"])
    assert (tmp_path / "2").read_text() == "closed"


@pytest.mark.parametrize(
    ("act", "codes", "notes"),
    [(stops, [1, 1], ["closed", "closed"]), (is_refused, [1, LOST], ["closed", ""]), (loses_the_other, [LOST, 3], ["", ""])],
)
def test_a_process_that_ends_otherwise_ends_its_communication_without_waiting(
    tmp_path: Path, act: Callable[[Group, Path], None], codes: list[int | None], notes: list[str]
) -> None:
    assert several.joined(act, tmp_path) == (codes, notes)
