"""Chooses the forward pass: eager, or compiled by torch.compile."""

from typing import Literal, cast

import torch

from pipeline.inference.networks import Model
from pipeline.train.engine.update import Forward

MODES = {"default": "default", "graphs": "reduce-overhead"}
MOST_COMPILED = 4096
"""Upper bound for how often the compiler compiles a function, for other sizes or another layer. Eight lengths and few micro-batch sizes are usual."""


def compiled(model: Model, requested: Literal["off", "default", "graphs"]) -> Forward:
    """Return `model` compiled by torch.compile, or `model` itself if `requested` is "off".

    `requested` is the value of `train.compile`; "graphs" also uses CUDA graphs. The compiler makes separate code for each micro-batch size
    and for each length of padded samples. Code for dynamic sizes is not used: it would depend on which sizes the process ran before, and
    could round differently after a restart.
    """
    if requested == "off":
        return model
    from torch._dynamo import config  # late: it takes seconds

    # this call also sets inductor's own deterministic flag
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    # beyond its limit of 8, the compiler would run further sizes uncompiled: those that came late, which are others after a restart
    config.recompile_limit = config.accumulated_recompile_limit = MOST_COMPILED
    config.fail_on_recompile_limit_hit = True
    return cast("Forward", torch.compile(model, mode=MODES[requested], dynamic=False))
