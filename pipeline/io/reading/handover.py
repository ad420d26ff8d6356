"""Sends results through a pipe, with arrays written and read without intermediate copies: `Connection.send` copies each four times."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Following:
    """Placeholder for an array whose bytes follow the pickled message."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def send(connection: Connection, answer: Any) -> None:
    """Send a numeric array, a tuple that may contain such arrays, or any picklable object. Raises OSError where the other end is closed."""
    arrays: list[NDArray[Any]] = []
    connection.send(without_arrays(answer, arrays))
    for array in arrays:
        whole(array, lambda rest: os.write(connection.fileno(), rest))


def without_arrays(answer: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(answer, np.ndarray):
        arrays.append(answer)
        return Following(answer.shape, answer.dtype)
    return tuple(without_arrays(part, arrays) for part in answer) if type(answer) is tuple else answer


def receive(connection: Connection) -> Any:
    """Return the next object sent. Raises EOFError or OSError where the other end is closed."""
    return with_arrays(connection.recv(), connection)


def with_arrays(answer: Any, connection: Connection) -> Any:
    if isinstance(answer, Following):
        array = np.empty(answer.shape, answer.dtype)
        whole(array, lambda rest: os.readv(connection.fileno(), [rest]))
        return array
    return tuple(with_arrays(part, connection) for part in answer) if type(answer) is tuple else answer


def whole(array: NDArray[Any], move: Callable[[memoryview], int]) -> None:
    """Call `move` with the bytes of the array in C order until all are transferred: a pipe transfers at most its capacity at once."""
    rest = array.reshape(-1).view(np.uint8).data
    while rest:
        moved = move(rest)
        if not moved:
            raise EOFError
        rest = rest[moved:]
