"""Compares the trained network with the one that its model file gives: the file may lack something that the network computes with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core import seeding
from pipeline.core.prepared import Split
from pipeline.core.refusal import Refusal, listed
from pipeline.core.registry import MODELS
from pipeline.inference import model_file, torch_errors
from pipeline.inference.batches import loader
from pipeline.inference.cuda_graphs import changed_generators, host_randomness
from pipeline.inference.networks import Model
from pipeline.inference.precision import autocast
from pipeline.inference.tensor_file import Tensors
from pipeline.train.training import Training

NUM_SAMPLES, MOST_OUTPUTS = 8, 2**24
"""The number of samples, and of values of their outputs, at most."""
MOST_NAMED = 5
TOLERANCE, TOLERANCE_16_BITS = 1e-3, 0.1
"""The largest difference of outputs, relative to their norm, where they may be rounded in another way: on a GPU, after weights were merged or
divided, and for another batch."""
REMEDY = (
    "register layers in `nn.ModuleList` or `nn.ModuleDict`, trained tensors as `nn.Parameter` and other tensors by `register_buffer`, "
    "without `persistent=False`, and let everything else follow from `Settings`"
)


def refuse_unfit(training: Training) -> None:
    """Raise Refusal if networks that are built again from the model file do not compute what the trained one does: see `Comparison.refuse`.

    All processes call this; the first one builds the networks. If the memory does not suffice for another network, say so, and compare nothing.
    """
    with seeding.restored_host(), torch_errors.with_remedies(size="train.micro_batch_size"):
        comparison = Comparison(training, examples(training))
        outputs, weights = comparison.trained_outputs(), training.whole(training.state.weights())

        def compare() -> None:
            try:
                comparison.refuse(outputs, weights)
            except RuntimeError as error:
                if not torch_errors.is_out_of_memory(error):
                    raise
                print("train: the network is not compared with its model file: there is no memory for a second network", flush=True)

        if problem := training.group.problem(compare):
            training.group.leave(problem)


def examples(training: Training) -> Tensor:
    """Return the inputs of some train samples, evenly spaced over the split, on the device, as a batch has them."""
    spec, split = training.prepared.spec, training.prepared.train
    num_values = spec.num_outputs * (split.inputs.shape[1] if spec.targets.stored != "apart" else 1)
    count = max(1, min(NUM_SAMPLES, len(split), training.progress.micro_batch_size, MOST_OUTPUTS // num_values))
    rows = np.arange(count) * len(split) // count
    few = Split.of(spec, split.inputs[rows], split.targets[rows])
    ((batch, _),) = loader.scoring(loader.SplitTensors(few, training.machine.device, resident=True), batch_size=count)
    return batch.inputs


@dataclass(frozen=True)
class Comparison:
    """The networks that a model file gives, beside the trained one. `inputs` (n, ...) are those of some train samples."""

    training: Training
    inputs: Tensor

    def refuse(self, outputs: Tensor, weights: Tensors) -> None:
        """Raise Refusal in these cases:

        - the network gets other initial weights when it is built again with the same seeds (tried before the first step only);
        - outside of training mode, it draws random numbers, gives other outputs in a second call or beside other samples, or other ones than
          `outputs`, those of the trained network, when it is built from a model file with `weights`;
        - in training mode, it draws random numbers from elsewhere than torch, or changes what a model file does not hold.
        """
        trained = self.training.state.scored.network
        # else, the weights of the file were merged or divided, and are rounded in another way
        same_operations = weights.keys() == trained.state_dict().keys() and not self.training.group.holds_shards
        if not self.training.state.step:
            self.refuse_random_weights()
        first = self.rebuilt(weights)
        before = host_randomness()
        found = self.outputs(first)
        if drawn := changed_generators(before):
            raise self.refusal(
                f"its forward pass draws from or seeds {listed(drawn, MOST_NAMED)} outside of training mode: ask for `self.training`, as in `dropout(x, p, self.training)`"
            )
        if self.differ(self.outputs(first), found):
            raise self.refusal(f"gives other outputs in a second call outside of training mode{unsaved(trained, first.network)}: {REMEDY}")
        if self.differ(found, outputs, exactly=same_operations):
            raise self.refusal(
                f"a network with the tensors of its model file gives other outputs than the trained one{unsaved(trained, first.network)}: {REMEDY}"
            )
        self.refuse_dependence(first, found)
        if len(self.inputs) > 1:  # BatchNorm needs more than one
            self.refuse_changes(first)

    def refuse_random_weights(self) -> None:
        """Raise Refusal if a network has other initial weights when it is built again with the same seeds."""
        first, second = (self.fresh().state_dict() for _ in range(2))
        if names := [name for name, value in first.items() if isinstance(value, Tensor) and not equal(value, second[name])]:
            raise self.refusal(
                f"{listed(names, MOST_NAMED)} has other initial values each time it is built, so equal trainings would differ: draw them from torch"
            )

    def fresh(self) -> nn.Module:
        """Return a new network, built with other seeds than in the training, but with the same in each call."""
        seeding.reseed_host(self.training.params.seed, "trial")
        return self.training.params.model.build(self.training.prepared.spec)

    def refuse_dependence(self, model: Model, outputs: Tensor) -> None:
        """Raise Refusal if the first half of the samples has other outputs beside a copy of itself than `outputs`, those beside the second half."""
        half = len(self.inputs) // 2
        beside_copy = torch.cat([self.inputs[:half], self.inputs[: len(self.inputs) - half]])
        if self.differ(self.outputs(model, beside_copy)[:half], outputs[:half], exactly=False):
            raise self.refusal(
                "the outputs for a sample depend on the other samples of its batch, also outside of training mode: let each depend on its own sample alone"
            )

    def refuse_changes(self, model: Model) -> None:
        """Raise Refusal if a forward pass in training mode changes what a model file does not hold, or draws random numbers from elsewhere than torch."""
        before = host_randomness()
        self.outputs(model, trains=True)
        if drawn := set(changed_generators(before)) - {"torch"}:
            raise self.refusal(
                f"its forward pass draws from {listed(sorted(drawn), MOST_NAMED)}, which a resumed training does not repeat: draw from torch, for example by `torch.rand`"
            )
        found, weights = self.outputs(model), {name: tensor.cpu() for name, tensor in model.network.state_dict().items()}
        other = self.rebuilt(weights)
        if self.differ(self.outputs(other), found):
            raise self.refusal(
                f"its forward pass in training mode changes what the model file does not hold{unsaved(model.network, other.network)}: {REMEDY}"
            )

    def outputs(self, model: Model, inputs: Tensor | None = None, *, trains: bool = False) -> Tensor:
        """Return the outputs (n, ...) for `inputs`, those of the examples if it is None, in training mode if `trains`. The mode is restored."""
        mode = model.training
        model.train(trains)
        with torch.no_grad(), autocast(self.training.state.precision, self.training.machine.device):
            outputs: Tensor = model((self.inputs if inputs is None else inputs).clone())
        model.train(mode)
        return outputs.float()

    def trained_outputs(self) -> Tensor:
        """Return the outputs of the trained network. Raises Refusal if it fails because a tensor that is not registered is on another device."""
        model, device = self.training.state.scored, self.training.machine.device
        try:
            return self.outputs(model)
        except RuntimeError as error:
            found = unregistered(model.network)
            if names := [f"`{name}`" for name, value in found if isinstance(value, Tensor) and value.device.type != device.type]:
                raise self.refusal(f"{listed(names, MOST_NAMED)} is not on {device}, because it is not registered: {REMEDY}") from error
            raise

    def rebuilt(self, weights: Tensors) -> Model:
        """Return the model of a model file with `weights`, built with other seeds than in the training."""
        seeding.reseed_host(self.training.params.seed, "trial")
        return model_file.rebuild(weights, self.training.manifest(0, {}, {}), Path("the model file")).to(self.training.machine.device)

    def differ(self, found: Tensor, expected: Tensor, *, exactly: bool = True) -> bool:
        """Return True if the outputs differ in a bit, or by more than the tolerance if not `exactly` or on a GPU. Of weights that have diverged, no
        output may be finite; the loop refuses them.
        """
        finite = expected.isfinite()
        if exactly and expected.device.type == "cpu":
            return bool(finite.any()) and not equal(found, expected)
        tolerance = TOLERANCE if self.training.state.precision == "fp32" else TOLERANCE_16_BITS
        error, size = (torch.where(finite, each, 0).norm() for each in (found - expected, expected))
        return bool((found.isfinite() != finite).any() or error > tolerance * size)

    def refusal(self, problem: str) -> Refusal:
        return Refusal(f"model.name: {MODELS.path(self.training.params.model.name)}: {problem}")


def equal(first: Tensor, second: Tensor) -> bool:
    """Return True if the tensors are equal. NaN is equal to itself."""
    return first.shape == second.shape and bool(((first == second) | ((first != first) & (second != second))).all())  # noqa: PLR0124  # NaN


def unsaved(network: nn.Module, other: nn.Module) -> str:
    """Return a text that names what no `state_dict` holds and differs between the networks, if something is found, to be added to a message."""
    own, others = dict(unregistered(network)), dict(unregistered(other))
    names = [name for name, value in own.items() if name not in others or not np.array_equal(plain(value), plain(others[name]))]
    return f", because the file lacks {listed([f'`{name}`' for name in names], MOST_NAMED)}" if names else ""


def unregistered(network: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the tensors and numbers of `network` that its `state_dict` leaves out, also those in lists and dicts."""
    internal = vars(nn.Module()).keys()
    for place, module in network.named_modules():
        names = [name for name in vars(module) if name not in internal]
        for name in (*names, *module._non_persistent_buffers_set):
            yield from leaves(f"{place}.{name}".removeprefix("."), getattr(module, name))


def leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the tensors and numbers in `value`, an attribute called `name` or an item in one, with their names."""
    if isinstance(value, nn.Module):
        value = value.state_dict()
    if isinstance(value, Mapping):
        value = [*value.items()]
    elif isinstance(value, list | tuple):
        value = [*enumerate(value)]
    elif isinstance(value, Tensor | np.ndarray | np.number | int | float):
        yield name, value
        return
    else:
        return
    for key, each in value:
        yield from leaves(f"{name}.{key}", each)


def plain(value: object) -> Any:
    """Return a tensor as an array, and any other value as it is."""
    return value.detach().float().cpu().numpy() if isinstance(value, Tensor) else value
