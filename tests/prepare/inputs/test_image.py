"""Statistics of images: exact, and the same for any order of the samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.prepare.inputs.image import Statistics

INPUTS = np.random.default_rng(0).integers(0, 256, (60, 5, 4, 3), dtype=np.uint8)


@settings(max_examples=10, deadline=None)
@given(cut=st.integers(1, 59), value=st.integers(0, 255))
def test_statistics_depend_on_no_order_and_survive_a_constant(cut, value):
    sums = [Statistics((5, 4, 3)) for _ in range(2)]
    sums[0].add(sums[0].summarize(INPUTS))
    sums[1].add(sums[1].summarize(INPUTS[cut:]))
    sums[1].add(sums[1].summarize(INPUTS[:cut]))
    assert sums[0].inputs() == sums[1].inputs()
    constant = Statistics((4, 4, 1))
    constant.add(constant.summarize(np.full((9, 4, 4, 1), value, np.uint8)))
    assert (constant.inputs().mean, constant.inputs().std) == ((value / 255,), (1.0,))


@pytest.mark.parametrize("count", [257, 258, 66_051, 66_052])
def test_sums_of_the_largest_bytes_are_exact_where_a_wider_integer_begins(count):
    sums = Statistics((1, 1, 1))
    sums.add(sums.summarize(np.full((count, 1, 1, 1), 255, np.uint8)))
    assert (sums.sums.item(), sums.squares.item(), sums.count) == (255 * count, 255**2 * count, count)


@pytest.mark.parametrize("shape", [(9, 32, 7, 3), (3, 225, 5, 3), (0, 8, 8, 3)])
def test_sums_are_those_of_each_channel(shape):
    inputs = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    sums = Statistics(shape[1:])
    sums.add(sums.summarize(inputs))
    wide = inputs.astype(np.int64)
    assert np.array_equal(sums.sums, wide.sum((0, 1, 2)))
    assert np.array_equal(sums.squares, (wide**2).sum((0, 1, 2)))
