"""Accelerate's loop from the start of its documentation; `tuned` adds worker processes, non-blocking copies and cuDNN autotuning."""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from benchmarks.block_timer import BlockTimer
from benchmarks.job import BareTraining, Job
from benchmarks.loops import loaders
from pipeline.core.prepared import Prepared
from pipeline.inference.machine import Machine
from pipeline.train.engine import objective


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer, *, tuned: bool = False) -> None:
    torch.backends.cudnn.benchmark = tuned
    bare = BareTraining.begin(job, prepared, machine)
    accelerator = Accelerator(
        cpu=machine.device.type == "cpu",
        mixed_precision="no" if bare.precision == "fp32" else bare.precision,
        dataloader_config=DataLoaderConfiguration(non_blocking=tuned),
    )
    network, optimizer, loader = accelerator.prepare(
        bare.network, bare.optimizer, loaders.samples(job, prepared, workers=job.workers if tuned else 0)
    )
    steps = 0
    while steps < job.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = objective.summed(network(bare.in_memory_format(inputs)), targets) / targets.numel()
            accelerator.backward(loss)
            optimizer.step()
            timer.step(loss)
            steps += 1
            if steps == job.steps:
                break
    timer.finish()
