"""The ranked table of the trials of a search, on the terminal and as CSV."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipeline.io import files
from pipeline.search.settings import Value
from pipeline.stages.run_description import short, short_keys

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "unfinished"
ORDER = (COMPLETE, PRUNED, RUNNING, FAILED)


class Row(NamedTuple):
    """A trial in the table. `value` is the value of the metric, of a pruned trial the last one. `reason` says why a trial failed."""

    number: int
    outcome: str
    value: float | None
    step: int
    params: Mapping[str, Value]
    run: str
    reason: str = ""


def row_of(trial: "FrozenTrial") -> Row:
    """Return the row of a trial of the study."""
    from optuna.trial import TrialState

    outcomes = {TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED, TrialState.FAIL: FAILED}
    outcome = outcomes.get(trial.state, RUNNING)
    value = trial.value if outcome in (COMPLETE, PRUNED) else None
    attributes = trial.user_attrs
    run = str(attributes.get("run", "")).rpartition("-")[2]
    return Row(trial.number, outcome, value, attributes.get("step", 0), trial.params, run, attributes.get("reason", ""))


def ranked(rows: Iterable[Row], *, is_better_lower: bool) -> list[Row]:
    """Sort trials: complete ones by value, then pruned ones by their last step, then the others. Of equal trials, the earlier is first."""

    def order(row: Row) -> tuple[int, int, float, int]:
        value = float("inf") if row.value is None else row.value if is_better_lower else -row.value
        return ORDER.index(row.outcome), -row.step if row.outcome != COMPLETE else 0, value, row.number

    return sorted(rows, key=order)


def best(rows: Sequence[Row]) -> Row | None:
    """Return the best trial of ranked rows; None if no trial is complete."""
    return rows[0] if rows and rows[0].outcome == COMPLETE else None


def described(params: Mapping[str, Value]) -> str:
    """Return parameters in short form, such as "lr=3e-3 width=16"."""
    names = short_keys(list(params))
    return " ".join(f"{names[key]}={shortened(value)}" for key, value in params.items())


def shortened(value: Value) -> str:
    return short(float(f"{value:.3g}")) if isinstance(value, float) else short(value)


def print_table(rows: Sequence[Row], metric: str, keys: Sequence[str]) -> None:
    """Print ranked rows as a table, and below it the reasons of failed trials. `keys` are the searched parameters."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = short_keys(keys)
    table = Table(box=SIMPLE_HEAD)
    titles = {"rank": "right", "trial": "right", metric: "right", "steps": "right", "outcome": "left"}
    for title in (*titles, *(names[key] for key in keys), "run"):
        table.add_column(Text(title), justify="right" if titles.get(title) == "right" else "left", no_wrap=True)
    for rank, row in enumerate(rows, 1):
        value = "" if row.value is None else f"{row.value:.4f}"
        params = [shortened(row.params[key]) if key in row.params else "" for key in keys]
        cells = [str(rank) if row.outcome == COMPLETE else "", str(row.number), value, str(row.step or ""), row.outcome, *params, row.run]
        table.add_row(*map(Text, cells))
    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)  # a file has no width: nothing is cut
    with console.capture() as rendered:
        console.print(table)
    print(*(line.rstrip() for line in rendered.get().splitlines()), sep="\n")  # rich fills each line with spaces
    for row in rows:
        if row.reason:
            print(f"trial {row.number} failed: {row.reason}")


def as_csv(rows: Sequence[Row], metric: str, keys: Sequence[str]) -> str:
    """Return ranked rows as CSV, with all digits. `keys` are the searched parameters."""
    cells = ((row.number, row.outcome, row.value, row.step, *(row.params.get(key) for key in keys), row.run, row.reason) for row in rows)
    return files.as_csv(["trial", "outcome", metric, "step", *keys, "run", "reason"], cells)
