"""The forward pass, either eager or through torch.compile."""

from typing import Literal, cast

import torch

from pipeline.engine.classifier import Classifier
from pipeline.engine.update import Forward

MODES = {"default": "default", "graphs": "reduce-overhead"}


def compiled(classifier: Classifier, wish: Literal["off", "default", "graphs"]) -> Forward:
    """Return the classifier, compiled separately for each micro-batch size unless `wish` is "off".

    Code for dynamic sizes would depend on which sizes came before.
    """
    if wish == "off":
        return classifier
    # inductor has its own deterministic flag, which this call sets
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    return cast("Forward", torch.compile(classifier, mode=MODES[wish], dynamic=False))
