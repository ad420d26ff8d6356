"""Turns the stored rows of a table into the features that a network reads."""

import torch
from torch import Tensor, nn

from pipeline.inputs.table.description import MOST_KNOTS, NumberColumn, TableInputs

FARTHEST = 1e6
"""A number counts as at most so many standard deviations from the mean: float32 cannot hold the largest. None of fewer than 1e12 rows of train is further."""


class Preprocessing(nn.Module):
    """Maps rows of a table (n, columns) float64 to features (n, `inputs.num_features`) float32.

    The features are all numbers and dates, standardised by their mean and standard deviation in train, or read by the knots of their column (see
    NumberColumn); then a 1 or 0 for each column in which train has cells without a value; then a 1 or 0 for each category. A missing number
    becomes 0, the mean or the median. A row without a category, or with one that train does not have, has zeros for all of the column.

    There is no layer of embeddings: a linear layer that reads the 1 and the zeros of a category returns one of its columns of weights, which is
    the embedding of the category.
    """

    numbers: Tensor
    mean: Tensor
    std: Tensor
    missing: Tensor
    columns: Tensor
    categories: Tensor
    knots: Tensor
    heights: Tensor

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
        # Every column has the same number of knots: the last is repeated.
        knots = [[*column.knots, *[column.knots[-1]] * (MOST_KNOTS - len(column.knots))] for _, column in numbers if column.knots]
        self.by_rank = bool(knots)
        for name, at in (("knots", 0), ("heights", 1)):
            lines = torch.tensor([[pair[at] for pair in column] for column in knots], dtype=torch.float64)
            self.register_buffer(name, lines, persistent=False)
        for several, dtype in ((positions, torch.int64), (statistics, torch.float64)):
            for name, values in several.items():
                self.register_buffer(name, torch.tensor(values, dtype=dtype), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        given = rows[:, self.numbers]
        standardized = (
            self.ranked(given) if self.by_rank else (given - self.mean) / self.std
        )  # in float64: a large mean cancels before the rounding
        numbers = standardized.clamp(-FARTHEST, FARTHEST).masked_fill(given.isnan(), 0.0)
        missing, categories = rows[:, self.missing].isnan(), rows[:, self.columns] == self.categories
        return torch.cat([part.float() for part in (numbers, missing, categories)], dim=1)

    def ranked(self, numbers: Tensor) -> Tensor:
        """Return the heights at `numbers` (n, columns) of the lines between the knots. Beyond the outer knots, they are those of these knots."""
        ends = self.knots[:, 0], self.knots[:, -1]
        numbers = torch.minimum(torch.maximum(numbers, ends[0]), ends[1])
        after = (numbers[:, :, None] > self.knots).sum(dim=2).clamp(1, MOST_KNOTS - 1).T  # `searchsorted` has no form in ONNX
        (left, right), (low, high) = ((values.gather(1, after - 1).T, values.gather(1, after).T) for values in (self.knots, self.heights))
        share = (numbers - left) / (right - left).where(right > left, 1.0)
        return low + share * (high - low)
