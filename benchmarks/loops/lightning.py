"""Lightning's loop from the start of its documentation; `tuned` follows its page on speed and adds DataLoader worker processes."""

from typing import Any

import lightning
import torch
from torch import Tensor

from benchmarks.block_timer import BlockTimer
from benchmarks.job import BareTraining, Job
from benchmarks.loops import loaders
from pipeline.core.prepared import Prepared
from pipeline.inference.machine import Machine
from pipeline.train.engine import objective

PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
TUNED = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "benchmark": True}


class Module(lightning.LightningModule):
    def __init__(self, bare: BareTraining, timer: BlockTimer) -> None:
        super().__init__()
        self.bare, self.timer, self.network = bare, timer, bare.network

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        loss = objective.summed(self.network(self.bare.in_memory_format(inputs)), targets) / targets.numel()
        self.log("train/loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # Lightning passes them by name
        self.timer.step(outputs["loss"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.bare.optimizer


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer, *, tuned: bool = False) -> None:
    bare = BareTraining.begin(job, prepared, machine)
    trainer = lightning.Trainer(
        max_steps=job.steps,
        max_epochs=-1,
        accelerator=machine.device.type,
        devices=1,
        precision=PRECISIONS[bare.precision],
        **(TUNED if tuned else {}),
    )
    trainer.fit(Module(bare, timer), loaders.samples(job, prepared, workers=job.workers if tuned else 0))
    timer.finish()
