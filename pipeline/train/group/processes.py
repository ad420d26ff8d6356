"""The processes that train together, one per GPU. torch.distributed.run starts them; they meet at the address in its variables."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pipeline.core import files, identity
from pipeline.core.environment import Environment
from pipeline.core.identity import ChangedInPlace
from pipeline.core.interruption import Interrupted, Interruption
from pipeline.core.refusal import Refusal, Unavailable, listed
from pipeline.core.untrusted import reason

OUT_OF_MEMORY, LOST = 75, 76
"""Exit codes: after the first, all processes are started again and use the smaller micro-batch that the process has recorded; the second is
that of a process that lost the others."""
FAILED = "the first process has failed"
MOST_SHOWN = 5
RENDEZVOUS_S = 60.0
"""The longest time that the processes wait for each other at the start. torch.distributed.run starts all of them at the same time."""


class Left(BaseException):  # like Interrupted: `except Exception` must not catch it
    """Raised in all processes but the first when nothing remains to be done that needs them."""


@dataclass
class Group:
    """The processes that train together, and the place of this process among them: `rank` counts from 0 to `size` - 1.

    `local_size` of them run on this machine, where `local_rank` counts from 0. This class is the group of a process that trains alone: its
    methods do what is to be done without waiting for another process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    holds_shards: bool = False
    """True if the weights are divided among the processes, so that a checkpoint needs all of them."""

    @property
    def writes(self) -> bool:
        """Return True for the first process, of rank 0, which alone writes files and reports."""
        return self.rank == 0

    @property
    def reads_all(self) -> bool:
        """Return True for the process that reads and verifies all data for those on its machine. The others meet it at `refuse_different`."""
        return self.local_rank == 0

    def fingerprint(self, lanes: int) -> dict[str, int]:
        """Return what of this group decides bits: the number of several processes, if `train.lanes` is 1."""
        return {"processes": self.size} if self.size > 1 and lanes == 1 else {}

    def once(self, describe: Callable[[], str]) -> str:
        """Return what `describe` returns. It writes a file, so only the first process calls it."""
        return describe() if self.writes else f"as rank {self.rank} found too"

    def refuse_different(self, name: str, record: Mapping[str, Any], error: type[Refusal] = Refusal) -> None:
        """Raise `error` in all processes unless the `record` called `name` is equal in all of them."""

    def sweep(self, folder: Path, newest_checkpoint: Callable[[], object]) -> None:  # noqa: ARG002
        """Remove the drafts of interrupted saves from `folder`. The first of several processes does it, and calls `newest_checkpoint`, which
        moves damaged checkpoints aside, before the others look for the newest.
        """
        files.sweep(folder)

    def gathered(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, (size * n, ...), in the order of their ranks. `rows` (n, ...) are those of this process."""
        return rows

    def in_turn(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, (size * n, ...): the first row of each, then the second of each, and so on."""
        return self.gathered(rows).view(self.size, *rows.shape).transpose(0, 1).flatten(0, 1)

    def wait(self) -> None:
        """Wait until all processes have called this method."""

    def close(self) -> None:
        """Wait until all processes have called this method, and end their communication. Each then goes on alone."""

    def pause(self, interruption: Interruption) -> None:
        """Raise Interrupted if a signal has arrived in one of the processes: in all of them, at the same call.

        With several processes, a call gives the answer for the call before, so that no process waits until the others have come to it.
        """
        interruption.pause()

    def agreed(self, *, save: bool) -> bool:
        """Return `save`, or with several processes what the first one has passed, some calls before: the same in all of them."""
        return save

    def restart(self, step: int, micro_batch_size: int) -> None:
        """End this process, if it is one of several, with the exit code OUT_OF_MEMORY: none of them can repeat its part of `step` alone.

        All must continue from a checkpoint, with micro-batches of at most `micro_batch_size` samples from `step` on.
        """

    def before_restart(self, record: Callable[[Mapping[str, int]], None]) -> None:
        """Let `restart` call `record` with the change of the micro-batch size."""

    def problem(self, act: Callable[[], None]) -> Exception | None:
        """Call `act` in the first process. Return the exception that it raises, if it does, in all processes, until `leave` handles it."""
        try:
            act()
        except Exception as error:
            return error
        return None

    def leave(self, problem: Exception | None) -> None:
        """Leave what remains to the first process: close the group, and end the others. Raise `problem` if there is one."""
        if problem:
            raise problem


@dataclass(kw_only=True)
class Several(Group):
    """The group of a process that trains together with others. They exchange records by `store`, and what they do next by `control`, a gloo group
    of its own, so that nobody waits for a GPU.
    """

    store: Store
    control: dist.ProcessGroup
    sent: tuple[Tensor, dist.Work] | None = None
    """The flags of the last call of `exchanged`, and the operation that finds out which of them any process has raised."""
    is_save_due: bool = False
    saves_next: bool = False
    is_closed: bool = False
    record_change: Callable[[Mapping[str, int]], None] = field(default=lambda _: None)

    def refuse_different(self, name: str, record: Mapping[str, Any], error: type[Refusal] = Refusal) -> None:
        self.store.set(f"{name}/{self.rank}", json.dumps(record))
        first, *others = (json.loads(self.store.get(f"{name}/{rank}")) for rank in range(self.size))
        for rank, other in enumerate(others, 1):
            if different := identity.differences(first, other):
                raise error(
                    f"the processes of rank 0 and rank {rank} differ in {listed([key for key, _ in different], MOST_SHOWN)}: "
                    "all processes need the same commit, parameters, data, number of threads (PIPELINE_THREADS), kind of GPU or CPU, and folder .pipeline/work"
                )

    def sweep(self, folder: Path, newest_checkpoint: Callable[[], object]) -> None:
        if self.writes:
            files.sweep(folder)
            newest_checkpoint()
        self.wait()

    def gathered(self, rows: Tensor) -> Tensor:
        found = rows.new_empty((self.size * len(rows), *rows.shape[1:]))
        dist.all_gather_into_tensor(found, rows.contiguous())
        return found

    def wait(self) -> None:
        dist.barrier(group=self.control)

    def close(self) -> None:
        """End it before the first process writes results or waits for MLflow: to destroy a group of NCCL waits for all processes to do so."""
        if not self.is_closed:
            self.wait()
            self.is_closed = True
            dist.destroy_process_group()

    def abort(self) -> None:
        """End the communication, unless the group is closed, without waiting for the others: they may have ended, or go on for long."""
        if not self.is_closed:
            self.is_closed = True
            distributed_c10d._abort_process_group()

    def pause(self, interruption: Interruption) -> None:
        stopped, saved = self.exchanged(interruption.number is not None, self.is_save_due)
        self.is_save_due, self.saves_next = False, self.saves_next or saved
        if stopped:
            raise Interrupted(interruption.number or signal.SIGTERM)

    def exchanged(self, *flags: bool) -> list[bool]:
        """Send `flags`, and return for each whether any process sent True at its call before this one. This wait is short: that call is past."""
        found = [False] * len(flags)
        if self.sent:
            tensor, work = self.sent
            work.wait()
            found = [bool(flag) for flag in tensor.tolist()]
        tensor = torch.tensor([int(flag) for flag in flags])
        sent = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control, async_op=True)
        assert sent
        self.sent = tensor, sent
        return found

    def agreed(self, *, save: bool) -> bool:
        self.is_save_due = save and self.writes
        saves, self.saves_next = self.saves_next, False
        return saves

    def before_restart(self, record: Callable[[Mapping[str, int]], None]) -> None:
        self.record_change = record

    def restart(self, step: int, micro_batch_size: int) -> None:
        self.record_change({"step": step, "micro_batch_size": micro_batch_size})
        print(f"train: rank {self.rank}: out of memory at step {step}", file=sys.stderr, flush=True)
        os._exit(OUT_OF_MEMORY)  # not by an exception: the other processes wait for this one

    def problem(self, act: Callable[[], None]) -> Exception | None:
        """Do as in one process. The others get a Refusal if they must save together with the first process, and a RuntimeError after any
        other exception.

        In a closed group, a Refusal is raised at once if the weights are divided: no checkpoint can be saved without the others.
        """
        found = super().problem(act) if self.writes else None
        saves = isinstance(found, Refusal) and not isinstance(found, ChangedInPlace)
        if found and saves and self.is_closed and self.holds_shards:
            raise found
        if self.is_closed:
            return found
        told = torch.tensor([found is not None, saves], dtype=torch.int)
        dist.broadcast(told, 0, group=self.control)
        has_failed, saves = map(bool, told.tolist())
        if has_failed and not found:
            found = Refusal(FAILED) if saves else RuntimeError(FAILED)
        return found

    def leave(self, problem: Exception | None) -> None:
        self.close()  # after a problem, when the first process has saved: torch.distributed.run would stop it when another one ends
        if not self.writes:
            raise Left
        super().leave(problem)


