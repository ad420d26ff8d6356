"""The processes that train together, one per GPU. torch.distributed.run starts them; they meet at the address in its variables."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pipeline.core.environment import Environment
from pipeline.core.interruption import Interrupted, Interruption
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.untrusted import reason

OUT_OF_MEMORY, LOST = 75, 76
"""Exit codes: after the first, all processes are started again and use the smaller micro-batch that the process has recorded; the second is
that of a process that lost the others."""
RENDEZVOUS_S = 60.0
"""The longest time that the processes wait for each other at the start. torch.distributed.run starts all of them at the same time."""


class Flags:
    """Tells all processes which flags one of them has raised, on a gloo group of its own, so that nobody waits for a GPU."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        self.group = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timeout))
        self.sent: tuple[Tensor, dist.Work] | None = None

    def exchanged(self, *flags: bool) -> list[bool]:
        """Send `flags`, and return for each whether any process sent True at its call before this one. This wait is short: that call is past."""
        found = [False] * len(flags)
        if self.sent:
            tensor, work = self.sent
            work.wait()
            found = [bool(flag) for flag in tensor.tolist()]
        tensor = torch.tensor([int(flag) for flag in flags])
        sent = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group, async_op=True)
        assert sent
        self.sent = tensor, sent
        return found


@dataclass(frozen=True)
class Processes:
    """The group of processes that train together, and the place of this process in it: `rank` counts from 0 to `size` - 1.

    `local_size` of them run on this machine, where `local_rank` counts from 0. `store` and `flags` are None if there is only one process.
    """

    rank: int = 0
    size: int = 1
    store: Store | None = None
    flags: Flags | None = None
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Return True for the process of rank 0, which alone writes files and reports."""
        return self.rank == 0

    def gathered(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, (size * n, ...), in the order of their ranks. `rows` (n, ...) are those of this process."""
        if self.size == 1:
            return rows
        found = rows.new_empty((self.size * len(rows), *rows.shape[1:]))
        dist.all_gather_into_tensor(found, rows.contiguous())
        return found

    def wait(self) -> None:
        """Wait until all processes have called this method."""
        if self.flags:
            dist.barrier(group=self.flags.group)

    def any(self, flag: bool) -> bool:
        """Return True if one of the processes has passed True. All of them must call this method."""
        if self.flags is None:
            return flag
        found = torch.tensor([int(flag)])
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.flags.group)
        return bool(found)

    def pause(self, interruption: Interruption, *, save: bool = False) -> bool:
        """Raise Interrupted if a signal has arrived in one of the processes: in all of them, at the same call. Else return True if one of them
        passed `save`.

        The answer is the same in all processes. With several processes, it is the answer for the call before, so that no process waits until
        the others have come to this call.
        """
        if self.flags is None:
            interruption.pause()
            return save
        stopped, saved = self.flags.exchanged(interruption.number is not None, save)
        if stopped:
            raise Interrupted(interruption.number or signal.SIGTERM)
        return saved

    def refuse_different(self, name: str, record: Mapping[str, Any], error: type[Refusal] = Refusal) -> None:
        """Raise `error` in all processes unless the `record` called `name` is equal in all of them."""
        if self.store is None:
            return
        self.store.set(f"{name}/{self.rank}", json.dumps(record, sort_keys=True))
        first, *others = (json.loads(self.store.get(f"{name}/{rank}")) for rank in range(self.size))
        for rank, other in enumerate(others, 1):
            different = [key for key in first if first[key] != other.get(key)]
            if different:
                raise error(
                    f"the processes of rank 0 and rank {rank} differ in {', '.join(different)}: "
                    "all processes need the same commit, parameters, data, number of threads (PIPELINE_THREADS), kind of GPU or CPU, and folder .pipeline/work"
                )


ALONE = Processes()


@contextmanager
def joined(environment: Environment, device: torch.device) -> Iterator[Processes]:
    """Within the block, this process is one of the processes that torch.distributed.run started; give this group, or ALONE if there is none.

    The processes communicate by NCCL if they train on GPUs, else by gloo. A collective operation that takes longer than
    PIPELINE_TIMEOUT_S ends the process. Raises Unavailable if the other processes do not answer: they may start later.
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
        flags = Flags(timedelta(seconds=environment.timeout_s))
        store.set_timeout(timedelta(seconds=environment.timeout_s))  # one process may take longer to read the data than another
    except (RuntimeError, ValueError) as error:
        raise Unavailable(
            f"MASTER_ADDR: the {environment.world_size} processes did not meet at {place} within {wait_s:.0f} s ({reason(error)}): "
            "start all of them, and check this address, the port and the firewall"
        ) from None
    try:
        yield Processes(rank, size, PrefixStore("pipeline", store), flags, environment.local_rank, environment.local_world_size)
    except RuntimeError as error:
        if not is_lost(error):
            raise
        print(f"error: rank {rank}: another process has ended or does not answer ({reason(error)})", file=sys.stderr, flush=True)
        os._exit(LOST)  # threads of the backend may still wait for the others
    dist.destroy_process_group()


def is_lost(error: RuntimeError) -> bool:
    """Return True if `error` was raised because another process has ended, or has not answered within PIPELINE_TIMEOUT_S."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
