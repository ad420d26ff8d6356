"""Trainings in several processes that communicate by gloo. The processes are forks of one process, which has imported the pipeline once."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from pipeline.core.environment import Environment
from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.inference.networks import Model
from pipeline.inference.tensor_file import Tensors
from pipeline.train import beginning, training
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.metrics import Row
from pipeline.train.group import processes
from pipeline.train.group.processes import ALONE, Group, Several
from pipeline.train.group.sharding import local
from pipeline.train.params import TrainParams
from tests.forking import free_port
from tests.laws.ranks import of_rank
from tests.train.engine.building import HERE

TIMEOUT_S, JOINED_S = 600.0, 120.0
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


class Run(NamedTuple):
    """A training from its newest checkpoint in `folder`, or from its beginning, up to the step `until`, where it saves a checkpoint."""

    params: Mapping[str, Any]
    prepared: Prepared
    folder: Path
    until: int
    double: bool = False
    """True to train in float64."""


class End(NamedTuple):
    """The end of a run, as the first process has it."""

    state: Tensors
    exported: Tensors
    rows: list[Row]
    """The metrics of each report of the whole training."""
    share: float
    """Share of the values of all parameters that the process has kept."""


def train(size: int, *runs: Run) -> list[End]:
    """Run trainings one after another in `size` processes, and return their ends."""
    runs[0].folder.mkdir(exist_ok=True)
    meeting = runs[0].folder / f"meeting-{size}"
    children = [SERVER.Process(target=child, args=(rank, size, meeting, runs)) for rank in range(size)]
    for process in children:
        process.start()
    for process in children:
        process.join(TIMEOUT_S)
    codes = [process.exitcode for process in children]
    for process in children:
        process.kill()
    assert codes == [0] * size
    return [End(*torch.load(meeting.with_name(f"{meeting.name}-end-{number}"))) for number in range(len(runs))]


def child(rank: int, size: int, meeting: Path, runs: tuple[Run, ...]) -> None:
    """Join the other processes, and run all trainings. The first process writes their ends."""
    signal.alarm(int(TIMEOUT_S))
    torch.set_num_threads(1)
    group = ALONE
    if size > 1:
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timeout)
        group = Several(rank, size, store=dist.HashStore(), control=dist.new_group(backend="gloo", timeout=timeout))
    for number, run in enumerate(runs):
        end = trained(run, group)
        if rank == 0:
            torch.save(tuple(end), meeting.with_name(f"{meeting.name}-end-{number}"))
    group.wait()
    os._exit(0)


def joined(act: Callable[[Group, Path], None], folder: Path) -> tuple[list[int | None], list[str]]:
    """Let two processes join each other and call `act`. Return their exit codes, None for one that does not end in time, and their last notes."""
    port = free_port()
    children = [SERVER.Process(target=member, args=(rank, port, act, folder)) for rank in range(2)]
    for process in children:
        process.start()
    end_s = time.monotonic() + JOINED_S
    for process in children:
        process.join(max(0, end_s - time.monotonic()))
    codes = [process.exitcode for process in children]
    for process in children:
        process.kill()
    return codes, [path.read_text() if path.exists() else "" for path in (folder / "0", folder / "1")]


def member(rank: int, port: int, act: Callable[[Group, Path], None], folder: Path) -> None:
    os.environ |= of_rank(rank, 2, port) | {"PIPELINE_TIMEOUT_S": "20"}
    try:
        with processes.joined(Environment.read(), torch.device("cpu")) as group:
            act(group, folder)
    finally:
        note(rank, folder)


def note(rank: int, folder: Path) -> None:
    """Note whether this process can still communicate."""
    (folder / str(rank)).write_text("open" if dist.is_initialized() else "closed")


def trained(run: Run, group: Group) -> End:
    params = from_data(run.params, TrainParams, "test")
    run.folder.mkdir(exist_ok=True)
    beginning.Model = (lambda *arguments, **settings: Model(*arguments, **settings).double()) if run.double else Model  # type: ignore[assignment,misc,attr-defined]
    begun = training.Training.begin(params, run.prepared, HERE, Checkpoints(run.folder, kept=1, writes=group.writes), group=group)
    group.wait()  # until all of them have read the checkpoint
    for report in begun.reports():
        if report.step == run.until:
            break
    begun.save()
    begun.saver.wait()
    exported, _ = begun.exported()
    group.wait()
    saved = begun.saver.checkpoints.newest()
    assert saved
    kept = sum(local(parameter).numel() for parameter in begun.state.parameters)
    share = kept / sum(parameter.numel() for parameter in begun.state.parameters)
    return End(saved[0], {name: tensor.cpu().contiguous() for name, tensor in exported.items()}, begun.progress.rows, share)
