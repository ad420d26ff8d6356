"""BareTraining forward, backward and optimizer step on one batch that is already on the device: a lower bound of any training time."""

from benchmarks.block_timer import BlockTimer
from benchmarks.job import BareTraining, Job
from pipeline.core.prepared import Prepared
from pipeline.inference.batches import loader
from pipeline.inference.machine import Machine, set_determinism
from pipeline.inference.networks import preprocessing


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer) -> None:
    set_determinism(True)  # as in the pipeline, so that only the loops differ
    bare = BareTraining.begin(job, prepared, machine)
    preprocess = preprocessing(prepared.spec.inputs, channels_last=bare.channels_last).to(machine.device)
    batches = loader.scoring(loader.SplitTensors(prepared.train, machine.device), batch_size=job.batch_size)
    (inputs, targets), _ = next(batches)
    assert targets is not None
    inputs = preprocess(inputs)
    for group in bare.optimizer.param_groups:
        group["lr"] = 0.0  # else the batch is memorised, and a CPU is slower on its tiny gradients
    for _ in range(job.steps):
        bare.step(inputs, targets)
        timer.step()
    timer.finish()
