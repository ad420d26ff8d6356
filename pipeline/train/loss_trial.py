"""Tries a loss before the first step: one of the user's own may fail late, or train without an error although it is no sum over the targets."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.refusal import Refusal
from pipeline.core.registry import CORRECT, LOSSES
from pipeline.core.spec import Targets
from pipeline.inference import measuring, torch_errors
from pipeline.inference.cuda_graphs import changed_generators, host_randomness
from pipeline.inference.params import ClassLossSettings, LossSettings
from pipeline.train.engine.objective import flattened
from pipeline.train.params import AugmentSettings, TrainParams

MOST_CALLS, MOST_VALUES = 100, 2**20
"""How often a loss is called with equal arguments, and how many outputs these calls have at most."""
SCALES, MOST_CLASSES = (0.5, 2.0, 8.0, 100.0), 16
"""The sizes of the outputs with which a loss is tried, and the number of classes at most."""
FAR = 100
"""Random outputs times this factor are outside of the margin of a loss that has one, so that its gradient is not 0."""


def refuse_unfit(params: TrainParams, targets: type[Targets] | Targets, num_outputs: int, device: torch.device | str = "cpu") -> None:
    """Try the loss with random outputs and targets, also with mixed ones if mixup or CutMix is on, and with plain examples. Raises Refusal if something
    is wrong.
    """
    loss, place = params.loss, f"loss.name: {LOSSES.path(params.loss.name)}"
    if targets.form is None:  # random numbers may be no valid targets of this task
        return
    try:
        outputs, tried, weights = random_example(params, targets, num_outputs)
        before = host_randomness()
        found = [problem(loss, outputs, each, weights) for each in tried]
        if drawn := changed_generators(before):
            found.insert(0, f"draws random numbers from {drawn[0]}: compute it from its arguments alone")
        for each in tried:  # a tensor of the loss may be on another device
            loss.summed(outputs.to(device), each.to(device), None if weights is None else weights.to(device))
        if not math.isfinite(chance := loss.of_guessing(num_outputs)):
            found.append(f"`of_guessing` returns {chance}: return the loss of a target for a model that has learned nothing")
        if not any(found) and not any(better > 0 for better in advantages(loss, targets, num_outputs, weights)):
            found.append(
                "the loss is not smaller if the outputs are those of the targets than if they are far from them: correct its sign, or how it uses the targets"
            )
    except Refusal as refusal:
        raise Refusal(f"loss.name: {refusal}") from None
    except (Exception, SystemExit) as error:  # whatever the module of a user raises
        if isinstance(error, Exception) and any(torch_errors.remedies(error, "model")):
            raise
        where, reason = LOSSES.failure(loss.name, error)
        raise Refusal(f"loss.name: {where}: fails: {type(error).__name__}: {reason}: {CORRECT}") from error
    for message in filter(None, found):
        raise Refusal(f"{place}: {message}")


def random_example(params: TrainParams, targets: type[Targets] | Targets, num_outputs: int) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Return random outputs, random targets of them, also mixed ones if mixup or CutMix is on, and the weights that the loss computes."""
    augment = params.augment
    outputs, stored = measuring.random_batch(targets, num_outputs)
    if targets.form == "labels":
        stored[:2] = torch.tensor([[0], [1]])  # a weight may need samples with and without each label
    outputs, random = flattened(outputs, stored.float() if targets.form == "labels" else stored)
    tried = [random]
    if targets.mixable and isinstance(augment, AugmentSettings) and (augment.mixup or augment.cutmix):
        classes = functional.one_hot(random, num_outputs).float() if targets.form == "class" else random
        tried.append(classes.lerp(classes.flip(0), 0.3))
    return outputs, tried, params.loss.weights((stored if targets.form == "labels" else random).numpy(), num_outputs)


