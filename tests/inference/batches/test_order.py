"""The order of samples: every epoch whole, whatever the batch size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.inference.batches.batch_index import Order


def read(order: Order, start: int, count: int) -> torch.Tensor:
    return torch.cat([order.permutation(epoch)[positions] for epoch, positions in order.windows(start, count)])


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_batches_of_any_size_read_every_epoch_whole(num_samples: int, batch_size: int, seed: int) -> None:
    order = Order(num_samples, seed)
    stream = torch.cat([read(order, step * batch_size, batch_size) for step in range(3 * num_samples)])
    assert len(stream) == 3 * num_samples * batch_size
    for epoch in range(len(stream) // num_samples):
        assert sorted(stream[epoch * num_samples : (epoch + 1) * num_samples].tolist()) == list(range(num_samples))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [Order(100, seed).permutation(epoch).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
