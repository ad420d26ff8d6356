"""The comparison of searches that repeat a training with several seeds or on several folds: a paired test of their metrics."""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from pipeline.core.environment import Environment, Paths
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, listed
from pipeline.core.yaml_document import Document
from pipeline.tools.compare.comparing import LEVEL_TEXT, Block, ComparisonTable, signed, what_differs
from pipeline.tools.compare.differences import differences
from pipeline.tools.compare.models import have_same, read
from pipeline.tools.spread import REPEATED, REPEATING, spread

MOST_NAMED = 5
Place = tuple[str, ...]
"""The values of the keys in REPEATING with which a training was repeated, "" for a key that was not searched."""


class Series(NamedTuple):
    """The complete trainings of a search that repeats one training: its metrics and the folder of its trial, by place."""

    name: str
    metrics: Mapping[Place, Mapping[str, float]]
    trials: Mapping[Place, Path]

    @classmethod
    def find(cls, name: str, root: Path) -> "Series | None":
        """Return the series of the search `name`; None if there is no such search with a table, or if it repeats no training.

        Raises Refusal if the search also varies other parameters.
        """
        folder = root / ".pipeline/search" / name
        table = folder / "trials.csv"
        if not table.is_file():
            return None
        with table.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            header = list(rows.fieldnames or ())
            complete = [row for row in rows if row["outcome"] == "complete"]
        if not {*REPEATED} & {*header}:
            return None
        others = [key for key in header[header.index("step") + 1 : header.index("run")] if key not in REPEATING]
        if varied := [key for key in others if len({row[key] for row in complete}) > 1]:
            raise Refusal(
                f"{name}: this search also varies {listed(varied, MOST_NAMED)}: write a search file for each combination, and compare these searches"
            )
        places = {tuple(row.get(key, "") for key in REPEATING): row for row in complete}
        scored = [key for key in header if key.startswith((f"{VALID}/", f"{TEST}/"))]
        metrics = {place: {key: float(row[key]) for key in scored if row[key]} for place, row in places.items()}
        return cls(name, metrics, {place: folder / f"trials/{int(row['trial']):04}" for place, row in places.items()})


def compare(series: Sequence[Series], paths: Paths, environment: Environment) -> Iterator[Block]:
    """Yield what differs between the series, and a paired test of each with the first, over the seeds and folds that all of them have.

    Raises Refusal if they have fewer than two in common.
    """
    first, *others = series
    places = [place for place in first.metrics if all(place in each.metrics for each in others)]
    if len(places) < 2:
        names = ", ".join(each.name for each in series)
        raise Refusal(f"{names}: have {len(places)} seeds or folds in common, and a paired test needs two: repeat both with the same ones")
    with redirect_stdout(sys.stderr):
        models = [replace(read(str(Paths(trial=each.trials[places[0]]).model), paths, environment), name=each.name) for each in series]
    labels = dict(zip((each.name for each in series), ascii_uppercase, strict=False))
    yield ComparisonTable("", ("", "search", "trainings"), [(labels[each.name], each.name, str(len(each.metrics))) for each in series])
    yield from what_differs(differences(models), tuple(labels.values()))
    folds = Document.read(Paths(trial=first.trials[places[0]]).params).data["source"]["folds"] if places[0][-1] else None
    for other, model in zip(others, models[1:], strict=True):
        unlike = [split for split in (VALID, TEST) if not have_same(split, models[0], model)]
        yield from tested(first, other, places, unlike=unlike, folds=folds, labels=labels)


def tested(
    first: Series, other: Series, places: Sequence[Place], *, unlike: Sequence[str], folds: int | None, labels: Mapping[str, str]
) -> Iterator[Block]:
    """Yield the table of a paired test, and its result in words. The metrics of the splits `unlike` are left out."""
    one, two = labels[first.name], labels[other.name]
    rows, significant = list[tuple[str, ...]](), list[str]()
    for name in first.metrics[places[0]]:
        values = [[each.metrics[place].get(name) for place in places] for each in (first, other)]
        before, after = ([value for value in each if value is not None] for each in values)
        if name.startswith(tuple(f"{split}/" for split in unlike)) or not len(before) == len(after) == len(places):
            continue
        gain = spread([later - earlier for earlier, later in zip(before, after, strict=True)], folds=folds)
        shown = (str(spread(each, folds=folds)) for each in (before, after))
        rows.append((name, *shown, signed(gain.mean), f"{signed(gain.low)} to {signed(gain.high)}"))
        if gain.low > 0 or gain.high < 0:
            significant.append(f"{'higher' if gain.mean > 0 else 'lower'} {name}")
    title = f"paired test of {one} and {two} over {len(places)} trainings of each, mean ± deviation"
    yield ComparisonTable(title, ("", one, two, f"{two} - {one}", f"{LEVEL_TEXT} interval"), rows)
    differs = f"{two} differs significantly from {one}: {listed(significant, len(significant))}"
    yield f"{differs if significant else 'No significant difference'}."
    for split in unlike:
        yield f"Not compared: {split}, because its samples differ, or are not known to be equal"
