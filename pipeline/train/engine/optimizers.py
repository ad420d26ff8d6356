"""Builds the fused optimizer that the settings select. Only the weights of linear, convolutional and similar layers get weight decay."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from pipeline.inference.gpu_diagnostics import BF16_CAPABILITY
from pipeline.train.engine import parameter_groups
from pipeline.train.engine.parameter_groups import Adjustment
from pipeline.train.group.sharding import is_divided, local
from pipeline.train.optimizer_params import AdamSettings, MuonSettings, OptimizerSettings, SgdSettings

NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Jordan's Newton-Schulz coefficients: they bring singular values to between about 0.7 and 1.2, with the steepest possible slope at 0."""
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Updates parameter groups with `hidden: True` by orthogonalised momentum (Muon), and all other groups by SGD with momentum.

    Like torch's fused optimizers, it supports `found_inf`: if this scalar on the device is 1.0, the step changes nothing and needs no
    host synchronisation. All momentum buffers start at zero. In hidden groups, the buffers have at least float32 precision.
    """

    # with this flag, GradScaler sets `found_inf` on the optimizer instead of reading it on the host
    _step_supports_amp_scaling = True

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, nesterov: bool, ns_steps: int, normalize_weights: bool) -> None:
        super().__init__(groups, {"lr": lr, "nesterov": nesterov, "ns_steps": ns_steps, "normalize_weights": normalize_weights})
        for group in self.param_groups:
            for parameter in group["params"]:
                dtype = torch.promote_types(parameter.dtype, torch.float32) if group["hidden"] else parameter.dtype
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, dtype=dtype)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update. The gradients must already be unscaled."""
        assert closure is None
        # GradScaler sets `grad_scale` only if the gradients are still scaled
        assert getattr(self, "grad_scale", None) is None
        found_inf = getattr(self, "found_inf", None)
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["hidden"]:
                buffers = [self.state[parameter]["momentum_buffer"] for parameter in trained]
                fused_sgd(trained, gradients(trained), buffers, group, found_inf)
                continue
            for same_shape in by_shape(trained):
                self.muon_step(same_shape, group, found_inf)

    def muon_step(self, parameters: list[nn.Parameter], group: dict[str, Any], found_inf: Tensor | None) -> None:
        """Apply Muon to `parameters`, which must all have the same shape. Nothing changes if `found_inf` is 1.0.

        The parameters are stacked into one batch, so that fewer kernels are launched.
        """
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        old_momentum, weights = matrices(buffers), matrices(parameters)
        gradient = matrices(gradients(parameters))
        momentum = old_momentum.lerp(gradient, 1 - group["momentum"])
        update = orthogonalized(gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum, group["ns_steps"])
        rows, columns = weights.shape[1:]
        step_size = group["lr"] * math.sqrt(max(1.0, rows / columns))
        start = normalized(weights) if group["normalize_weights"] else weights * (1 - group["lr"] * group["weight_decay"])
        new_weights = start - step_size * update
        write(buffers, momentum if found_inf is None else torch.where(found_inf > 0, old_momentum, momentum))
        write(parameters, new_weights if found_inf is None else torch.where(found_inf > 0, weights, new_weights))


class ShardedSGD(torch.optim.SGD):
    """Applies torch's fused SGD to the shards of this process. torch does not apply it to divided parameters itself."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        assert closure is None
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            buffers = [local(self.state[parameter]["momentum_buffer"]) if group["momentum"] else None for parameter in trained]
            fused_sgd(list(map(local, trained)), list(map(local, gradients(trained))), buffers, group)


def fused_sgd(
    parameters: Sequence[Tensor],
    gradients: list[Tensor],
    buffers: list[Tensor | None],
    group: dict[str, Any],
    found_inf: Tensor | None = None,
) -> None:
    """Apply torch's fused SGD with the settings of `group` to `parameters`. Nothing changes if `found_inf` is 1.0.

    `buffers` are the momentum buffers; each is None if there is no momentum.
    """
    settings = {name: group[name] for name in ("lr", "momentum", "nesterov", "weight_decay")}
    sgd(list(parameters), gradients, buffers, fused=True, found_inf=found_inf, **settings, dampening=0.0, maximize=False)


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [cast("Tensor", parameter.grad) for parameter in parameters]


def by_shape(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group the parameters by shape, dtype and device. Within a group, the order is that of `parameters`."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.shape, parameter.dtype, parameter.device), []).append(parameter)
    return list(groups.values())


def matrices(tensors: Sequence[Tensor]) -> Tensor:
    """Stack n weights (outputs, ...) into matrices (n, outputs, columns), in at least float32.

    All dimensions after the first are flattened into columns. A convolution thus becomes a matrix that multiplies image patches.
    """
    stacked = torch.stack([tensor.flatten(1) for tensor in tensors])
    return stacked.to(torch.promote_types(stacked.dtype, torch.float32))


def write(tensors: Sequence[Tensor], values: Tensor) -> None:
    """Copy each matrix of `values` (n, rows, columns) into the tensor at the same index, in place."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value.view(tensor.shape))


def normalized(weights: Tensor) -> Tensor:
    """Return `weights` (n, rows, columns) with each matrix rescaled to Frobenius norm sqrt(rows).

    An update has a norm of about the learning rate times sqrt(rows). With this rescaling, the learning rate is thus the relative size of
    the update.
    """
    return weights / norms(weights) * math.sqrt(weights.shape[1])


