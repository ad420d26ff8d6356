"""Captured steps: what a step launches on a GPU is recorded once as CUDA graphs, and replayed in each further step.

A small network otherwise waits for the host, which takes longer to launch hundreds of kernels than the GPU to execute them. The recorded
kernels are those of `Step`, in the same order and on tensors of the same layout, so the results are the same, bit for bit.

**Recorded**: a micro-batch (forward pass, loss, backward pass and metrics), once for the first one of a lane, which replaces the gradients, and
once for the further ones, which add to them, for inputs of each shape; and the update (unscaling, norm, clipping, optimizer, EMA). With
`train.compile: graphs`, the compiler records the network, and only the update is recorded here.

**What changes between replays**: the inputs and targets, which are copied to where the graph reads them; the numbers of the step (see
`Numbers`); and the seed of the GPU's random generator, which PyTorch hands to each replay.

**Not recorded**: augmentation and all that reads the data, because it does not happen once a step; what several lanes do with their gradients;
reports. `Training.why_eager` lists the trainings that are not recorded.

**Memory** must not run out where it would not in eager steps. So nothing is kept in the first step, and nothing is recorded before the fourth:
an update, which cannot be repeated, is then never launched while graphs hold memory.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from pipeline.inference.batch import Batch
from pipeline.inference.cuda_graphs import LITTLE_MEMORY, Graphs, copy
from pipeline.train.engine.metrics import LOSS
from pipeline.train.engine.objective import Objective
from pipeline.train.engine.state import TrainState
from pipeline.train.engine.step import Forward, Step, StepSettings
from pipeline.train.group.lanes import Sums

FEWEST_STEPS = 100
"""A training with fewer steps left is not captured: recording takes as long as some ten steps, and memory."""


class CapturedStep(Step):
    """Computes a step by CUDA graphs. What a graph leaves for another one, or for the host, is in memory that stays where it is."""

    def __init__(self, state: TrainState, objective: Objective, forward: Forward, *, records_network: bool = True) -> None:
        super().__init__(state, objective, forward)
        assert self.numbers.rates_on_gpu, "a graph would repeat a learning rate that it does not read from the GPU"
        self.graphs: Graphs = Graphs(state.device, "train")
        self.records_network, self.first_step = records_network, state.step
        self.has_lanes = state.lanes.share.lanes > 1
        self.places: dict[nn.Parameter, Tensor] = {}
        """The memory in which the gradient of each parameter stays. Empty as long as none stays: in the first step, and once nothing is recorded any more."""
        self.results: dict[str, Tensor] = {}
        """The loss of a lane and its sums, in float64, by name."""
        self.dtypes: dict[str, torch.dtype] = {}
        """The dtypes of the loss and the sums of a micro-batch."""
        self.num_parts = 0
        """The number of micro-batches of a lane so far."""
        self.norm: Tensor | None = None
        self.skipped: Tensor | None = None

    def begin(self, num_targets: int, learning_rate: float) -> None:
        super().begin(num_targets, learning_rate)
        self.graphs.may_record = self.state.step >= self.first_step + 3

    def add_micro_batch(self, part: Batch, *, first: bool) -> None:
        assert part.targets is not None
        self.has_begun = True
        self.num_parts = 1 if first else self.num_parts + 1
        compute = partial(self.micro_batch, first=first)
        if self.records_network:
            self.graphs.run(("micro-batch", first), (part.inputs, part.targets), compute)
        else:
            compute(part.inputs, part.targets)
        if first and self.has_lanes:  # a replay does not, and the lane before has taken its gradients away
            self.place_gradients(self.places.values())

    def micro_batch(self, inputs: Tensor, targets: Tensor, *, first: bool) -> None:
        """Compute the gradients of a micro-batch and add up its sums, where they stay."""
        for name, value in self.differentiated(inputs, targets, first=first).items():
            if name not in self.results:
                self.dtypes[name], self.results[name] = value.dtype, value.double()
            elif first:
                self.results[name].copy_(value)
            else:
                self.results[name].add_(value)
        found = {parameter: parameter.grad for parameter in self.state.parameters if parameter.grad is not None}
        if self.graphs.stopped or self.state.step == self.first_step:
            self.places = {}
        elif not self.places:
            # the compiler's graphs write their gradients to memory that they use again
            gradients = found.values() if self.records_network else copied(found.values())
            self.places = dict(zip(found, gradients, strict=True))
            self.place_gradients(gradients)
        elif found.keys() != self.places.keys():
            self.graphs.refuse("a step has gradients of other parameters than the step before")
            self.places = {}
        elif first:
            copy(self.places.values(), found.values())
            self.place_gradients(self.places.values())

    def place_gradients(self, gradients: Iterable[Tensor]) -> None:
        for parameter, gradient in zip(self.places, gradients, strict=True):
            parameter.grad = gradient

    def lane_sums(self, *, last: bool) -> Sums:
        if self.has_lanes and not last:
            self.place_gradients(copied(self.places.values()))  # the next lane writes into those
        one = self.num_parts == 1  # the sum of several is in float64
        sums = {name: value.to(self.dtypes[name] if one else value.dtype, copy=True) for name, value in self.results.items()}
        return sums.pop(LOSS), sums

    def update(self, loss: Tensor | None, settings: StepSettings) -> tuple[Tensor | None, Tensor | None]:
        inputs = (loss,) if loss is not None and self.state.skips_nonfinite else ()
        # always with the norm, so that there is one graph
        self.graphs.run("update", inputs, partial(self.updated, settings=replace(settings, measures_norm=True)))
        norm = self.norm.clone() if self.norm is not None and settings.measures_norm else None
        return norm, None if self.skipped is None else self.skipped.clone()

    def updated(self, *loss: Tensor, settings: StepSettings) -> None:
        """Apply the gradients, and leave the norm and the flag of a skipped step where they stay."""
        recording = torch.cuda.is_current_stream_capturing()
        for group in self.state.optimizer.param_groups:
            group["capturable"] = recording  # torch's optimizers ask for it while a graph is recorded, and warn of it otherwise
        try:
            norm, skipped = super().update(loss[0] if loss else None, settings)
        except RuntimeError:
            if self.state.scaler.is_enabled():  # else it would refuse to unscale the gradients again
                self.state.scaler._per_optimizer_states.clear()
            raise
        self.norm, self.skipped = kept(self.norm, norm), kept(self.skipped, skipped)

    def release(self) -> bool:
        if not self.places and not self.graphs.num_graphs:
            return False
        self.places = {}
        self.graphs.stop(LITTLE_MEMORY)
        return True


def copied(tensors: Collection[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor) for tensor in tensors]
    copy(copies, tensors)
    return copies


def kept(place: Tensor | None, value: Tensor | None) -> Tensor | None:
    """Copy `value` to `place`, and return it. At first there is no place, and a copy is returned."""
    if value is None or place is None:
        return place if value is None else value.clone()
    return place.copy_(value)
