"""The means and deviations of a search whose trials repeat a training, with several seeds or on several folds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.refusal import counted
from pipeline.runs import table
from pipeline.tools.search.settings import Value
from pipeline.tools.search.study import TrialSummary, described
from pipeline.tools.spread import LEVEL, REPEATED, Spread, spread


class Repetition(NamedTuple):
    """The trials with equal `params`, apart from those that repeat a training. `scores` are the metrics of each complete one."""

    params: Mapping[str, Value]
    scores: list[Mapping[str, float]]
    folds: int | None

    def spreads(self) -> dict[str, Spread]:
        """Return the spread of each metric that all of at least two trainings have, by its name."""
        names = [name for name in self.scores[0] if all(name in each for each in self.scores)] if len(self.scores) > 1 else []
        return {name: spread([each[name] for each in self.scores], folds=self.folds) for name in names}


def repetitions(rows: Sequence[TrialSummary], folds: int | None) -> list[Repetition]:
    """Return the repetitions among the trials. `folds` is the number of folds in params.yaml."""
    found = dict[str, Repetition]()
    for row in rows:
        params = {key: value for key, value in row.params.items() if key not in REPEATED}
        values: dict[str, Any] = {"source.folds": folds, **row.params}
        of_row = values["source.folds"] if "source.fold" in values else None
        repetition = found.setdefault(repr(params), Repetition(params, [], of_row))
        if row.scores:
            repetition.scores.append(row.scores)
    return list(found.values())


def print_spreads(repetition: Repetition, repeated: Sequence[str]) -> None:
    """Print the mean and the deviation of each metric. `repeated` are the keys in which the trainings differ."""
    of = f", {described(repetition.params)}" if repetition.params else ""
    differ = f"which differ in {' and '.join(repeated)}:" if repetition.spreads() else "and a deviation needs two"
    print(f"{counted(len(repetition.scores), 'complete training')}{of}, {differ}")
    cells = [
        (name, f"{found.mean:.4f}", f"{found.deviation:.4f}", f"{found.low:.4f} to {found.high:.4f}")
        for name, found in repetition.spreads().items()
    ]
    table.show(cells, ("", "mean", "deviation", f"{LEVEL:.0%} interval of the mean"))
