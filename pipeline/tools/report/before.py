"""The section that compares a model with the run before it: the change of its scores, and what differs, both as the journals recorded them."""

from collections.abc import Iterator

from pipeline.core.identity import DIGESTS, differences
from pipeline.core.untrusted import shown
from pipeline.evaluate.reports import recorded
from pipeline.runs import journal
from pipeline.runs.record import Record
from pipeline.tools.compare.comparing import signed
from pipeline.tools.compare.differences import Value, as_one, differing, flat
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.page import Cell, Number, Section, Table
from pipeline.tools.report.results import key, spoken

TITLE = "Compared with the run before"
COMPARED = ("exact_match", "chrf", *recorded.HEADLINES, "macro_f1")
"""The test scores whose change is shown."""
INPUTS = {**DIGESTS, "fingerprint": "machine"}
MOST_CHANGED, LONGEST_VALUE = 6, 24
NOTHING = "-"


def compared(evidence: Evidence) -> Section | None:
    """Return what differs from the previous run of the same architecture and data; None without a journal of the training."""
    run, before = evidence.run, evidence.before
    if run is None or not run.last.get("subject"):  # the line of a damaged journal is missing
        return None
    if before is None:
        return Section(TITLE, (f"This checkout has no earlier run of {run.last['subject']}.",))
    changed = list(parameter_rows(before, run))
    more = [f"{len(changed) - MOST_CHANGED} more parameters differ."] if len(changed) > MOST_CHANGED else []
    table = Table(("", "before", "now", "change"), (*score_rows(before, evidence), *changed[:MOST_CHANGED]))
    names = " ".join(journal.short_name(each.name) for each in (before, run))
    command = f"To test whether the change is more than chance: python -m pipeline compare {names}"
    return Section(TITLE, (table, *more, also_different(before, run), command))


def score_rows(before: Record, evidence: Evidence) -> Iterator[tuple[Cell, ...]]:
    earlier, scores = before.metrics("test/"), evidence.evaluation.scores
    for name in COMPARED:
        if name in scores and (value := earlier.get(f"test/{name}")) is not None:
            yield spoken(name), Number(value), Number(scores[name], key(evidence, name)), signed(scores[name] - value)


def parameter_rows(before: Record, run: Record) -> Iterator[tuple[Cell, ...]]:
    params = [params_of(each) for each in (before, run)]
    for row in differing("parameters", [as_one(each, params) for each in params]):
        yield row.name, *(NOTHING if value is None else shown(value, LONGEST_VALUE) for value in row.values), ""


def params_of(run: Record) -> dict[str, Value]:
    """Return the parameters of a run by dotted key. Those of the evaluation are tags."""
    tags = {name: value for fields in run.begun for name, value in fields["tags"].items() if name.startswith("evaluate.")}
    return {**flat(run.last["params"]), **tags}


def also_different(before: Record, run: Record) -> str:
    """Return a sentence on what else differs and can affect the result: data, code, lock file and machine."""
    first, second = (each.provenance.get("inputs", {}) for each in (before, run))
    if not (first and second):
        return "Whether data, code and machine differ is not recorded."
    names = [INPUTS[name] for name, _ in differences(first, second) if name in INPUTS]
    return f"Also different: {', '.join(names)}." if names else "Data, code, requirements.lock and machine are the same."
