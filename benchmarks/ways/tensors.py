"""A DataLoader over a TensorDataset: no decoding, but samples are still fetched one at a time."""

from benchmarks.gate import Gate
from benchmarks.job import Bare, Job
from benchmarks.ways import loaders
from pipeline.data.prepared import Prepared
from pipeline.runtime.machine import Machine


def train(job: Job, prepared: Prepared, here: Machine, gate: Gate) -> None:
    bare = Bare.begin(job, prepared, here)
    loader = loaders.tensors(job, prepared)
    steps = 0
    while steps < job.steps:
        for images, targets in loader:
            inputs = loaders.augmented(images.to(here.device, non_blocking=True))
            gate.step(bare.step(bare.arranged(inputs), targets.to(here.device, non_blocking=True)))
            steps += 1
            if steps == job.steps:
                break
    gate.finish()
