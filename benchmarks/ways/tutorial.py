"""The classic tutorial loop: PIL transforms in a DataLoader, and `loss.item()` at every step."""

from benchmarks.gate import Gate
from benchmarks.job import Bare, Job
from benchmarks.ways import loaders
from pipeline.data.prepared import Prepared
from pipeline.runtime.machine import Machine


def train(job: Job, prepared: Prepared, here: Machine, gate: Gate, *, workers: bool = False) -> None:
    bare = Bare.begin(job, prepared, here)
    loader = loaders.pictures(job, prepared, workers=job.workers if workers else 0)
    steps, running_loss = 0, 0.0
    while steps < job.steps:
        for images, targets in loader:
            loss = bare.step(bare.arranged(images.to(here.device)), targets.to(here.device))
            running_loss += loss.item()
            gate.step(loss)
            steps += 1
            if steps == job.steps:
                break
    gate.finish()
