"""Accelerate's loop from the start of its documentation; `tuned` adds worker processes, non-blocking copies and cuDNN autotuning."""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.nn.functional import cross_entropy

from benchmarks.gate import Gate
from benchmarks.job import Bare, Job
from benchmarks.ways import loaders
from pipeline.data.prepared import Prepared
from pipeline.runtime.machine import Machine


def train(job: Job, prepared: Prepared, here: Machine, gate: Gate, *, tuned: bool = False) -> None:
    torch.backends.cudnn.benchmark = tuned
    bare = Bare.begin(job, prepared, here)
    accelerator = Accelerator(
        cpu=here.device.type == "cpu",
        mixed_precision="no" if bare.used == "fp32" else bare.used,
        dataloader_config=DataLoaderConfiguration(non_blocking=tuned),
    )
    network, optimizer, loader = accelerator.prepare(
        bare.network, bare.optimizer, loaders.pictures(job, prepared, workers=job.workers if tuned else 0)
    )
    steps = 0
    while steps < job.steps:
        for images, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(network(bare.arranged(images)), targets)
            accelerator.backward(loss)
            optimizer.step()
            gate.step(loss)
            steps += 1
            if steps == job.steps:
                break
    gate.finish()
