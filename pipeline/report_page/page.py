"""Collects the content of a report from the evidence for its models."""

from collections.abc import Sequence
from dataclasses import replace
from string import ascii_uppercase

from pipeline.io.untrusted import shown
from pipeline.report_page.content import Metadata, ModelReport, Page, Section
from pipeline.report_page.evidence import Evidence
from pipeline.report_page.sections import data, errors, language, model, provenance, result, training
from pipeline.report_page.sections.result import PER_CLASS

LONGEST_NAME = 60
HUB_TASKS = {
    ("image", "classification"): "image-classification",
    ("text", "classification"): "text-classification",
    ("text", "language_modeling"): "text-generation",
}
"""The names of tasks on the Hugging Face Hub, by the kinds of the inputs and of the targets."""
SECTIONS = (
    model.section,
    result.section,
    data.section,
    training.section,
    errors.section,
    errors.mistakes,
    errors.calibration,
    language.samples,
    language.passages,
    training.cost,
    provenance.section,
    provenance.reproduction,
)


def page(evidences: Sequence[Evidence], comparison: Sequence[Section] = ()) -> Page:
    """Return the page of one model or, with the sections of their comparison, of several, which are called A, B and so on."""
    reports = tuple(map(report, evidences))
    if len(reports) == 1:
        return Page(reports[0].title, (), reports)
    labelled = (replace(each, title=f"{label}: {each.title}") for label, each in zip(ascii_uppercase, reports, strict=False))
    return Page(f"Comparison of {len(reports)} models", tuple(comparison), tuple(labelled))


def report(evidence: Evidence) -> ModelReport:
    """Return the report of one model, without the sections that do not apply to it."""
    found = (make(evidence) for make in SECTIONS)
    subtitle = f"{model.task_name(evidence.manifest.spec)}; model file {evidence.digest[:12]}"
    return ModelReport(title(evidence), subtitle, tuple(section for section in found if section), metadata(evidence))


def title(evidence: Evidence) -> str:
    """Return the name of the model with that of its dataset, such as `convnet on digits`."""
    source = dataset(evidence)
    name = evidence.manifest.inference.model.title
    return shown(f"{name} on {source}" if source else name, LONGEST_NAME)


def dataset(evidence: Evidence) -> str:
    return str(evidence.params.get("source.name") or "")


def metadata(evidence: Evidence) -> Metadata:
    """Return the entry of the model for Hugging Face's metadata block. `metrics` are all test scores that are single numbers."""
    spec, settings = evidence.manifest.spec, evidence.manifest.inference.model
    kind = (spec.inputs.kind, spec.targets.kind)
    numbers = {name: value for name, value in evidence.evaluation.scores.items() if name != PER_CLASS and isinstance(value, int | float)}
    return Metadata(
        model=title(evidence),
        dataset=dataset(evidence),
        data_digest=evidence.manifest.inputs.get("data", ""),
        task=HUB_TASKS.get(kind, spec.targets.kind.replace("_", "-")),
        task_name=model.task_name(spec),
        tags=tuple(dict.fromkeys(("pytorch", settings.name, settings.title))),
        metrics=tuple((name, value) for name, value in numbers.items() if name not in ("samples", "tokens")),
    )
