"""The forward pass as it is called: plain, or through torch.compile."""

from typing import Literal, cast

import torch

from pipeline.engine.classifier import Classifier
from pipeline.engine.update import Forward

MODES = {"default": "default", "graphs": "reduce-overhead"}


def compiled(classifier: Classifier, wish: Literal["off", "default", "graphs"]) -> Forward:
    """Code for each size of micro-batch by itself: code for any size would depend on which sizes came before."""
    if wish == "off":
        return classifier
    # the compiler has a switch of its own, which this sets
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    return cast("Forward", torch.compile(classifier, mode=MODES[wish], dynamic=False))
