"""The clock of one way of training: it lets a block of steps pass at a time, and says how long each took."""

import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import psutil
import torch
from torch import Tensor

from benchmarks.job import Job


@dataclass
class Gate:
    """Between blocks the process waits for its turn, and is stopped with all its children."""

    connection: Connection
    job: Job
    count: int = 0
    begin_s: float = 0.0
    losses: list[Tensor] = field(default_factory=list)

    def step(self, loss: Tensor | None = None) -> None:
        """Called after each step; the loss is kept where it is, and not waited for."""
        self.count += 1
        if loss is not None:
            self.losses.append(loss.detach())
        over = self.count - self.job.warmup_steps
        if 0 <= over <= self.job.rounds * self.job.block_steps and over % self.job.block_steps == 0:
            self.wait_for_the_next(first=over == 0)

    def wait_for_the_next(self, *, first: bool) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.connection.send(None if first else time.perf_counter() - self.begin_s)
        self.connection.recv()
        self.begin_s = time.perf_counter()

    def finish(self, loss: float | None = None) -> None:
        """The mean loss over all steps, as given or as kept, and the most memory."""
        if self.losses:
            loss = float(torch.stack(self.losses).double().mean())
        self.connection.send({"loss": loss, "megabytes": most_megabytes()})


def most_megabytes() -> float:
    """Of the GPU at most so far, or of this process and its children at this moment."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(member.memory_info().rss for member in family) / 1e6
