"""Errors of torch that the user can fix become messages with the remedy."""

import pytest
import torch
from torch import nn

from pipeline.engine import torch_errors
from pipeline.refusal import Refusal


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(784, 10), (2, 64)),
        (nn.Conv2d(3, 4, 3), (2, 1, 8, 8)),
        (nn.Conv2d(1, 4, 9), (2, 1, 8, 8)),
        (nn.MaxPool2d(4), (2, 1, 2, 2)),
        (nn.LSTM(3, 4), (2, 5, 7)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_a_layer_that_does_not_fit_its_input_is_named_with_the_remedy(layer: nn.Module, shape: tuple[int, ...]) -> None:
    with (
        pytest.raises(
            Refusal, match=r"^model\.name: a layer of this model does not fit the size of its input: correct `build` in its file.* \("
        ),
        torch_errors.with_remedies(size="train.micro_batch_size"),
    ):
        layer(torch.zeros(shape))


def test_another_error_stays_as_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^something else$"), torch_errors.with_remedies(size="train.micro_batch_size"):
        raise RuntimeError("something else")
