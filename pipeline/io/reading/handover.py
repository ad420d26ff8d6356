"""Answers through a pipe whose arrays go straight from memory to memory: `Connection.send` copies each of them four times."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Following:
    """Stands for an array whose bytes come after all else."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def send(connection: Connection, answer: Any) -> None:
    """An array of numbers, a tuple with some in it, or anything else that can be sent. Raises OSError where the other end is closed."""
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
    """What was sent. Raises EOFError or OSError where the other end is closed."""
    return with_arrays(connection.recv(), connection)


def with_arrays(answer: Any, connection: Connection) -> Any:
    if isinstance(answer, Following):
        array = np.empty(answer.shape, answer.dtype)
        whole(array, lambda rest: os.readv(connection.fileno(), [rest]))
        return array
    return tuple(with_arrays(part, connection) for part in answer) if type(answer) is tuple else answer


def whole(array: NDArray[Any], move: Callable[[memoryview], int]) -> None:
    """Its bytes in C order, in as many pieces as it takes: a pipe moves no more at once than it holds."""
    rest = array.reshape(-1).view(np.uint8).data
    while rest:
        moved = move(rest)
        if not moved:
            raise EOFError
        rest = rest[moved:]
