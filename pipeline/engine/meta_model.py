"""Builds networks on torch's meta device, where tensors have shapes but take no memory."""

from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pipeline.engine import precision
from pipeline.io.tensor_file import Tensors
from pipeline.params.model import ModelSettings
from pipeline.refusal import Refusal
from pipeline.spec import Spec

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
    try:
        with MetaDeviceMode():
            network = model.build(spec)
            if not isinstance(network, nn.Module):
                raise Refusal(
                    f"pipeline/models/{model.name}.py: its `build` returns {type(network).__name__}, not a network: return an `nn.Module`"
                )
            return network
    except (RuntimeError, TypeError) as error:
        if "meta" in str(error):
            return None
        raise


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
