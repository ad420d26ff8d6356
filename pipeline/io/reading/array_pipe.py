"""Sends results through a pipe. Arrays are transferred without intermediate copies; `Connection.send` would copy each array four times."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ArrayHeader:
    """The shape and dtype of an array. It takes the place of the array in the pickled message; the array's bytes follow the message."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def send(connection: Connection, result: Any) -> None:
    """Send a numeric array, a tuple that may contain such arrays, or any picklable object. Raises OSError if the other end is closed."""
    arrays: list[NDArray[Any]] = []
    connection.send(without_arrays(result, arrays))
    for array in arrays:
        transfer(array, lambda remaining: os.write(connection.fileno(), remaining))


def without_arrays(result: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(result, np.ndarray):
        arrays.append(result)
        return ArrayHeader(result.shape, result.dtype)
    return tuple(without_arrays(part, arrays) for part in result) if type(result) is tuple else result


def receive(connection: Connection) -> Any:
    """Return the next object sent. Raises EOFError or OSError if the other end is closed."""
    return with_arrays(connection.recv(), connection)


def with_arrays(result: Any, connection: Connection) -> Any:
    if isinstance(result, ArrayHeader):
        array = np.empty(result.shape, result.dtype)
        transfer(array, lambda remaining: os.readv(connection.fileno(), [remaining]))
        return array
    return tuple(with_arrays(part, connection) for part in result) if type(result) is tuple else result


def transfer(array: NDArray[Any], write_or_read: Callable[[memoryview], int]) -> None:
    """Send the bytes of `array` through a pipe, or fill it with bytes from the pipe, in C order.

    `write_or_read` does the work: it is called with the bytes that remain, and returns the number of bytes that it transferred. It is called
    until none remain, because a pipe transfers only some bytes per call. Raises EOFError if it returns 0.
    """
    remaining = array.reshape(-1).view(np.uint8).data
    while remaining:
        count = write_or_read(remaining)
        if not count:
            raise EOFError
        remaining = remaining[count:]
