"""Results through a pipe: contents of any size arrive unchanged, and a closed end is noticed."""

import os
from multiprocessing import Pipe
from threading import Thread

import numpy as np
import pytest

from pipeline.io.reading import array_pipe

RNG = np.random.default_rng(0)


def piped(answer: object) -> object:
    """Send the content through a pipe whose buffer is smaller than the larger contents."""
    here, there = Pipe()
    with here, there:
        sender = Thread(target=array_pipe.send, args=(there, answer))
        sender.start()
        found = array_pipe.receive(here)
        sender.join()
    return found


@pytest.mark.parametrize("shape", [(), (0, 3), (7, 5, 3), (3000, 1000)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_arrays_keep_their_bytes_and_can_be_written_to(shape: tuple[int, ...], dtype: type) -> None:
    array = np.asarray(RNG.integers(0, 256, shape)).astype(dtype)
    found, said = piped((array, {3: "why"}))
    assert np.array_equal(found, array)
    assert (found.shape, found.dtype, said) == (array.shape, array.dtype, {3: "why"})
    found[...] = 0


def test_arrays_in_another_order_alone_and_in_tuples_of_tuples() -> None:
    array = RNG.normal(size=(40, 50))
    assert np.array_equal(piped(array.T), array.T)
    (first, number), second = piped(((array[::2, 1:], 7), array))
    assert np.array_equal(first, array[::2, 1:])
    assert np.array_equal(second, array)
    assert number == 7


@pytest.mark.parametrize("answer", [None, 3, (), ("a", (1, 2)), {"a": [1, None]}])
def test_what_has_no_arrays_is_sent_as_it_is(answer: object) -> None:
    assert piped(answer) == answer


def test_an_array_does_not_go_with_all_else() -> None:
    here, there = Pipe()
    with here, there:
        sender = Thread(target=array_pipe.send, args=(there, (np.zeros(100_000, np.uint8), 1)))
        sender.start()
        assert len(here.recv_bytes()) < 1000
        assert here.poll(10)
        array_pipe.transfer(np.empty(100_000, np.uint8), lambda rest: os.readv(here.fileno(), [rest]))
        assert not here.poll(0)
        sender.join()


@pytest.mark.parametrize("sent", [0, 10])
def test_an_end_that_closes_before_all_was_sent_is_noticed(sent: int) -> None:
    here, there = Pipe()
    with here:
        with there:
            there.send(array_pipe.ArrayHeader((1000,), np.dtype(np.uint8)))
            array_pipe.transfer(np.zeros(sent, np.uint8), lambda rest: os.write(there.fileno(), rest))
        with pytest.raises(EOFError):
            array_pipe.receive(here)


def test_a_reader_that_is_gone_is_noticed() -> None:
    here, there = Pipe()
    here.close()
    with there, pytest.raises(OSError, match="Broken pipe"):
        array_pipe.send(there, np.zeros(10**6, np.uint8))
