"""Groups the events of a journal into the batches that are sent to MLflow."""

from collections.abc import Iterable, Iterator

from pipeline.tracking import events
from pipeline.tracking.sender import POINTS_AT_ONCE


def batches(lines: Iterable[events.Event]) -> Iterator[list[events.Event]]:
    """Yield consecutive metrics events together, up to `POINTS_AT_ONCE` metric points, and every other event alone."""
    batch: list[events.Event] = []
    num_points = 0
    for line in lines:
        added = len(line.fields["values"]) if line.kind == "metrics" else 0
        if batch and (not added or num_points + added > POINTS_AT_ONCE):
            yield batch
            batch, num_points = [], 0
        batch.append(line)
        num_points += added
        if not added:
            yield batch
            batch, num_points = [], 0
    if batch:
        yield batch
