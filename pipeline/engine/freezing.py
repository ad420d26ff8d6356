"""Freezes parameters: they are not trained, need no gradient, and have no optimizer state."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipeline.engine.parameter_names import matching
from pipeline.refusal import Refusal

KEY = "train.freeze"
MOST_NAMED = 3


def freeze(network: nn.Module, patterns: Sequence[str], *, untrained: Collection[str] = ()) -> list[nn.Module]:
    """Freeze the parameters whose names match `patterns`. Return the BatchNorm layers whose running statistics must stay unchanged.

    A BatchNorm layer is returned if all its parameters are frozen. A BatchNorm layer without parameters (`affine=False`) is returned if the
    name of its `running_mean` matches a pattern. Autograd computes no gradient for the layers below the first trained parameter.

    `untrained` contains the names of the tensors that still have random values, because the file of `model.weights` does not supply them.
    Raises Refusal if a pattern matches no parameter, if a frozen parameter is in `untrained`, or if no parameter is left to train.
    """
    parameters = dict(network.named_parameters())
    frozen = matching(patterns, list(parameters), KEY)
    if lost := sorted(frozen.intersection(untrained)):
        raise Refusal(
            f"{KEY}: freezes {', '.join(lost[:MOST_NAMED])}, which the file of model.weights does not supply for this data, "
            "so they would keep their random initial values: change train.freeze so that no pattern matches them"
        )
    for name in frozen:
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise Refusal(f"{KEY}: freezes every parameter, so nothing is trained: let the patterns leave out at least the last layer")
    return [module for name, module in network.named_modules() if isinstance(module, _BatchNorm) and keeps(name, module, frozen, patterns)]


def keeps(name: str, norm: nn.Module, frozen: Collection[str], patterns: Sequence[str]) -> bool:
    """Return True if the running statistics of the BatchNorm layer `norm` must stay unchanged (see `freeze`).

    `name` is the name of the layer in the network. `frozen` contains the names of all frozen parameters.
    """
    prefix = f"{name}." if name else ""
    own = [f"{prefix}{parameter}" for parameter, _ in norm.named_parameters()]
    if own:
        return all(parameter in frozen for parameter in own)
    return any(fnmatchcase(f"{prefix}running_mean", pattern) for pattern in patterns)


def summary(network: nn.Module) -> str:
    """Describe how much of the network is trained, for a message."""
    parameters = list(network.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    counts = [sum(parameter.numel() for parameter in some) for some in (trained, parameters)]
    return f"{len(trained)} of {len(parameters)} parameters are trained, {counts[0]:,} of {counts[1]:,} values"
