"""A DataLoader over a TensorDataset: no decoding, but samples are still fetched one at a time."""

from benchmarks.block_timer import BlockTimer
from benchmarks.job import TEXT_MODELS, BareTraining, Job
from benchmarks.loops import loaders
from pipeline.core.prepared import Prepared
from pipeline.inference.machine import Machine


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer) -> None:
    bare = BareTraining.begin(job, prepared, machine)
    loader = loaders.tensors(job, prepared)
    steps = 0
    while steps < job.steps:
        for batch, targets in loader:
            inputs = batch.to(machine.device, non_blocking=True)
            if job.model not in TEXT_MODELS:
                inputs = loaders.augmented(inputs)
            timer.step(bare.step(bare.in_memory_format(inputs), targets.to(machine.device, non_blocking=True)))
            steps += 1
            if steps == job.steps:
                break
    timer.finish()
