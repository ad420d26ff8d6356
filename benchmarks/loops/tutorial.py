"""The classic tutorial loop: PIL transforms in a DataLoader, and `loss.item()` at every step."""

from benchmarks.block_timer import BlockTimer
from benchmarks.job import BareTraining, Job
from benchmarks.loops import loaders
from pipeline.core.prepared import Prepared
from pipeline.inference.machine import Machine


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer, *, workers: bool = False) -> None:
    bare = BareTraining.begin(job, prepared, machine)
    loader = loaders.samples(job, prepared, workers=job.workers if workers else 0)
    steps, running_loss = 0, 0.0
    while steps < job.steps:
        for inputs, targets in loader:
            loss = bare.step(bare.in_memory_format(inputs.to(machine.device)), targets.to(machine.device))
            running_loss += loss.item()
            timer.step(loss)
            steps += 1
            if steps == job.steps:
                break
    timer.finish()
