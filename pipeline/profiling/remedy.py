"""Writes a sentence that says what limits the speed of a training, and what to change."""

from collections.abc import Mapping
from typing import NamedTuple

from pipeline.params.train import TrainParams
from pipeline.profiling.shares import Shares
from pipeline.runtime import cgroup
from pipeline.runtime.machine import Machine

COSTLY = ("resized_crop", "brightness", "contrast", "saturation", "mixup", "cutmix")
"""The augmentations that take far more time than the others (docs/performance.md)."""


class Situation(NamedTuple):
    """The facts that a remedy depends on.

    `is_resident` is True if the train split is held in the memory of the device, and `has_images` if the inputs are images.
    """

    params: TrainParams
    machine: Machine
    is_resident: bool
    has_images: bool

    @property
    def on_gpu(self) -> bool:
        return self.machine.device.type == "cuda"


def sentence(shares: Shares, situation: Situation) -> str:
    """Return a sentence that names the largest of the shares and its remedy."""
    largest = shares.largest
    texts: Mapping[str, str] = {
        "data": "Most of the time, steps wait for data",
        "copying": "Most of the time, the GPU waits for copies from the host",
        "computing": f"Most of the time, the {'GPU' if situation.on_gpu else 'CPU'} computes, as it should",
        "host": f"Most of the time, {'the GPU waits for' if situation.on_gpu else 'the CPU runs'} Python code between the operations",
        "idle": "Most of the time, this process does nothing",
    }
    remedies = {"data": data, "copying": copying, "computing": computing, "host": host, "idle": idle}
    return f"{texts[largest]} ({getattr(shares, largest):.0%}): {remedies[largest](situation)}."


def data(situation: Situation) -> str:
    if not situation.is_resident:
        return (
            "the train split is read from the disk, so put data/prepared on a faster disk, or free memory until the split takes at most half "
            f"of what is free on the {situation.machine.device}"
        )
    augment = situation.params.augment
    if costly := [f"augment.{name}" for name in COSTLY if augment and getattr(augment, name)]:
        return f"batches are made on the device that trains, so switch off costly augmentations ({', '.join(costly)})" + more_threads(
            situation
        )
    return "batches are made on the device that trains, so make samples smaller or augment them less" + more_threads(situation)


def more_threads(situation: Situation) -> str:
    usable = cgroup.usable_cpus()
    if situation.on_gpu or situation.machine.threads >= usable:
        return ""
    return f", or set PIPELINE_THREADS={usable}, because it uses {situation.machine.threads} of {usable} CPUs"


def copying(situation: Situation) -> str:
    if situation.is_resident:
        return "use a larger train.batch_size, so that fewer copies are made"
    return (
        "free GPU memory until the train split takes at most half of what is free; it is then held on the GPU and not copied in each step"
    )


def computing(situation: Situation) -> str:
    settings, changes = situation.params.train, []
    if situation.on_gpu:
        if settings.precision == "fp32":
            changes.append("`train.precision: auto`")
        if situation.has_images and not settings.channels_last:
            changes.append("`train.channels_last: true`")
    if settings.compile == "off":
        changes.append("`train.compile: default`")
    if settings.activation_checkpointing:
        changes.append("`train.activation_checkpointing: false`")
    tried = f"`python -m pipeline speedup` measures what {', '.join(changes)} would change here; else " if changes else ""
    device = "a faster GPU" if situation.on_gpu else "a GPU"
    return f"{tried}use {device} or a smaller model{more_threads(situation)}"


def host(situation: Situation) -> str:
    settings = situation.params.train
    changes = []
    if settings.compile == "off" and not settings.activation_checkpointing:
        whole = settings.micro_batch_size == settings.batch_size and settings.lanes == 1
        changes.append(f"`train.compile: {'graphs' if situation.on_gpu and whole else 'default'}`")
    if settings.micro_batch_size < settings.batch_size:
        changes.append("a larger train.micro_batch_size, which makes fewer and larger operations (`python -m pipeline fit-batch`)")
    if settings.report_every_steps < 10:
        changes.append("fewer reports (`train.report_every_steps`)")
    changes.append("a larger train.batch_size")
    return f"try {', or '.join(changes)}; the trace shows which Python code it is"


def idle(_: Situation) -> str:
    return "code of the model or the task sleeps, or waits for a file, a lock or the network; the gaps in the trace show where"
