"""Captured steps: what a step launches on a GPU is recorded once as CUDA graphs, and replayed in each further step.

A small network otherwise waits for the host, which takes longer to launch hundreds of kernels than the GPU to execute them. The recorded
kernels are those of `Step`, in the same order and on tensors of the same layout, so the results are the same, bit for bit.

**Recorded**: a micro-batch (forward pass, loss, backward pass and metrics), once for the first one of a lane, which replaces the gradients, and
once for the further ones, which add to them; and the update (unscaling, norm, clipping, optimizer, EMA), once with and once without the norm.
Each is recorded again for inputs of another shape.

**What changes between replays**: the inputs and targets, which are copied to where the graph reads them; the numbers of the step (see
`Numbers`); and the seed of the GPU's random generator, which PyTorch hands to each replay.

**Not recorded**: augmentation and all that reads the data, because it has its own rhythm; what several lanes do with their gradients; reports.
`Training.uncaptured` lists the trainings that are not recorded.
"""

from collections.abc import Callable
from functools import partial
from operator import is_not

import torch
from torch import Tensor, nn

from pipeline.inference.batch import Batch
from pipeline.inference.cuda_graphs import Graphs, copy
from pipeline.train.engine.metrics import LOSS
from pipeline.train.engine.objective import Objective
from pipeline.train.engine.state import TrainState
from pipeline.train.engine.step import Forward, Step, StepSettings
from pipeline.train.group.lanes import Sums

FEWEST_STEPS = 100
"""A training with fewer steps left is not captured: recording takes as long as some ten steps, and memory."""


class CapturedStep(Step):
    """Computes a step by CUDA graphs. What a graph leaves for another one, or for the host, is in memory that stays where it is."""

    def __init__(self, state: TrainState, objective: Objective, forward: Forward, announce: Callable[[str], None]) -> None:
        super().__init__(state, objective, forward)
        self.graphs: Graphs = Graphs(state.device, announce)
        self.first_step = state.step
        self.trained: list[nn.Parameter] = []
        self.gradients: list[Tensor] = []
        """The gradients of the parameters `trained`."""
        self.results: dict[str, Tensor] = {}
        """The loss of a lane and its sums, in float64, by name."""
        self.dtypes: dict[str, torch.dtype] = {}
        """The dtypes of the loss and the sums of a micro-batch."""
        self.num_parts = 0
        """The number of micro-batches of a lane so far."""
        self.norm: Tensor | None = None
        self.skipped: Tensor | None = None

    def add_micro_batch(self, part: Batch, *, first: bool) -> None:
        assert part.targets is not None
        self.has_begun = True
        self.num_parts = 1 if first else self.num_parts + 1
        self.graphs.run(("micro-batch", first), (part.inputs, part.targets), partial(self.micro_batch, first=first))

    def micro_batch(self, inputs: Tensor, targets: Tensor, *, first: bool) -> None:
        """Compute the gradients and add up the sums of a micro-batch."""
        for name, value in self.differentiated(inputs, targets, first=first).items():
            if name not in self.results:
                self.dtypes[name], self.results[name] = value.dtype, value.double()
            elif first:
                self.results[name].copy_(value)
            else:
                self.results[name].add_(value)
        trained = [parameter for parameter in self.state.parameters if parameter.grad is not None]
        if self.graphs.stopped:
            self.gradients = []
        elif not self.gradients:
            self.trained, self.gradients = trained, gradients_of(trained)
        elif len(trained) != len(self.trained) or any(map(is_not, trained, self.trained)):
            self.graphs.refuse("a step has gradients of other parameters than the step before")
        elif first:
            copy(self.gradients, gradients_of(trained))
            self.place_gradients(self.gradients)

    def place_gradients(self, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            parameter.grad = gradient

    def lane_sums(self, *, last: bool) -> Sums:
        if self.gradients and self.state.lanes.share.lanes > 1:
            self.place_gradients(self.gradients if last else copied(self.gradients))
        one = self.num_parts == 1  # the sum of several is in float64
        sums = {name: value.to(self.dtypes[name] if one else value.dtype, copy=True) for name, value in self.results.items()}
        return sums.pop(LOSS), sums

    def update(self, loss: Tensor | None, settings: StepSettings) -> tuple[Tensor | None, Tensor | None]:
        inputs = (loss,) if loss is not None and self.state.loss_may_skip else ()
        self.graphs.run(("update", settings.measures_norm), inputs, partial(self.updated, settings=settings))
        norm, skipped = (None if kept is None else kept.clone() for kept in (self.norm, self.skipped))
        return norm if settings.measures_norm else None, skipped

    def updated(self, *loss: Tensor, settings: StepSettings) -> None:
        """Apply the gradients, and leave the norm and the flag of a skipped step where they stay."""
        groups, recording = self.state.optimizer.param_groups, torch.cuda.is_current_stream_capturing()
        for group in groups:
            group["capturable"] = recording  # torch's optimizers ask for it while a graph is recorded, and warn of it otherwise
        try:
            norm, skipped = super().update(loss[0] if loss else None, settings)
        except RuntimeError:
            self.state.scaler._per_optimizer_states.clear()  # else the scaler would refuse to unscale the gradients again
            raise
        self.norm, self.skipped = kept(self.norm, norm), kept(self.skipped, skipped)

    def release(self) -> bool:
        if self.graphs.stopped or self.state.step == self.first_step:  # in its first step, it takes no further memory
            self.gradients = []
            return False
        self.graphs.stop("too little memory")
        self.gradients = []
        return True


def gradients_of(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def copied(tensors: list[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor) for tensor in tensors]
    copy(copies, tensors)
    return copies


def kept(place: Tensor | None, value: Tensor | None) -> Tensor | None:
    """Copy `value` to `place`, and return it. At first there is no place, and a copy is returned."""
    if value is None or place is None:
        return place if value is None else value.clone()
    return place.copy_(value)
