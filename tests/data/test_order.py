"""The order of samples: every epoch whole, whatever the batch size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.order import Order

CPU = torch.device("cpu")


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_batches_of_any_size_read_every_epoch_whole(num_samples: int, batch_size: int, seed: int) -> None:
    order = Order(num_samples, seed=seed, device=CPU)
    stream = torch.cat([rows for step in range(3 * num_samples) for _, rows in order.windows(step * batch_size, batch_size)])
    for epoch in range(len(stream) // num_samples):
        assert sorted(stream[epoch * num_samples : (epoch + 1) * num_samples].tolist()) == list(range(num_samples))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 20))
def test_a_batch_does_not_depend_on_where_reading_began(num_samples: int, batch_size: int, step: int) -> None:
    fresh, used = Order(num_samples, seed=1, device=CPU), Order(num_samples, seed=1, device=CPU)
    for earlier in range(step):
        used.windows(earlier * batch_size, batch_size)
    first, second = (order.windows(step * batch_size, batch_size) for order in (fresh, used))
    assert [(epoch, rows.tolist()) for epoch, rows in first] == [(epoch, rows.tolist()) for epoch, rows in second]
    assert sum(len(rows) for _, rows in first) == batch_size


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [Order(100, seed=seed, device=CPU).draw(epoch).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
