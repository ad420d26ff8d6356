"""Processes that cannot train together say why, within seconds. `laws/test_processes.py` has those that can."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.environment import Environment
from pipeline.core.interruption import Interrupted
from pipeline.core.refusal import Refusal
from pipeline.inference.machine import Machine
from pipeline.train.group.processes import LOST, Group
from tests import project
from tests.laws.ranks import Server, free_port, of_rank
from tests.train.group import several

REFUSED, UNAVAILABLE = 2, 69
SOON_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ranks") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def prepared(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project.make(tmp_path_factory.mktemp("prepared") / "project")
    server.train(folder, verb="prepare")
    return folder / "data/prepared"


def refusal(server: Server, folders: list[Path], variables: list[dict[str, str]], code: int = REFUSED) -> str:
    """Start two processes with variables and a folder each. Return what rank 0 prints. Both must end in time, rank 0 with `code`."""
    port = free_port()
    pids = [
        server.fork(folder, rank, of_rank(rank, 2, port) | more) for rank, (folder, more) in enumerate(zip(folders, variables, strict=True))
    ]
    codes = server.wait(*pids, within_s=SOON_S)
    output = (folders[0] / "rank-0.log").read_text()
    assert codes in ([code, code], [code, LOST]), output
    return output.splitlines()[-1]


def project_with(folder: Path, prepared: Path, **changes: Any) -> Path:
    project.make(folder, {f"train.{name}": value for name, value in changes.items()})
    (folder / "data/prepared").symlink_to(prepared)
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rendezvous_that_no_other_process_answers_may_be_tried_again(server: Server, tmp_path: Path, rank: int) -> None:
    port, folder = free_port(), project.make(tmp_path / "project")
    pid = server.fork(folder, rank, of_rank(rank, 2, port) | {"PIPELINE_TIMEOUT_S": "1"})
    assert server.wait(pid, within_s=SOON_S) == [UNAVAILABLE]
    *_, said = (folder / f"rank-{rank}.log").read_text().splitlines()  # torch says something of rank 1, too
    assert said.startswith(f"error: MASTER_ADDR: the 2 processes did not meet at 127.0.0.1:{port} within 1 s (")
    assert said.endswith("): start all of them, and check this address, the port and the firewall")


def test_one_process_of_a_machine_verifies_the_data_for_all(server: Server, prepared: Path, tmp_path: Path) -> None:
    folder = project.make(tmp_path / "project")
    shutil.copytree(prepared, folder / "data/prepared")
    path = folder / "data/prepared/train-inputs.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    said = refusal(server, [folder] * 2, [{}, {}])
    assert said == "error: data/prepared/train-inputs.npy: does not match its digest in spec.json: run `dvc repro -f prepare`"


def test_what_two_processes_cannot_share_is_refused_at_its_line(server: Server, prepared: Path, tmp_path: Path) -> None:
    folder = project_with(tmp_path / "project", prepared, batch_size=15, micro_batch_size=15)
    said = refusal(server, [folder] * 2, [{}, {}])
    assert said.startswith("error: params.yaml:")
    assert said.endswith(
        "train.batch_size: 15 samples cannot be shared equally by 2 processes: write a multiple of 2, or change PIPELINE_PROCESSES"
    )


def test_lanes_and_graphs_that_processes_cannot_share_are_refused(train_params) -> None:
    settings = train_params({"train.batch_size": 24, "train.micro_batch_size": 24, "train.lanes": 4}).train
    settings.refuse_undivided(2)
    settings.refuse_undivided(1)
    with pytest.raises(
        Refusal, match=r"train\.lanes: 4 lanes cannot be shared equally by 3 processes: change PIPELINE_PROCESSES, or write"
    ):
        settings.refuse_undivided(3)
    graphs = settings.model_copy(update={"lanes": 1, "compile": "graphs"})
    graphs.refuse_undivided(1)
    with pytest.raises(Refusal, match=r"train\.compile: `graphs` works with one process only: write `train\.compile: default`"):
        graphs.refuse_undivided(2)


def test_processes_with_different_inputs_are_refused(server: Server, prepared: Path, tmp_path: Path) -> None:
    same, other = (project_with(tmp_path / name, prepared) for name in ("same", "other"))
    project.write_params(other, {"train.steps": 30})
    said = refusal(server, [same, other], [{}, {}])
    assert said.startswith(
        "error: the processes of rank 0 and rank 1 differ in train.steps: all processes need the same commit, parameters, data"
    )


def test_processes_with_different_work_folders_are_refused(server: Server, prepared: Path, tmp_path: Path) -> None:
    """Only one of them has the checkpoint."""
    folder, other = (project_with(tmp_path / name, prepared, lanes=2) for name in ("folder", "other"))
    assert server.wait(*server.start(folder, 2, fault=("stop signal", 8))) == [143, 143]
    said = refusal(server, [folder, other], [{}, {}], UNAVAILABLE)
    assert said.startswith("error: the processes of rank 0 and rank 1 differ in checkpoint: ")


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
