"""The pipeline's data path without training: order and gather of every batch; for images crop, flip and normalisation."""

import torch

from benchmarks.block_timer import BlockTimer
from benchmarks.job import Job
from pipeline.core.prepared import Prepared
from pipeline.inference.batches import loader
from pipeline.inference.machine import Machine
from pipeline.inference.networks import preprocessing
from pipeline.train.augment.augmentation import Augmentation


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer) -> None:
    params = job.params()
    augmentation = None
    if params.augment:
        augmentation = Augmentation(params.augment, prepared.spec, len(prepared.train), seed=params.seed, device=machine.device)
    split = loader.SplitTensors(prepared.train, machine.device, augmentation)
    preprocess = preprocessing(prepared.spec.inputs, channels_last=params.train.channels_last is True).to(machine.device)
    batches = loader.training(split, batch_size=job.batch_size, seed=params.seed, start=0)
    for _ in range(job.steps):
        for batch in next(batches).parts(job.batch_size):
            with torch.no_grad():
                preprocess(batch.inputs)
        timer.step()
    timer.finish()
