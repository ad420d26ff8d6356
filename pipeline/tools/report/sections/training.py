"""The sections on the training: the curves of loss, metric, learning rate and gradient norm, and the cost."""

from collections.abc import Sequence

from pipeline.evaluate.reports.recorded import HEADLINES, Row, points
from pipeline.tools.report.content import Chart, Charts, Number, Pairs, Paragraph, Section, Series
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.run_record import Cost
from pipeline.tracking.terminal import duration

WIDE = 20.0
"""An axis is logarithmic if the largest value is at least this multiple of the smallest, and all are above 0."""
LOSS, RATE, NORM = "loss", "learning_rate", "gradient_norm"


def section(evidence: Evidence) -> Section | None:
    """Return the curves; None if this checkout has neither the history nor the journal of the training."""
    if not evidence.history:
        return None
    rows, metric = evidence.history, shown_metric(evidence.history, str(evidence.params.get("train.metric", "")))
    charts = [
        chart("loss (nats)", rows, {"train": "train/objective", "valid": "valid/loss"}),
        chart(metric.replace("_", " "), rows, {"train": f"train/{metric}", "valid": f"valid/{metric}"})
        if metric not in ("", LOSS)
        else None,
        chart("learning rate", rows, {"rate": RATE}),
        chart("gradient norm", rows, {"norm": f"train/{NORM}"}),
    ]
    plotted = tuple(each for each in charts if each)
    return Section("Training", (Charts(plotted),)) if plotted else None


def shown_metric(rows: Sequence[Row], metric: str) -> str:
    """Return the name, without split, of the metric to plot beside the loss: `train.metric`; if this is the loss, the main score.

    Return "" if the history has no other metric than the loss.
    """
    name = metric.partition("/")[2]
    candidates = (name, *HEADLINES)
    return next((each for each in candidates if each not in ("", LOSS) and any(f"valid/{each}" in row for row in rows)), "")


def chart(title: str, rows: Sequence[Row], columns: dict[str, str]) -> Chart | None:
    """Return a chart with a curve for each column that has values. `columns` maps the style of a curve to the name of its column."""
    series = [Series(style, style, tuple(points(rows, column))) for style, column in columns.items()]
    plotted = tuple(each for each in series if each.points)
    values = [value for each in plotted for _, value in each.points]
    logarithmic = bool(values) and title != "learning rate" and min(values) > 0 and max(values) / min(values) >= WIDE
    return Chart(title, "step", plotted, logarithmic) if plotted else None


def cost(evidence: Evidence) -> Section | None:
    """Return the time, the energy and the memory that the journal recorded; None without a journal of the training."""
    measured = evidence.run.cost if evidence.run else None
    if measured is None:
        return None
    note = "Measured by the journal of the run: the same training, run again, has the same result at another cost."
    return Section("Cost", (Pairs(cost_facts(measured)), Paragraph(note)))


def cost_facts(measured: Cost) -> tuple[tuple[str, str | Number], ...]:
    sessions = f", in {measured.num_sessions} sessions" if measured.num_sessions > 1 else ""
    time = duration(measured.time_s) if measured.time_s >= 60 else f"{measured.time_s:.1f} s"
    facts: list[tuple[str, str | Number]] = [("training time", time + sessions)]
    if measured.samples_per_second is not None:
        facts.append(("samples per second (median)", f"{measured.samples_per_second:,.0f}"))
    if measured.energy_wh is not None:
        facts.append(("energy of the GPUs", f"{measured.energy_wh:,.3g} Wh"))
    facts += [
        (f"peak GPU memory, {name.removesuffix('_megabytes')}", f"{value:,.0f} MB") for name, value in measured.memory_megabytes.items()
    ]
    return tuple(facts)
