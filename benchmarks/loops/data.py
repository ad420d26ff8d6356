"""The pipeline's data path without training: order, gather, crop, flip and normalisation of every batch."""

import torch

from benchmarks.block_timer import BlockTimer
from benchmarks.job import Job
from pipeline.data import loader
from pipeline.data.augment.augmentation import Augmentation
from pipeline.data.prepared import Prepared
from pipeline.engine.classifier import Classifier
from pipeline.runtime.machine import Machine


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer) -> None:
    params = job.params()
    augmentation = Augmentation(params.augment, prepared.spec, len(prepared.train), seed=params.seed, device=machine.device)
    images = loader.Images(prepared.train, machine.device, augmentation)
    classifier = Classifier(torch.nn.Identity(), prepared.spec, channels_last=params.train.channels_last).to(machine.device)
    batches = loader.training(images, batch_size=job.batch_size, seed=params.seed, start=0)
    for _ in range(job.steps):
        for inputs, _targets in next(batches).parts(job.batch_size):
            with torch.no_grad():
                classifier(inputs)
        timer.step()
    timer.finish()
