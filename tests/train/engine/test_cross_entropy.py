"""The summed cross-entropy against its definition."""

import pytest
import torch
from torch.nn import functional

from pipeline.train.engine import objective


def test_targets_may_have_any_shape() -> None:
    logits, targets = torch.randn(2, 4, 3), torch.randint(0, 3, (2, 4))
    expected = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="sum")
    assert torch.allclose(objective.summed(logits, targets), expected)


def test_targets_may_be_shares_of_classes() -> None:
    logits, indices = torch.randn(4, 3), torch.tensor([2, 0, 1, 1])
    shares = torch.tensor([[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.4, 0.6]])
    expected = -(shares * logits.log_softmax(-1)).sum()
    assert objective.summed(logits, shares, 0.0) == pytest.approx(expected.item(), rel=1e-5)
    assert objective.summed(logits, torch.eye(3)[indices], 0.1) == pytest.approx(objective.summed(logits, indices, 0.1).item(), rel=1e-5)
