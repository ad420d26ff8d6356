"""Counts the parameters of a model, and what its forward pass computes, on torch's meta device, where nothing is computed."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipeline.core.spec import Spec
from pipeline.inference import networks
from pipeline.inference.batch import without_padding
from pipeline.inference.networks import Model
from pipeline.train.params import TrainParams
from pipeline.train.training import Training

SAMPLES = 2
"""BatchNorm needs two samples. What is counted is divided by this number."""


class Forward(NamedTuple):
    """The forward pass of one sample: its FLOPs, and the numbers that all layers output. `num_weights` is the number of parameters."""

    flops: float
    num_outputs: float
    num_weights: int


def count_forward(params: TrainParams, spec: Spec, longest: int | None = None) -> Forward | None:
    """Count the forward pass of a sample, of a text with the length to which a batch with the `longest` is cut (None: the full length).

    Return None if the network cannot run on the meta device, for example because it needs pretrained weights or values of tensors.
    """
    num_outputs = 0

    def add(module: nn.Module, _: object, output: object) -> None:
        nonlocal num_outputs
        if isinstance(output, torch.Tensor) and not any(module.children()):
            num_outputs += output.numel()

    try:
        with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter, torch.no_grad():
            network = networks.build_on_meta(params.model, spec)
            if network is None:
                return None
            params.model.add_updates(network, frozenset())
            for module in network.modules():
                module.register_forward_hook(add)
            model = Model(network, networks.preprocessing(spec.inputs, channels_last=False).to("meta")).train()
            inputs = torch.empty((SAMPLES, *spec.inputs.row_shape), dtype=getattr(torch, np.dtype(spec.inputs.dtype).name), device="meta")
            model(without_padding(inputs, None if longest is None else torch.tensor([longest])))
    except Exception:  # whatever a model of one's own raises: if a training raises it too, that reports it with place and remedy
        return None
    num_weights = sum(parameter.numel() for parameter in network.parameters())
    return Forward(counter.get_total_flops() / SAMPLES, num_outputs / SAMPLES, num_weights)


def described(training: Training) -> str:
    """Return how large the model of a training is, such as `680,710 parameters, 21 MFLOPs for a sample (forward)`."""
    parameters, lengths = training.state.parameters, training.prepared.train.lengths
    num_parameters, num_trained = (sum(each.numel() for each in parameters if each.requires_grad or frozen) for frozen in (True, False))
    trained = f" ({num_trained:,} trained)" if num_trained < num_parameters else ""
    forward = count_forward(training.params, training.prepared.spec, None if lengths is None else int(lengths.max()))
    flops = f", {si(forward.flops)}FLOPs for a sample (forward)" if forward else ""
    return f"{num_parameters:,} parameters{trained}{flops}"


def si(value: float) -> str:
    """Return a number with an SI prefix and a space, such as `1.2 M`."""
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:,.0f} T" if value >= 100 else f"{value:.3g} T"
