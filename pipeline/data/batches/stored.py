"""Reads stored samples: rows of an array, or windows of the token sequence that the rows form."""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Stored(Protocol):
    """The interface of the stored inputs of a split, from which batches are read."""

    row_shape: tuple[int, ...]
    """The shape of a sample in a batch."""
    dtype: torch.dtype

    def read(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy the samples at `rows` (n,) to `out` (n, *row_shape). Releases the GIL."""
        ...

    def on_device(self, device: torch.device) -> Tensor:
        """Return all samples as one tensor on `device`. Indexed with `rows` (n,), as `read` takes them, it gives the samples (n,
        *row_shape).
        """
        ...


class Samples:
    """Samples that are the rows of `array` (n, ...)."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.row_shape: tuple[int, ...] = array.shape[1:]
        self.dtype = torch.from_numpy(array[:0]).dtype

    def read(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        np.take(self.array, rows, axis=0, out=out, mode="clip")

    def on_device(self, device: torch.device) -> Tensor:
        return torch.from_numpy(self.array).to(device)


class Windows:
    """Windows of one long sequence of tokens: a window is length + 1 consecutive tokens, and may begin at any token.

    `array` (n, length) stores the sequence, divided into rows. A window that reaches the end of the sequence goes on at its beginning. The
    `rows` that `read` takes are not rows of `array`: they are the positions in the sequence at which the windows begin.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.sequence, self.length = array.reshape(-1), array.shape[1]
        self.row_shape: tuple[int, ...] = (self.length + 1,)
        self.dtype = torch.from_numpy(array[:0]).dtype

    def read(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        np.take(self.sequence, rows[:, None] + np.arange(self.length + 1), out=out, mode="wrap")

    def on_device(self, device: torch.device) -> Tensor:
        sequence = torch.from_numpy(self.sequence).to(device)
        return torch.cat([sequence, sequence[: self.length]]).unfold(0, self.length + 1, 1)  # a view: every window costs no memory
