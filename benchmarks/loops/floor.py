"""BareTraining forward, backward and optimizer step on one batch that is already on the device: a lower bound of any training time."""

import torch

from benchmarks.block_timer import BlockTimer
from benchmarks.job import BareTraining, Job
from pipeline.data.prepared import Prepared
from pipeline.engine.classifier import Classifier
from pipeline.runtime.machine import Machine, set_determinism


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer) -> None:
    set_determinism(True)  # as in the pipeline, so that only the loops differ
    bare = BareTraining.begin(job, prepared, machine)
    classifier = Classifier(torch.nn.Identity(), prepared.spec, channels_last=bare.channels_last).to(machine.device)
    images = classifier(torch.from_numpy(prepared.train.inputs[: job.batch_size]).to(machine.device))
    targets = torch.from_numpy(prepared.train.targets[: job.batch_size]).to(machine.device)
    for group in bare.optimizer.param_groups:
        group["lr"] = 0.0  # else the batch is memorised, and a CPU is slower on its tiny gradients
    for _ in range(job.steps):
        bare.step(images, targets)
        timer.step()
    timer.finish()
