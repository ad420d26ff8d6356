"""Computes the size of a model before its first step: parameters, FLOPs per sample, and the expected memory of its training."""

from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import counted
from pipeline.core.spec import Spec
from pipeline.inference import networks, precision
from pipeline.inference.batch import without_padding
from pipeline.inference.networks import Model, preprocessing
from pipeline.train import blocks
from pipeline.train.engine import parameter_groups
from pipeline.train.engine.state import TrainState
from pipeline.train.group.sharding import local
from pipeline.train.optimizer_params import AdamSettings, OptimizerSettings, SgdSettings
from pipeline.train.params import TrainParams

LOSS_BYTES = 4
"""For each output, the loss keeps a log probability in float32."""


@dataclass(frozen=True)
class Forward:
    """The cost of the forward pass of one micro-batch: the FLOPs of all samples, and the bytes of activations kept for the backward pass."""

    flops: int
    activation_bytes: int


@dataclass(frozen=True)
class ModelSize:
    """The size of a model, and the memory of its training in this process. `forward` is None if it could not be counted.

    `used_bytes` is the memory in use before the first step, with weights, EMA and data: on a CPU all memory of the process, on a GPU that of
    its tensors. The other bytes will be allocated during the first step; `optimizer_bytes` is 0 if the optimizer state was restored.
    """

    num_parameters: int
    num_trained: int
    micro_batch_size: int
    forward: Forward | None
    used_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    @classmethod
    def of(
        cls, state: TrainState, params: TrainParams, prepared: Prepared, *, micro_batch_size: int, captured: bool = False
    ) -> "ModelSize":
        """Measure the model of a training before its first step. Computes nothing on the device, and does not change the random state.

        `captured` is True if the steps are captured as CUDA graphs, which have their gradients twice.
        """
        parameters, lengths = state.parameters, prepared.train.lengths
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        trained_bytes = sum(local(parameter).nbytes for parameter in trained)
        existing = sum(
            local(value).nbytes for kept in state.optimizer.state.values() for value in kept.values() if isinstance(value, Tensor)
        )
        return cls(
            num_parameters=sum(parameter.numel() for parameter in parameters),
            num_trained=sum(parameter.numel() for parameter in trained),
            micro_batch_size=micro_batch_size,
            forward=count_forward(
                params,
                prepared.spec,
                state.precision,
                micro_batch_size,
                channels_last=state.model.channels_last,
                longest=None if lengths is None else int(lengths.max()),
            ),
            used_bytes=used_bytes(state.device),
            gradient_bytes=(2 if captured else 1) * trained_bytes,
            optimizer_bytes=max(0, tensors_per_weight(params.optimizer) * trained_bytes - existing),
        )

    def lines(self, device: torch.device) -> list[str]:
        """Return a line about the model and one about the memory."""
        trained = f" ({self.num_trained:,} trained)" if self.num_trained < self.num_parameters else ""
        flops = f", {si(self.forward.flops / self.micro_batch_size)}FLOPs for a sample (forward)" if self.forward else ""
        parts = {
            "in use (libraries, data, weights)" if device.type == "cpu" else "in use (data, weights)": self.used_bytes,
            "for gradients": self.gradient_bytes,
            "for optimizer state": self.optimizer_bytes,
        }
        if self.forward:
            parts[f"for activations of {counted(self.micro_batch_size, 'sample')}"] = self.forward.activation_bytes
        listed = " + ".join(f"{size(number)} {name}" for name, number in parts.items() if number)
        missing = "temporary buffers" if self.forward else "activations and temporary buffers"
        context = " and the CUDA context" if device.type == "cuda" else ""
        return [
            f"{self.num_parameters:,} parameters{trained}{flops}",
            f"memory expected: {size(sum(parts.values()))} = {listed}, without {missing}{context}",
        ]


def tensors_per_weight(optimizer: OptimizerSettings) -> int:
    """Return how many tensors of the size of a parameter the optimizer keeps for it."""
    match optimizer:
        case AdamSettings():
            return 2
        case SgdSettings(momentum=momentum):
            return int(momentum > 0)
        case _:
            return 1


def used_bytes(device: torch.device) -> int:
    """Return the resident memory of this process, or the memory of its tensors on the GPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else int(psutil.Process().memory_info().rss)


def count_forward(
    params: TrainParams,
    spec: Spec,
    chosen: precision.ChosenPrecision,
    micro_batch_size: int,
    *,
    channels_last: bool,
    longest: int | None,
) -> Forward | None:
    """Count the forward pass of a micro-batch on torch's meta device, where nothing is computed.

    All samples count with the length to which a batch with the `longest` one is cut; if it is None, with the full length. With autocast,
    the network is counted as if all of it ran in 16 bits. Returns None if the network cannot run on the meta device.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            model = on_meta(params, spec, in_16_bits=chosen != "fp32", channels_last=channels_last)
            return None if model is None else measured(model, spec, micro_batch_size, longest, casts_weights=chosen in precision.DTYPES)
    except Exception:  # a model of the user may do what the meta device cannot; the training needs no such number
        return None


def on_meta(params: TrainParams, spec: Spec, *, in_16_bits: bool, channels_last: bool) -> Model | None:
    """Return the model on the meta device, with the training's frozen parameters and activation checkpointing; None if it has no meta model.

    If `in_16_bits` is True, the network is converted to bf16. This stands for fp16 too, because only sizes are counted.
    """
    network = networks.build_on_meta(params.model, spec)
    if network is None:
        return None
    settings = params.train
    params.model.add_updates(network, frozenset())
    first = preprocessing(params.model.normalized(spec.inputs), channels_last=channels_last).to("meta")
    model = Model(network, first, bf16_weights=in_16_bits, channels_last=channels_last)
    if settings.freeze:
        model.frozen_norms = parameter_groups.freeze(network, settings.freeze)
    if settings.activation_checkpointing:
        blocks.apply(network)
    return model.train()


def measured(model: nn.Module, spec: Spec, samples: int, longest: int | None, *, casts_weights: bool) -> Forward:
    """Run a forward pass of `samples` samples of the length `longest` on the meta device. If `casts_weights`, the 16-bit copies of the weights count too."""
    inputs = torch.from_numpy(np.empty((0, *spec.inputs.row_shape), spec.inputs.dtype)).new_empty(
        (samples, *spec.inputs.row_shape), device="meta"
    )
    inputs = without_padding(inputs, None if longest is None else torch.tensor([longest]))
    own = set() if casts_weights else {parameter.untyped_storage()._cdata for parameter in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(inputs)
    activation_bytes = sum(number for address, number in kept.items() if address not in own)
    return Forward(counter.get_total_flops(), activation_bytes + outputs.numel() * LOSS_BYTES)


def si(value: float) -> str:
    """Return a number with an SI prefix and a space, such as `1.2 M`."""
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:,.0f} T" if value >= 100 else f"{value:.3g} T"


def size(number: int) -> str:
    """Return a number of bytes, such as `1.2 MB`."""
    return f"{si(number)}B"