ALONE = Group()


@contextmanager
def joined(environment: Environment, device: torch.device) -> Iterator[Group]:
    """Within the block, this process is one of the processes that torch.distributed.run started; give this group, or ALONE if there is none.
    Only the first process writes to stdout.

    The processes communicate by NCCL if they train on GPUs, else by gloo. A collective operation that takes longer than
    PIPELINE_TIMEOUT_S ends the process. The group is closed at the end of the block, or aborted if an exception ends it. Raises Unavailable
    if the other processes do not answer: they may start later.
    """
    if environment.world_size == 1 or not environment.is_rank:
        yield ALONE
        return
    place = f"{environment.master_addr}:{environment.master_port}"
    wait_s = min(environment.timeout_s, RENDEZVOUS_S)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=wait_s)))
        store.set_timeout(timedelta(seconds=wait_s))
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=environment.timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
        control = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timedelta(seconds=environment.timeout_s)))
        store.set_timeout(timedelta(seconds=environment.timeout_s))  # one process may take longer to read the data than another
    except (RuntimeError, ValueError) as error:
        raise Unavailable(
            f"MASTER_ADDR: the {environment.world_size} processes did not meet at {place} within {wait_s:.0f} s ({reason(error)}): "
            "start all of them, and check this address, the port and the firewall"
        ) from None
    group = Several(rank, size, environment.local_rank, environment.local_world_size, store=PrefixStore("pipeline", store), control=control)
    try:
        with redirect_stdout(io.StringIO()) if rank else nullcontext(), suppress(Left):
            yield group
        group.close()
    except BaseException as error:
        if isinstance(error, RuntimeError) and is_lost(error):
            print(f"error: rank {rank}: another process has ended or does not answer ({reason(error)})", file=sys.stderr, flush=True)
            os._exit(LOST)  # threads of the backend may still wait for the others
        group.abort()
        raise


def is_lost(error: RuntimeError) -> bool:
    """Return True if `error` was raised because another process has ended, or has not answered within PIPELINE_TIMEOUT_S."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
