"""Models: preprocessing and network in one module, networks without memory on torch's meta device, and forward passes without gradients."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, cast

import psutil
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from pipeline.core import seeding
from pipeline.core.refusal import Refusal
from pipeline.core.registry import Registry
from pipeline.core.spec import Inputs, Spec, Targets
from pipeline.inference import precision
from pipeline.inference.batch import Batch
from pipeline.inference.cuda_graphs import Graphs
from pipeline.inference.params import ModelSettings
from pipeline.inference.precision import ChosenPrecision, autocast
from pipeline.inference.tensor_file import Tensors

PREPROCESSING = Registry("pipeline.inputs", "kind of inputs", "first_layer", needs_torch=True)


def preprocessing(inputs: Inputs, *, channels_last: bool) -> nn.Module:
    """Build the preprocessing module for the kind of `inputs`, such as images.

    `channels_last` sets the memory format of the preprocessed inputs.
    """
    return cast("nn.Module", PREPROCESSING.module(inputs.kind).Preprocessing(inputs, channels_last=channels_last))


class Postprocessing(nn.Module):
    """The last layer of a trained model: turns the outputs of the network into predictions, by `as_predictions` of its targets."""

    def __init__(self, targets: Targets) -> None:
        super().__init__()
        self.unit, self.as_predictions = targets.prediction_unit, targets.as_predictions
        for name, values in targets.constants.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64), persistent=False)

    def forward(self, outputs: Tensor) -> Tensor:
        return self.as_predictions(outputs, dict(self.named_buffers()))


def postprocessing(targets: Targets) -> Postprocessing | None:
    """Build the last layer of a trained model of such targets; None if its outputs are those of the network, such as logits."""
    return None if targets.prediction_unit is None else Postprocessing(targets)


class Model(nn.Module):
    """Preprocesses stored inputs, and maps them to outputs. In classification, the outputs are logits (n, classes).

    A training and an evaluation compare the outputs of the network itself with the targets. For predictions, a model file is opened with `postprocessing`, a
    last layer after the network, if the task has one: the outputs of a regression are then numbers in the units of the targets, in float64.

    Stored inputs are the inputs in the prepared data, for example uint8 images.

    If `bf16_weights` is True, the network runs in bf16: its inputs are converted to bf16, and so are its weights, except those of
    BatchNorm. The outputs are converted back to float32. `channels_last` sets the memory format of the network's weights; for a
    training, `train/beginning.py` chooses it.
    """

    frozen_norms: Sequence[nn.Module] = ()
    """BatchNorm layers that stay in evaluation mode, also in training: their running statistics stay unchanged."""

    def __init__(self, network: nn.Module, preprocessing: nn.Module, *, bf16_weights: bool = False, channels_last: bool = False) -> None:
        super().__init__()
        if bf16_weights:
            precision.to_bf16(network)
        self.bf16_weights = bf16_weights
        self.channels_last = channels_last
        self.network = network.to(memory_format=torch.channels_last) if channels_last else network
        self.preprocessing = preprocessing
        self.postprocessing: Postprocessing | None = None

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for norm in self.frozen_norms:
            norm.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        prepared = self.preprocessing(inputs)
        outputs = cast("Tensor", self.network(precision.as_bf16(prepared)).float() if self.bf16_weights else self.network(prepared))
        return outputs if self.postprocessing is None else cast("Tensor", self.postprocessing(outputs))


def load(network: nn.Module, tensors: Tensors, *, strict: bool = True) -> None:
    """Copy `tensors` into the parameters and buffers of `network`. Raises RuntimeError if shapes differ or, if `strict` is True, if names do.

    The tensors count as written by the present code of each layer. torch keeps this version beside the tensors of a `state_dict`, and a
    network such as torchvision's mnasnet refuses tensors without it.
    """
    versioned = OrderedDict(tensors)
    setattr(versioned, "_metadata", getattr(network.state_dict(), "_metadata"))  # noqa: B009, B010  # an attribute that typing does not know
    network.load_state_dict(versioned, strict=strict)


# `arange` and similar functions are left out: the `build` of a model may compute widths or rates with them, and then needs their values
ON_META = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
MOST_NAMED = 3


class MetaDeviceMode(TorchFunctionMode):
    """Makes the functions in ON_META create tensors on the meta device, unless a call sets `device`.

    `with torch.device("meta")` is not used, because it affects every function. 15 of torchvision's 80 classifiers cannot be built under
    it.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if function in ON_META and options.get("device") is None:
            options["device"] = "meta"
        return function(*args, **options)


