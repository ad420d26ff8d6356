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

NUM_SAMPLES = 8
MOST_NAMED = 5
TOLERANCE, TOLERANCE_16_BITS = 1e-3, 0.1
"""The largest difference of outputs, relative to their norm, where they may be rounded in another way: on a GPU, after weights were merged or
divided, and for another batch."""
REGISTER = (
    "register layers in `nn.ModuleList` or `nn.ModuleDict`, trained tensors as `nn.Parameter` and other tensors by `register_buffer`, "
    "without `persistent=False`, and let everything else follow from `Settings`"
)


def refuse_unfit(training: Training) -> None:
    """Raise Refusal if networks that are built again from the model file do not compute what the trained one does: see `Comparison`.

    All processes call this; the first one builds the networks. If the memory does not suffice for another network, say so, and compare nothing.
    """
    comparison = Comparison(training, examples(training))
    on_gpu = training.machine.device.type == "cuda"
    with torch.random.fork_rng(devices=[training.machine.device] if on_gpu else []):
        outputs, weights = comparison.trained_outputs(), training.whole(training.state.weights())
        problem = training.group.problem(lambda: comparison.refuse(outputs, weights))
    if isinstance(problem, RuntimeError) and torch_errors.is_out_of_memory(problem):
        print("train: the network is not compared with its model file: there is no memory for a second network", flush=True)
    elif problem:
        training.group.leave(problem)


def examples(training: Training) -> Tensor:
    """Return the inputs of NUM_SAMPLES train samples, evenly spaced over the split, on the device, as a batch has them."""
    split, count = training.prepared.train, min(NUM_SAMPLES, len(training.prepared.train))
    rows = np.arange(count) * len(split) // count
    few = Split.of(training.prepared.spec, split.inputs[rows], split.targets[rows])
    ((batch, _),) = loader.scoring(loader.SplitTensors(few, training.machine.device, resident=True), batch_size=count)
    return batch.inputs


@dataclass(frozen=True)
class Comparison:
    """The networks that a model file gives, beside the trained one. `inputs` (n, ...) are those of some train samples."""

    training: Training
    inputs: Tensor

    def refuse(self, outputs: Tensor, weights: Tensors) -> None:
        """Raise Refusal if a network of a model file with `weights` gives other outputs than `outputs`, those of the trained network, or other ones
        in a second call or beside other samples; if it draws random numbers that no seed decides; or if a forward pass in training mode changes
        what the file does not hold.
        """
        trained = self.training.state.scored.network
        same_operations = weights.keys() == trained.state_dict().keys() and not self.training.group.holds_shards
        self.refuse_random_weights()
        first = self.rebuilt(weights)
        before = host_randomness()
        found = self.outputs(first)
        if drawn := changed_generators(before):
            raise self.refusal(
                f"its forward pass draws from or seeds {listed(drawn, MOST_NAMED)} outside of training mode: ask for `self.training`, as in `dropout(x, p, self.training)`"
            )
        if self.differ(self.outputs(first), found):
            raise self.refusal(
                f"gives other outputs in a second call outside of training mode{unsaved(trained, first.network)}: {REGISTER}"
            )
        if self.differ(found, outputs, exactly=same_operations):
            raise self.refusal(
                f"a network with the tensors of its model file gives other outputs than the trained one{unsaved(trained, first.network)}: {REGISTER}"
            )
        self.refuse_dependence(first, found)
        if len(self.inputs) > 1:  # BatchNorm needs more than one
            self.refuse_changes(first)

    def refuse_random_weights(self) -> None:
        """Raise Refusal if a network has other initial weights when it is built again with the same seeds."""
        networks = []
        for _ in range(2):
            seeding.reseed_host(self.training.params.seed, "trial")
            networks.append(self.training.params.model.build(self.training.prepared.spec).state_dict())
        if names := [name for name, tensor in networks[0].items() if not torch.equal(tensor, networks[1][name])]:
            raise self.refusal(
                f"{listed(names, MOST_NAMED)} has other initial values each time it is built, so equal trainings would differ: draw them from torch"
            )

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
                f"its forward pass in training mode changes what the model file does not hold{unsaved(model.network, other.network)}: {REGISTER}"
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
                raise self.refusal(f"{listed(names, MOST_NAMED)} is not on {device}, because it is not registered: {REGISTER}") from error
            raise

    def rebuilt(self, weights: Tensors) -> Model:
        """Return the model of a model file with `weights`, built with other seeds than in the training."""
        seeding.reseed_host(self.training.params.seed, "trial")
        return model_file.rebuild(weights, self.training.manifest(0, {}, {}), Path("the model file")).to(self.training.machine.device)

    def differ(self, found: Tensor, expected: Tensor, *, exactly: bool = True) -> bool:
        """Return True if the outputs differ in a bit, or by more than the tolerance if not `exactly` or on a GPU."""
        if not expected.isfinite().all():
            return False  # the loop refuses weights that have diverged
        if exactly and expected.device.type == "cpu":
            return not torch.equal(found, expected)
        tolerance = TOLERANCE if self.training.state.precision == "fp32" else TOLERANCE_16_BITS
        return bool((found - expected).norm() > tolerance * expected.norm())

    def refusal(self, problem: str) -> Refusal:
        return Refusal(f"model.name: {MODELS.path(self.training.params.model.name)}: {problem}")


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
    return value.detach().float().cpu().numpy() if isinstance(value, Tensor) else value
