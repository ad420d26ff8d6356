"""`python -m pipeline report`: write what is known about a model as one HTML page and as a model card."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.params import data_name
from pipeline.tools.report import page
from pipeline.tools.report.page import UNKNOWN_DATASET, ModelReport, Page, PageSection, Table

if TYPE_CHECKING:
    from pipeline.tools.report.evidence import Evidence

CARD = "{}-model-card.md"
"""The name of the model card, from the name of the page, so that the reports in one folder do not replace each other's."""


def run(subjects: list[str], output: str) -> None:
    """Write the report of the models that `subjects` name to the HTML file `output`, and the model card to the same folder.

    Without `subjects`, the report is of the checkout's model file. The report of several models begins with their comparison. Raises
    Refusal if `output` is no HTML file, if a model cannot be found, or if its scores are neither in `metrics/` nor can be computed.
    """
    target = Path(output)
    if target.suffix not in (".html", ".htm") or target.is_dir():
        raise Refusal(f"--output: {output}: should be an HTML file, such as reports/report.html")
    from pipeline.core import files  # late: torch takes seconds to import, and an invalid argument is reported before
    from pipeline.tools.report import evidence

    paths, environment = Paths(), Environment.read()
    names = subjects or [str(paths.model)]
    compared = comparison(names, paths, environment)
    with ExitStack() as stack:
        content = page_of([stack.enter_context(evidence.collect(name, paths, environment)) for name in names], compared)
    card = target.with_name(CARD.format(target.stem))
    files.write_text(target, page.render_html(content))
    files.write_text(card, page.render_markdown(content))
    print(f"report: {target} ({target.stat().st_size / 1e3:,.0f} kB), {card}")


LONGEST_NAME = 60
HUB_TASKS = {
    ("image", "classification"): "image-classification",
    ("image", "multi_label"): "image-classification",
    ("text", "classification"): "text-classification",
    ("text", "multi_label"): "text-classification",
    ("text", "language_modeling"): "text-generation",
    ("table", "classification"): "tabular-classification",
    ("table", "regression"): "tabular-regression",
    ("text_pair", "sequence"): "text2text-generation",
}
"""The names of tasks on the Hugging Face Hub, by the kinds of the inputs and of the targets."""
HUB_METRICS = {"macro_f1": "f1"}
"""The names of metrics on the Hugging Face Hub, where they differ from ours."""
NOT_OF_MODEL = ("samples", "tokens", "majority_labels_micro_f1", "majority_labels_exact_match")


def comparison(names: Sequence[str], paths: Paths, environment: Environment) -> tuple[PageSection, ...]:
    """Return the comparison of each model with the first, as `compare` prints it; () for one model. Raises Refusal if there are too many."""
    if len(names) < 2:
        return ()
    from pipeline.tools.compare import comparing

    blocks = (
        each if isinstance(each, str) else Table(each.header, tuple(each.rows), each.title).without_empty_columns(keep_titled=True)
        for each in comparing.blocks(comparing.compare(names, paths, environment))
    )
    return (PageSection("What differs", tuple(blocks)),)


def page_of(evidences: Sequence["Evidence"], compared: Sequence[PageSection] = ()) -> Page:
    """Return the page of one or more models. Several models are labelled A, B and so on, and `compared` has the sections that compare them."""
    reports = tuple(map(report, evidences))
    if len(reports) == 1:
        return Page(reports[0].title, (), reports)
    labelled = (replace(each, title=f"{label}: {each.title}") for label, each in zip(ascii_uppercase, reports, strict=False))
    return Page(f"Comparison of {len(reports)} models", tuple(compared), tuple(labelled))


def report(evidence: "Evidence") -> ModelReport:
    """Return the report of one model, without the sections that do not apply to it."""
    from pipeline.tools.report import model, results, samples  # late: they import torch

    errors, training = results.errors(evidence), results.training(evidence)
    overview = (results.result(evidence), results.before(evidence), errors or training)
    measured = (results.all_scores(evidence), training if errors else None, samples.mistakes(evidence), results.calibration(evidence))
    written = (samples.generated_texts(evidence), samples.passages(evidence), samples.written_texts(evidence))
    origin = (
        model.summary(evidence),
        samples.data(evidence),
        samples.columns(evidence),
        results.cost(evidence),
        model.provenance_section(evidence),
    )
    details = (*measured, *written, *origin, model.reproduction(evidence))
    task = model.task_name(evidence.manifest.spec)
    settings = evidence.manifest.inference.model
    tags = tuple(dict.fromkeys(("pytorch", settings.name, settings.title)))
    subtitle, shown_first, below = f"{task}; model file {evidence.digest[:12]}", tuple(filter(None, overview)), tuple(filter(None, details))
    return ModelReport(title(evidence), subtitle, shown_first, below, tags, metadata(evidence, task))


def title(evidence: "Evidence") -> str:
    """Return the name of the model and of its dataset, such as `convnet on digits`."""
    source = data_name(evidence.params)
    name = evidence.manifest.inference.model.title
    return shown(f"{name} on {source}" if source else name, LONGEST_NAME)


def metadata(evidence: "Evidence", task: str) -> dict[str, Any]:
    """Return the entry of the model in Hugging Face's `model-index`. `task` is its task in words.

    The metrics are all test scores of the model that are single numbers.
    """
    from pipeline.evaluate.reports.recorded import BASELINES  # late: it imports numpy

    spec, source, scores = evidence.manifest.spec, data_name(evidence.params) or UNKNOWN_DATASET, evidence.evaluation.scores
    kind = HUB_TASKS.get((spec.inputs.kind, spec.targets.kind), spec.targets.kind.replace("_", "-"))
    digest = evidence.manifest.inputs.get("data")
    result = {
        "task": {"type": kind, "name": task},
        "dataset": {"name": source, "type": source, "split": "test", **({"revision": digest} if digest else {})},
        "metrics": [
            {"type": HUB_METRICS.get(name, name), "name": f"test {name}", "value": value}
            for name, value in scores.items()
            if isinstance(value, int | float) and name not in (*NOT_OF_MODEL, *BASELINES)
        ],
    }
    return {"name": title(evidence), "results": [result]}
