"""Measures how much a model needs each column of a table (permutation importance: Breiman, 2001), and what a linear model achieves."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.core.prepared import Prepared, Split
from pipeline.core.spec import Inputs

FILE = "columns.csv"
HEADER = ("column", "kind", "importance", "deviation")
SHUFFLES = 5
MOST_ROWS = 2000
"""Up to so many rows of the test split are shuffled."""
MOST_FEATURES = 2000
"""Up to so many features, the linear model is computed: its time grows with their cube."""
BLOCK_ROWS = 16_384
PENALTY = 1.0
"""The penalty of the squared weights, as in scikit-learn's `Ridge`."""
Floats = NDArray[np.float64]


def importances(inputs: Inputs, split: Split, loss_of: Callable[[Split], float]) -> list[tuple[str | int, str, float, float]]:
    """Return for each column by how much the loss of a split rises if its cells are shuffled among the rows, the most important first.

    `loss_of` returns the mean loss of the model on a split. The numbers are the mean and the standard deviation over SHUFFLES orders.
    """
    chosen = slice(None, None, -(-len(split) // MOST_ROWS))
    rows = Split(np.asarray(split.inputs[chosen]), np.asarray(split.targets[chosen]))
    before, found = loss_of(rows), []
    orders = [np.random.default_rng(number).permutation(len(rows)) for number in range(SHUFFLES)]
    for at, (name, kind) in enumerate(inputs.columns_read):
        rises = []
        for order in orders:
            shuffled = rows.inputs.copy()
            shuffled[:, at] = shuffled[order, at]
            rises.append(loss_of(replace(rows, inputs=shuffled)) - before)
        found.append((name, kind, float(np.mean(rises)), float(np.std(rises))))
    return sorted(found, key=lambda row: -row[2])


def linear_scores(prepared: Prepared, test: Split, preprocessing: nn.Module) -> dict[str, float]:
    """Return the scores on `test` of a linear model in closed form: a ridge regression on the features that the model gets."""
    num_features, train = prepared.spec.num_features, prepared.train
    if num_features > MOST_FEATURES:
        return {}

    @torch.no_grad()
    def features(rows: NDArray[Any]) -> Floats:
        found: Floats = preprocessing(torch.from_numpy(np.array(rows))).double().numpy()
        return np.column_stack([found, np.ones(len(found))])

    def fit(numbers: Floats) -> Floats:
        products, sums = np.diag([PENALTY] * num_features + [0.0]), np.zeros((num_features + 1, numbers.shape[1]))
        for start in range(0, len(train), BLOCK_ROWS):
            block = features(train.inputs[start : start + BLOCK_ROWS])
            products += block.T @ block
            sums += block.T @ numbers[start : start + BLOCK_ROWS]
        weights = np.linalg.solve(products, sums)
        return np.concatenate([features(test.inputs[at : at + BLOCK_ROWS]) @ weights for at in range(0, len(test), BLOCK_ROWS)])

    return prepared.spec.targets.linear_scores(fit, np.asarray(train.targets), np.asarray(test.targets))
