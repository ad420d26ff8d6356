"""Muon: hidden weights move by orthogonalised momentum, and all other parameters by fused SGD.

See Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from pipeline.inference.gpu_diagnostics import BF16_CAPABILITY

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
        self.packings: dict[tuple[tuple[torch.Size, ...], bool], Packing] = {}
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
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["hidden"]:
                fused_sgd(
                    trained, gradients(trained), [self.state[parameter]["momentum_buffer"] for parameter in trained], group, found_inf
                )
                continue
            for similar in by_size(trained):
                self.muon_step(similar, group, found_inf)

    def muon_step(self, parameters: list[nn.Parameter], group: dict[str, Any], found_inf: Tensor | None) -> None:
        """Apply Muon to `parameters`, a group of `by_size`. Nothing changes if `found_inf` is 1.0.

        The parameters are computed as one batch of matrices, so that fewer kernels are launched.
        """
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        packing = self.packing(tuple(parameter.shape for parameter in parameters), parameters[0].device, transposed=group["transposed"])
        old_momentum, weights, gradient = map(packing.matrices, (buffers, parameters, gradients(parameters)))
        momentum = old_momentum.lerp(gradient, 1 - group["momentum"])
        update = orthogonalized(gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum, group["ns_steps"])
        if group["normalize_weights"]:
            # an update has a norm of about the learning rate times the root of its rows, so the rate is the relative size of the update
            start = weights / norms(weights) * packing.root_rows
        else:
            start = weights * (1 - group["lr"] * group["weight_decay"])
        new_weights = start - packing.scales * group["lr"] * update
        packing.write(buffers, momentum if found_inf is None else torch.where(found_inf > 0, old_momentum, momentum))
        packing.write(parameters, new_weights if found_inf is None else torch.where(found_inf > 0, weights, new_weights))

    def packing(self, shapes: tuple[torch.Size, ...], device: torch.device, *, transposed: bool) -> "Packing":
        """Return how weights of these shapes stand in a batch. It is made once, because its numbers are copied to the device."""
        if (shapes, transposed) not in self.packings:
            self.packings[shapes, transposed] = Packing(shapes, device, transposed=transposed)
        return self.packings[shapes, transposed]


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


LARGEST_PADDED = 2**18
"""The largest number of values of a padded matrix. The arithmetic of larger ones takes longer than launching it."""


def padded_size(shape: torch.Size, device: torch.device) -> tuple[int, int] | None:
    """Return the rows and columns to which a weight of this shape is padded, or None if it is not padded.

    On a GPU, a small matrix is laid on its long side and padded with zeros to powers of 4, at least 16, so that few batches hold the many
    shapes of a network. Zeros change neither its norm nor its orthogonalised form.
    """
    padded = sorted(max(16, 4 ** math.ceil(math.log(size, 4))) for size in (shape[0], shape[1:].numel()))
    return None if device.type == "cpu" or math.prod(padded) > LARGEST_PADDED else (padded[0], padded[1])


def by_size(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group the parameters by padded size or else shape, dtype and device. Within a group, the order is that of `parameters`."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        size = padded_size(parameter.shape, parameter.device) or parameter.shape
        groups.setdefault((size, parameter.dtype, parameter.device), []).append(parameter)
    return list(groups.values())


class Packing:
    """How n weights of a group (see `by_size`) stand in a batch of matrices (n, rows, columns), padded if their shapes differ.

    All dimensions of a weight after the first are flattened into columns. A convolution thus becomes a matrix that multiplies image patches.
    If `transposed`, the columns are the outputs of the layers; otherwise, the rows are.
    """

    def __init__(self, shapes: Sequence[torch.Size], device: torch.device, *, transposed: bool = False) -> None:
        sizes = [(shape[0], shape[1:].numel()) for shape in shapes]
        outputs = [(columns, rows) if transposed else (rows, columns) for rows, columns in sizes]
        root_rows = [math.sqrt(rows) for rows, _ in outputs]
        scales = [math.sqrt(max(1.0, rows / columns)) for rows, columns in outputs]
        self.root_rows: Tensor | float = root_rows[0]
        """The norm of each matrix after it was normalised."""
        self.scales: Tensor | float = scales[0]
        """Each update is multiplied by the learning rate and this."""
        self.padded = padded_size(shapes[0], device) if len(set(sizes)) > 1 else None
        if self.padded:
            self.root_rows, self.scales = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (root_rows, scales))
            self.counts = [rows * columns for rows, columns in sizes]
            self.value_of_place, self.place_of_value = (positions.to(device) for positions in places(sizes, self.padded))
            self.zero = torch.zeros(1, device=device)

    def matrices(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the weights `tensors`, or tensors of their shapes, as a batch of matrices (n, rows, columns) in at least float32."""
        flat = [tensor.flatten(1) for tensor in tensors]
        if self.padded:
            values = torch.cat([self.zero, *(matrix.flatten() for matrix in flat)])
            batch = values.index_select(0, self.value_of_place).view(-1, *self.padded)
        else:
            batch = torch.stack(flat)
        return batch.to(torch.promote_types(batch.dtype, torch.float32))

    def write(self, tensors: Sequence[Tensor], batch: Tensor) -> None:
        """Copy each matrix of `batch` (n, rows, columns) into the tensor at the same index, in place."""
        matrices = torch.split(batch.flatten().index_select(0, self.place_of_value), self.counts) if self.padded else batch.unbind()
        torch._foreach_copy_(list(tensors), [matrix.view(tensor.shape) for matrix, tensor in zip(matrices, tensors, strict=True)])


def places(sizes: Sequence[tuple[int, int]], padded: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return for each place in a batch of matrices of size `padded` the position of its value, and for each value its place.

    The values are those of matrices of `sizes`, one matrix after the other, behind a zero, which fills the places of padding. Matrices with
    more rows than columns are transposed.
    """
    numbers = torch.zeros(len(sizes), *padded, dtype=torch.int32)
    first = 1
    for matrix, (rows, columns) in zip(numbers, sizes, strict=True):
        values = torch.arange(first, first + rows * columns, dtype=torch.int32).view(rows, columns)
        values = values if rows <= columns else values.mT
        matrix[: len(values), : values.shape[1]] = values
        first += rows * columns
    return numbers.flatten(), numbers.flatten().argsort(stable=True)[1 - first :].int()


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
