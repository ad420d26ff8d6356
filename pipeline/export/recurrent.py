"""Keeps the length of texts variable when a model with recurrent layers is captured."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

OPERATIONS: tuple[Any, ...] = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input, torch.ops.aten.rnn_tanh.input)


@contextmanager
def variable_length() -> Iterator[None]:
    """Let `torch.export` compute the shapes of a recurrent layer's outputs by `shapes` within the block.

    `torch.export` records a recurrent layer as one operation of any length. But to know the shapes of its outputs, it unrolls the layer step
    by step, which makes the length a constant. No public function of torch replaces only this computation.
    """
    original = [dict(operation.py_kernels) for operation in OPERATIONS]
    try:
        for operation in OPERATIONS:
            replace_kernels(operation, dict.fromkeys(operation.py_kernels, shapes))
        with warnings.catch_warnings():
            # a list in which `nn.LSTM` keeps its own parameters
            warnings.filterwarnings("ignore", message="The tensor attribute.*_flat_weights.* assigned during export")
            yield
    finally:
        for operation, kernels in zip(OPERATIONS, original, strict=True):
            replace_kernels(operation, kernels)


@contextmanager
def lowered() -> Iterator[None]:
    """Ignore a warning of torch about its own code, with which it turns a recurrent layer into a loop."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="_check_is_size will be removed", category=FutureWarning)
        yield


def replace_kernels(operation: Any, kernels: dict[Any, Any]) -> None:
    operation.py_kernels.update(kernels)
    operation._dispatch_cache.clear()


def shapes(inputs: Tensor, hidden: Tensor | list[Tensor], *settings: Any) -> tuple[Tensor, ...]:
    """Return tensors of the shapes that a recurrent layer returns: the outputs and the last states. Their values are undefined.

    `settings` are the other arguments of the operations, of which the last two are `bidirectional` and `batch_first`.
    """
    states = [hidden] if isinstance(hidden, Tensor) else hidden
    directions = 2 if settings[-2] else 1
    outputs = inputs.new_empty((*inputs.shape[:2], states[0].shape[2] * directions))
    return outputs, *(torch.empty_like(state) for state in states)