def orthogonalized(batch: Tensor, ns_steps: int) -> Tensor:
    """Bring all singular values of each matrix in `batch` (n, rows, columns) near 1, and return the result in the dtype of `batch`.

    Applies `ns_steps` Newton-Schulz iterations.
    """
    a, b, c = NS_COEFFICIENTS
    tall = batch.shape[1] > batch.shape[2]
    # transpose tall matrices: x @ x.mT is then as small as possible
    x = (batch.mT if tall else batch).to(ns_dtype(batch))
    x = x / norms(x)
    for _ in range(ns_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(batch.dtype)


def norms(batch: Tensor) -> Tensor:
    """Return the Frobenius norm of each matrix in `batch`, but at least SMALLEST_NORM, as a tensor (n, 1, 1)."""
    return torch.clamp(batch.norm(dim=(1, 2), keepdim=True), min=SMALLEST_NORM)


def ns_dtype(batch: Tensor) -> torch.dtype:
    """Return the dtype of the Newton-Schulz iteration: bf16 on a GPU that supports bf16, else the dtype of `batch`.

    Bf16 is precise enough, but slow on devices that emulate it.
    """
    if batch.device.type == "cuda" and torch.cuda.get_device_capability(batch.device) >= BF16_CAPABILITY:
        return torch.bfloat16
    return batch.dtype


Group = dict[str, Any]
MATRIX_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)
"""Linear, convolutional, attention and recurrent layers: their weights multiply inputs as matrices. Subclasses are included."""
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
WEIGHT = re.compile(r"[^.]*weight[^.]*(?<!_g)|parametrizations\.[^.]*weight[^.]*\.original1?")
"""Matches the name of a weight relative to its layer, parametrized or not. Does not match weight-norm magnitudes (`weight_g`, `original0`)."""


def build(module: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Build one optimizer for all trainable parameters of `module`.

    Only the weights of MATRIX_LAYERS, such as Linear, get weight decay. The class of the layer that owns a parameter decides this, not the
    number of dimensions: class tokens, positional embeddings, tables of relative positions and layer scales can have two or more
    dimensions, but get no weight decay.

    Each parameter group has a factor `lr_scale`, by which the training loop multiplies the learning rate of the step. All parameters in a
    group have the same `lr_scale` and weight decay, so `settings.groups` and `settings.layer_decay` can lead to more groups.
    """
    groups = groups_of(module, settings)
    trained = [parameter for group in groups for parameter in group["params"]]
    match settings:
        case SgdSettings(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov):
            optimizer_type = ShardedSGD if is_divided(trained[0]) else torch.optim.SGD
            optimizer = optimizer_type(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)
            if momentum:
                zero_momentum(optimizer, trained)
            return optimizer
        case AdamSettings(name=name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon):
            optimizer_class = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            return optimizer_class(groups, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)
        case MuonSettings(learning_rate=learning_rate, nesterov=nesterov, ns_steps=ns_steps, normalize_weights=normalize_weights):
            return Muon(groups, lr=learning_rate, nesterov=nesterov, ns_steps=ns_steps, normalize_weights=normalize_weights)


def groups_of(module: nn.Module, settings: OptimizerSettings) -> list[Group]:
    """Return the trainable parameters in groups of equal settings: the weights of MATRIX_LAYERS first, and among them the hidden ones.

    Hidden weights (see `matrix_ids`) are those that Muon orthogonalises; other optimizers have none. With Muon, all other parameters have
    SGD's momentum (`settings.sgd_momentum`), and the first and the last weights a learning-rate scale of their own
    (`settings.outer_lr_scale`). Within a group, the parameters keep their order.
    """
    adjusted = parameter_groups.adjustments(module, settings)
    matrices, inner = matrix_ids(module)
    groups: dict[tuple[tuple[bool, bool], Adjustment], Group] = {}
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        decays = id(parameter) in matrices
        lr_scale, weight_decay = (1.0, settings.weight_decay) if decays else (settings.bias_lr_scale, 0.0)
        adjustment = adjusted[id(parameter)]
        of_muon: dict[str, Any] = {}
        if decays and adjustment.weight_decay is not None:
            weight_decay = adjustment.weight_decay
        if isinstance(settings, MuonSettings):
            hidden = id(parameter) in inner
            of_muon = {"hidden": hidden, "momentum": settings.momentum if hidden else settings.sgd_momentum}
            if decays and not hidden:
                lr_scale = settings.outer_lr_scale
        found = {"weight_decay": weight_decay, "lr_scale": lr_scale * adjustment.lr_scale, **of_muon}
        kind = (not decays, not of_muon.get("hidden"))
        groups.setdefault((kind, adjustment), {"params": [], **found})["params"].append(parameter)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def zero_momentum(optimizer: torch.optim.SGD, parameters: Iterable[nn.Parameter]) -> None:
    """Initialise the momentum buffers of `parameters` with zeros. This does not change the result of the first step.

    Without this, torch allocates uninitialised buffers at the first step. They stay uninitialised if the fp16 scaler skips that step.
    """
    for parameter in parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def matrix_ids(module: nn.Module) -> tuple[set[int], set[int]]:
    """Return the ids of all weights of MATRIX_LAYERS, such as Linear, and the ids of the hidden weights among them.

    To find the hidden weights, the weights of MATRIX_LAYERS and embeddings, frozen or not, are listed in the order of `module.modules()`.
    Every weight of MATRIX_LAYERS is hidden, except the first and the last weight of this list. Weights with fewer than two dimensions are
    left out. A weight that is shared with an embedding is in neither set.
    """
    layers = [
        (id(parameter), isinstance(layer, MATRIX_LAYERS))
        for layer in module.modules()
        if isinstance(layer, (*MATRIX_LAYERS, *EMBEDDINGS))
        for name, parameter in layer.named_parameters()
        if WEIGHT.fullmatch(name) and parameter.ndim >= 2
    ]
    matrices = {weight for weight, _ in layers} - {weight for weight, is_matrix in layers if not is_matrix}
    ends = {weight for weight, _ in (*layers[:1], *layers[-1:])}
    return matrices, matrices - ends