def build_on_meta(model: ModelSettings, spec: Spec) -> nn.Module | None:
    """Return the network on the meta device, or None if `model.build` needs tensor values.

    Tensors on the meta device have no values. Raises Refusal if `model.build` returns something else than a network.
    """

    def build() -> nn.Module:
        network = model.build(spec)
        if not isinstance(network, nn.Module):
            raise Refusal(
                f"pipeline/models/{model.name}.py: its `build` returns {type(network).__name__}, not a network: return an `nn.Module`"
            )
        return network

    try:
        with MetaDeviceMode():
            return build()
    except Refusal:
        raise
    except Exception:  # of the model's own code, or because a tensor has no values: a build with values tells which
        with seeding.restored_host():
            build()
        return None


def try_out(network: nn.Module, *shape: int) -> None:
    """Run one sample of this shape through `network` on the meta device. Raises an exception if the network does not accept it.

    Only a forward pass finds this out. The call changes neither weights nor random state. Afterwards the network is in training mode.
    """
    contents = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    on_meta = {name: tensor.to("meta") for name, tensor in contents.items()}
    with torch.no_grad():
        functional_call(network.eval(), on_meta, (torch.zeros(1, *shape, device="meta"),))
    network.train()


def compare(weights: Tensors, model: ModelSettings, spec: Spec, *, bf16_weights: bool = False) -> None:
    """Raise RuntimeError if `weights` differ in names, shapes or dtypes from the tensors of the network that `model` and `spec` describe.

    If `bf16_weights` is True, the network has bf16 weights, except in BatchNorm. The network is built on the meta device, so that even a
    huge network takes no memory. If it cannot be built on the meta device, nothing is compared.
    """
    network = build_on_meta(model, spec)
    if network is None:
        return
    if bf16_weights:
        precision.to_bf16(network)
    if different := differences(weights, network.state_dict()):
        raise RuntimeError(different)


def differences(found: Tensors, expected: Tensors) -> str:
    """Compare the tensors `found` with those `expected`, by name. Return the first differences as a text, or "" if there are none.

    Two tensors of the same name differ if their shapes or dtypes differ. A tensor that only one side has is a difference too.
    """
    names = sorted(name for name in expected.keys() | found.keys() if described(expected.get(name)) != described(found.get(name)))
    return "; ".join(f"{name} is {described(found.get(name))}, not {described(expected.get(name))}" for name in names[:MOST_NAMED])


def described(tensor: Tensor | None) -> str:
    """Return dtype and shape of a tensor for a message, such as `float32 (16, 64)`."""
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def refuse_too_large(model: ModelSettings, spec: Spec) -> None:
    """Raise Refusal if the model's weights alone are larger than this machine's memory.

    Checks nothing if the network cannot be built on the meta device.
    """
    network = build_on_meta(model, spec)
    if network is None:
        return
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    memory_bytes = psutil.virtual_memory().total
    if size_bytes > memory_bytes:
        raise Refusal(
            f"model.name: the weights of this {model.title} take {size_bytes / 1e9:.0f} GB, the machine has {memory_bytes / 1e9:.0f} GB: "
            "choose a smaller model"
        )


Padded = tuple[Batch, int]
"""A batch, and the number of its samples that are not padding."""


def predict(
    model: nn.Module, batches: Iterable[Padded], *, precision: ChosenPrecision, device: torch.device, graphs: Graphs | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the pair (outputs, targets) for each batch. The samples that only fill up a batch are left out.

    Outputs are float32, or float64 if the model returns float64. Targets are None if the batch has no targets. The model runs in evaluation mode. Its previous mode is restored when
    the iterator ends or is closed. With `graphs`, the forward pass is replayed, and the next iteration overwrites the outputs. Raises Refusal
    if the model does not return a row for each sample.
    """

    def forward(inputs: Tensor) -> Tensor:
        with torch.no_grad(), autocast(precision, device):
            return cast("Tensor", model(inputs))

    training = model.training
    model.eval()
    try:
        for batch, real in batches:
            outputs = graphs.run(("forward", model), [batch.inputs], forward) if graphs else forward(batch.inputs)
            if outputs.shape[:1] != batch.inputs.shape[:1]:
                raise Refusal(
                    f"model.name: this model returns outputs of shape {tuple(outputs.shape)} for a batch of {len(batch.inputs)}: its forward must "
                    "keep the dimension of the samples, so call, for example, `flatten(1)` instead of `squeeze()`"
                )
            targets = None if batch.targets is None else batch.targets[:real]
            del batch  # otherwise this reference would keep the inputs alive until the next batch is loaded
            yield outputs[:real].to(torch.promote_types(outputs.dtype, torch.float32)), targets
    finally:
        model.train(training)
