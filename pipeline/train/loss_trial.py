"""Tries a loss before the first step: one of the user's own may fail late, or train without an error although it is no sum over the targets."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES
from pipeline.core.spec import Targets
from pipeline.core.tasks.classification import ClassTargets
from pipeline.core.tasks.language_modeling import NextTokenTargets
from pipeline.core.tasks.multi_label import LabelTargets
from pipeline.core.tasks.regression import NumberTargets
from pipeline.core.tasks.sequence import SequenceTargets
from pipeline.inference import measuring, torch_errors
from pipeline.inference.params import ClassLossSettings, LossSettings
from pipeline.train.engine.objective import flattened
from pipeline.train.params import AugmentSettings, TrainParams

TASKS = (ClassTargets, LabelTargets, NextTokenTargets, NumberTargets, SequenceTargets)
"""The losses of other tasks are not tried: random numbers may be no valid targets of them."""


def refuse_unfit(params: TrainParams, targets: type[Targets] | Targets, num_outputs: int, device: torch.device | str = "cpu") -> None:
    """Try the loss with random outputs and targets, also with mixed ones if mixup or CutMix is on. Raises Refusal if something is wrong."""
    loss, augment = params.loss, params.augment
    if not issubclass(targets if isinstance(targets, type) else type(targets), TASKS):
        return
    outputs, stored = measuring.random_batch(targets, num_outputs)
    if targets.has_labels:
        stored[:2] = torch.tensor([[0], [1]])  # a weight may need samples with and without each label
    outputs, random = flattened(outputs, stored.float() if targets.has_labels else stored)
    tried = [random]
    if (targets.has_classes or targets.has_labels) and isinstance(augment, AugmentSettings) and (augment.mixup or augment.cutmix):
        classes = functional.one_hot(random, num_outputs).float() if targets.has_classes else random
        tried.append(classes.lerp(classes.flip(0), 0.3))
    try:
        weights = loss.weights((stored if targets.has_labels else random).numpy(), num_outputs)
        found = [problem(loss, outputs, each, weights) for each in tried]
        for each in tried:  # a tensor of the loss may be on another device
            loss.summed(outputs.to(device), each.to(device), None if weights is None else weights.to(device))
        if not math.isfinite(chance := loss.of_guessing(num_outputs)):
            found.append(f"`of_guessing` returns {chance}: return the loss of a target for a model that has learned nothing")
    except Refusal as refusal:
        raise Refusal(f"loss.name: {refusal}") from None
    except Exception as error:  # whatever the module of a user raises
        if any(torch_errors.remedies(error, "model")):
            raise
        place, reason = LOSSES.failure(loss.name, error)
        raise Refusal(f"loss.name: {place}: fails: {type(error).__name__}: {reason}: correct it, as docs/extending.md explains") from error
    for message in filter(None, found):
        raise Refusal(f"loss.name: {LOSSES.path(loss.name)}: {message}")


def problem(loss: LossSettings, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> str:
    """Return what is wrong with the loss, and the remedy; "" if nothing is."""
    outputs = outputs.requires_grad_()
    middle = len(outputs) // 2
    whole = loss.summed(outputs, targets, weights)
    if not isinstance(whole, Tensor) or whole.shape != ():
        found = f"a tensor of shape {tuple(whole.shape)}" if isinstance(whole, Tensor) else f"a {type(whole).__name__}"
        return f"`summed` returns {found}: return a scalar tensor, the sum over all targets"
    if not whole.requires_grad:
        return "the loss has no gradient: compute it from the outputs by operations of torch, without `detach`, `item` or `argmax`"
    (gradient,) = torch.autograd.grad(whole, outputs)
    if not (whole.isfinite() and gradient.isfinite().all()):
        return (
            "the loss or its gradient is not finite for random outputs: correct it, for example by a `clamp` before a logarithm or a root"
        )
    total = float(whole.detach())
    with torch.no_grad():
        halves = sum(float(loss.summed(outputs[part], targets[part], weights)) for part in (slice(middle), slice(middle, None)))
        twice = None if weights is None else float(loss.summed(outputs, targets, 2 * weights))
    if not math.isclose(total, halves, rel_tol=1e-3, abs_tol=1e-6):
        return (
            f"the loss of {len(outputs)} targets is {total:.4g}, but those of both halves add up to {halves:.4g}: "
            "return the sum over all targets, not their mean"
        )
    # a loss with other weights may use them in another way
    linear = type(loss).weights is ClassLossSettings.weights
    if twice is not None and linear and not math.isclose(twice, 2 * total, rel_tol=1e-3, abs_tol=1e-6):
        return "a target of weight 2 does not count twice: multiply the losses by `weights`, as `loss.class_weights` promises"
    return ""
