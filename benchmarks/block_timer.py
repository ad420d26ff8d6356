"""The timer of one training loop: it lets one block of steps run at a time and reports how long each took."""

import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import psutil
import torch
from torch import Tensor

from benchmarks.job import Job


@dataclass
class BlockTimer:
    """Counts steps. Between blocks the process waits for its turn, suspended with all its children."""

    connection: Connection
    job: Job
    count: int = 0
    begin_s: float = 0.0
    losses: list[Tensor] = field(default_factory=list)

    def step(self, loss: Tensor | None = None) -> None:
        """Count a step; call this after each one. The loss stays on its device, without host synchronisation."""
        self.count += 1
        if loss is not None:
            self.losses.append(loss.detach())
        over = self.count - self.job.warmup_steps
        if 0 <= over <= self.job.rounds * self.job.block_steps and over % self.job.block_steps == 0:
            self.end_block(first=over == 0)

    def end_block(self, *, first: bool) -> None:
        """Send the seconds of the block that ended (None before the first), then wait for the start of the next one."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.connection.send(None if first else time.perf_counter() - self.begin_s)
        self.connection.recv()
        self.begin_s = time.perf_counter()

    def finish(self, loss: float | None = None) -> None:
        """Send the mean loss over all steps, given or computed from the recorded losses, and the memory in megabytes."""
        if self.losses:
            loss = float(torch.stack(self.losses).double().mean())
        self.connection.send({"loss": loss, "megabytes": memory_megabytes()})


def memory_megabytes() -> float:
    """Return the peak GPU memory so far; without a GPU, the current RSS of this process and its children. In megabytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(member.memory_info().rss for member in processes) / 1e6
