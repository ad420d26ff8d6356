"""One way of training in a process of its own, which runs while it is its turn and is stopped otherwise."""

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
FOREIGN = ("PIPELINE_TRACKING", "PIPELINE_CHECKPOINT", "MLFLOW_", "DVC_")
"""Variables of whoever starts the benchmark that would decide what is measured."""
WAYS: dict[str, dict[str, Any]] = {
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
    """Seconds of a block of steps: on the clock, and of the processor, over all threads and child processes."""

    elapsed_s: float
    processor_s: float


class Stopped(Exception):
    """A way of training ended before its time."""


@dataclass
class Worker:
    way: str
    process: SpawnProcess
    connection: Connection

    @classmethod
    def start(cls, way: str, job: Job) -> "Worker":
        """Returns after the first steps, at which it stands still."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=work, args=(way, job, there), name=way)
        process.start()
        there.close()
        worker = cls(way, process, here)
        worker.receive()
        worker.suspend()
        return worker

    def block(self) -> Block:
        before_s = self.processor_s()
        self.resume()
        self.connection.send("go")
        elapsed_s = float(self.receive())
        self.suspend()
        return Block(elapsed_s, self.processor_s() - before_s)

    def finish(self) -> dict[str, Any]:
        """Let it train to its end; what it says then."""
        self.resume()
        self.connection.send("end")
        said: dict[str, Any] = self.receive()
        self.process.join()
        return said

    def receive(self) -> Any:
        if not self.connection.poll(LIMIT_S):
            raise Stopped(f"{self.way}: nothing was heard for {LIMIT_S:.0f} s")
        try:
            return self.connection.recv()
        except EOFError:
            raise Stopped(f"{self.way}: ended before its time; its error is above") from None

    def family(self) -> list[psutil.Process]:
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def processor_s(self) -> float:
        """So far, of those that live and of their children that ended."""
        spent_s = 0.0
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                spent_s += times.user + times.system + times.children_user + times.children_system
        return spent_s

    def suspend(self) -> None:
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()

    def resume(self) -> None:
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in self.family():
                member.kill()


def work(way: str, job: Job, connection: Connection) -> None:
    """Runs in the process of its own."""
    from benchmarks.gate import Gate
    from benchmarks.job import images
    from pipeline.runtime.environment import Environment
    from pipeline.runtime.machine import Machine, set_determinism

    os.chdir(job.folder)
    for variable in [variable for variable in os.environ if variable.startswith(FOREIGN)]:
        del os.environ[variable]
    # who is stopped between blocks would save in each, by the clock
    os.environ |= {"PIPELINE_CHECKPOINT_EVERY_S": "0", "PIPELINE_CHECKPOINT_EVERY_STEPS": str(job.steps // 2)}
    here = Machine.claim(Environment.read())
    set_determinism(False)
    name = way.partition(",")[0]
    importlib.import_module(f"benchmarks.ways.{name}").train(job, images(), here, Gate(connection, job), **WAYS[way])