def among_others(params: TrainParams, targets: Targets, num_outputs: int) -> dict[str, Callable[[], object]]:
    """Return a function that computes the loss of a random example, by the key and the file of the loss, to be tried together with metrics."""
    if targets.form is None:
        return {}

    def value() -> object:
        outputs, tried, weights = random_example(params, targets, num_outputs)
        return params.loss.summed(outputs, tried[0], weights).numpy()

    return {f"loss.name: {LOSSES.path(params.loss.name)}": value}


def advantages(loss: LossSettings, targets: type[Targets] | Targets, num_outputs: int, weights: Tensor | None) -> Iterator[float]:
    """Yield by how much the loss is smaller for outputs that are those of the targets than for others, at several scales.

    The outputs are the same for the wrong targets, or on both sides of the right ones, so that what does not depend on the targets, such as a
    penalty of large outputs, counts alike. A loss with a margin may distinguish them at large scales only, one with a bound at small ones.
    """
    generator = torch.Generator().manual_seed(0)
    number = min(num_outputs, MOST_CLASSES)
    for scale in SCALES:
        if targets.form == "numbers":
            right = torch.randn(MOST_CLASSES, num_outputs, generator=generator)
            wrong = [loss.summed(right + sign * scale, right, weights) for sign in (-1, 1)]
            yield float(sum(wrong) / 2 - loss.summed(right, right, weights))
        elif targets.form == "labels":
            present = torch.randint(2, (MOST_CLASSES, num_outputs), generator=generator).float()
            present = torch.cat([present, 1 - present])
            outputs = (2 * present - 1) * scale
            yield float(loss.summed(outputs, 1 - present, weights) - loss.summed(outputs, present, weights))
        else:
            classes = torch.arange(number)
            outputs = functional.one_hot(classes, num_outputs).float() * scale
            yield float(loss.summed(outputs, classes.roll(1), weights) - loss.summed(outputs, classes, weights))


def problem(loss: LossSettings, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> str:
    """Return what is wrong with the loss, and the remedy; "" if nothing is."""
    outputs, given = outputs.requires_grad_(), (outputs.detach().clone(), targets.clone())
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
    if not gradient.any() and not torch.autograd.grad(loss.summed(FAR * outputs, targets, weights), outputs)[0].any():
        return "the gradient of the loss is 0 for random outputs, so a training would change nothing: correct how it depends on the outputs"
    with torch.no_grad():
        found = problem_of_sums(loss, outputs, targets, weights, float(whole))
    if not (torch.equal(outputs, given[0]) and torch.equal(targets, given[1])):
        return "the loss changes its arguments, which the metrics use, too: change a `clone()` of them"
    return found


def problem_of_sums(loss: LossSettings, outputs: Tensor, targets: Tensor, weights: Tensor | None, total: float) -> str:
    """Return what is wrong with `total`, the sum over all targets, beside sums of parts, of other weights and of further calls; "" if nothing is."""
    middle, calls = len(outputs) // 2, max(1, min(MOST_CALLS, MOST_VALUES // outputs.numel()))
    if any(float(loss.summed(outputs, targets, weights)) != total for _ in range(calls)):
        return (
            "the loss differs in further calls with equal arguments, which a resumed training would not repeat: keep nothing between calls"
        )
    halves = sum(float(loss.summed(outputs[part], targets[part], weights)) for part in (slice(middle), slice(middle, None)))
    if not math.isclose(total, halves, rel_tol=1e-3, abs_tol=1e-6):
        return (
            f"the loss of {len(outputs)} targets is {total:.4g}, but those of both halves add up to {halves:.4g}: "
            "return the sum over all targets, not their mean"
        )
    # a loss with other weights may use them in another way
    if weights is None or type(loss).weights is not ClassLossSettings.weights:
        return ""
    if not math.isclose(float(loss.summed(outputs, targets, 2 * weights)), 2 * total, rel_tol=1e-3, abs_tol=1e-6):
        return "a target of weight 2 does not count twice: multiply the losses by `weights`, as `loss.class_weights` promises"
    return ""
