"""Turns the stored rows of a table into the features that a network reads."""

import torch
from torch import Tensor, nn

from pipeline.core.inputs.table import NumberColumn, TableInputs

FARTHEST = 1e6
"""A number counts as at most so many standard deviations from the mean: float32 cannot hold the largest. None of fewer than 1e12 rows of train is further."""


class Preprocessing(nn.Module):
    """Maps rows of a table (n, columns) float64 to features (n, `inputs.num_features`) float32.

    The features are all numbers and dates, standardised by their mean and standard deviation in train; then a 1 or 0 for each column in which
    train has cells without a value; then a 1 or 0 for each category. A missing number becomes 0, the mean. A row without a category, or with
    one that train does not have, has zeros for all of the column.

    There is no layer of embeddings: a linear layer that reads the 1 and the zeros of a category returns one of its columns of weights, which is
    the embedding of the category.
    """

    numbers: Tensor
    mean: Tensor
    std: Tensor
    missing: Tensor
    columns: Tensor
    categories: Tensor

    def __init__(self, inputs: TableInputs, *, channels_last: bool) -> None:  # noqa: ARG002  # the interface is that of every kind of inputs
        super().__init__()
        numbers = [(at, column) for at, column in enumerate(inputs.columns) if isinstance(column, NumberColumn)]
        positions = {
            "numbers": [at for at, _ in numbers],
            "missing": [at for at, column in enumerate(inputs.columns) if column.missing],
            "columns": [at for at, _ in inputs.categories],
        }
        statistics = {
            "mean": [column.mean for _, column in numbers],
            "std": [column.std for _, column in numbers],
            "categories": [number for _, number in inputs.categories],
        }
        for several, dtype in ((positions, torch.int64), (statistics, torch.float64)):
            for name, values in several.items():
                self.register_buffer(name, torch.tensor(values, dtype=dtype), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        standardized = (rows[:, self.numbers] - self.mean) / self.std  # in float64: a large mean cancels before the rounding
        numbers = standardized.clamp(-FARTHEST, FARTHEST).masked_fill(standardized.isnan(), 0.0)
        missing, categories = rows[:, self.missing].isnan(), rows[:, self.columns] == self.categories
        return torch.cat([part.float() for part in (numbers, missing, categories)], dim=1)
