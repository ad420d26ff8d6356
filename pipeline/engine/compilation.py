"""Chooses the forward pass: eager, or compiled by torch.compile."""

from typing import Literal, cast

import torch

from pipeline.engine.model import Model
from pipeline.engine.update import Forward

MODES = {"default": "default", "graphs": "reduce-overhead"}


def compiled(model: Model, requested: Literal["off", "default", "graphs"]) -> Forward:
    """Return `model` compiled by torch.compile, or `model` itself if `requested` is "off".

    `requested` is the value of `train.compile`; "graphs" also uses CUDA graphs. Each micro-batch size is compiled separately: code for
    dynamic sizes, and so the rounding, would depend on which sizes were run before.
    """
    if requested == "off":
        return model
    # this call also sets inductor's own deterministic flag
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    return cast("Forward", torch.compile(model, mode=MODES[requested], dynamic=False))
