"""Run one training loop in a separate process, which is suspended except during its blocks."""

import contextlib
import importlib
import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

import psutil

from benchmarks.job import Job

LIMIT_S = 900.0
REMOVED_VARIABLES = ("PIPELINE_TRACKING", "PIPELINE_CHECKPOINT", "MLFLOW_", "DVC_")
"""Prefixes of environment variables that would change what is measured; they are removed in the worker."""
LOOPS: dict[str, dict[str, Any]] = {
    "floor": {},
    "data": {},
    "pipeline": {},
    "pipeline, not deterministic": {"deterministic": False},
    "pipeline, untracked": {"tracked": False},
    "tensors": {},
    "tutorial": {},
    "tutorial, workers": {"workers": True},
    "lightning": {},
    "lightning, tuned": {"tuned": True},
    "accelerate": {},
    "accelerate, tuned": {"tuned": True},
}


class Block(NamedTuple):
    """The time of a block of steps: wall-clock seconds, and CPU seconds of all threads and child processes."""

    elapsed_s: float
    processor_s: float


class Stopped(Exception):
    """Raised if a training loop ends early or sends nothing for LIMIT_S seconds."""


@dataclass
class Worker:
    loop: str
    process: SpawnProcess
    connection: Connection

    @classmethod
    def start(cls, loop: str, job: Job) -> "Worker":
        """Start the process, wait for its warmup steps and suspend it."""
        context = multiprocessing.get_context("spawn")
        own_end, worker_end = context.Pipe()
        process = context.Process(target=work, args=(loop, job, worker_end), name=loop)
        process.start()
        worker_end.close()
        worker = cls(loop, process, own_end)
        worker.receive()
        worker.suspend()
        return worker

    def block(self) -> Block:
        """Run one block of steps, suspend the process again and return the time of the block."""
        before_s = self.processor_s()
        self.resume()
        self.connection.send("go")
        elapsed_s = float(self.receive())
        self.suspend()
        return Block(elapsed_s, self.processor_s() - before_s)

    def finish(self) -> dict[str, Any]:
        """Let the training run to its end; return its mean loss and memory."""
        self.resume()
        self.connection.send("end")
        result: dict[str, Any] = self.receive()
        self.process.join()
        return result

    def receive(self) -> Any:
        """Return the next message of the process. Raises Stopped if it has ended or sends none for LIMIT_S seconds."""
        if not self.connection.poll(LIMIT_S):
            raise Stopped(f"{self.loop}: sent nothing for {LIMIT_S:.0f} s")
        try:
            return self.connection.recv()
        except EOFError:
            raise Stopped(f"{self.loop}: ended early; its error is above") from None

    def processes(self) -> list[psutil.Process]:
        """Return the process and all its descendants, such as DataLoader workers and the mirror process."""
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def processor_s(self) -> float:
        """Return the CPU seconds so far of all live processes and their terminated children."""
        spent_s = 0.0
        for member in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                spent_s += times.user + times.system + times.children_user + times.children_system
        return spent_s

    def suspend(self) -> None:
        for member in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()

    def resume(self) -> None:
        for member in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in self.processes():
                member.kill()


def work(loop: str, job: Job, connection: Connection) -> None:
    """Run the training loop; the entry point of the worker process."""
    from benchmarks.block_timer import BlockTimer
    from pipeline.core.environment import Environment
    from pipeline.inference.machine import Machine, set_determinism

    os.chdir(job.folder)
    for variable in [variable for variable in os.environ if variable.startswith(REMOVED_VARIABLES)]:
        del os.environ[variable]
    # with a time interval, the pause between blocks would trigger a checkpoint in each block, so use an interval in steps
    os.environ |= {"PIPELINE_CHECKPOINT_EVERY_S": "0", "PIPELINE_CHECKPOINT_EVERY_STEPS": str(job.steps // 2)}
    machine = Machine.set_up(Environment.read())
    set_determinism(False)
    name = loop.partition(",")[0]
    importlib.import_module(f"benchmarks.loops.{name}").train(job, job.prepared(), machine, BlockTimer(connection, job), **LOOPS[loop])
