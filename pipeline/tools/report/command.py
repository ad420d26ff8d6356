"""`python -m pipeline report`: write what the stages recorded about the model as one HTML page and as a model card, by a template each."""

import base64
import html
import json
import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import read_record, shared_samples
from pipeline.core.raw_dataset import SPLITS
from pipeline.core.refusal import Refusal, counted, rounded
from pipeline.core.section import flatten, formatted, leaves
from pipeline.evaluate.reports import recorded
from pipeline.prepare.params import data_name

if TYPE_CHECKING:
    from pipeline.tools.compare.models import ComparedModel

CARD = "{}-model-card.md"
"""The name of the model card, from the name of the page, so that the reports in one folder do not replace each other's."""
FIGURES = ("confusion", "predicted", "labels", "loss_by_position", "history", "reliability", "mistakes")
TABLES = {
    "columns": "Columns, by how much the loss rises if their cells are shuffled",
    "mistakes": "Most confident mistakes",
    "surprising": "Least expected passages",
    "texts": "Written texts with the highest loss",
}
"""The figures and tables of the stage `evaluate`, the most important first. Other figures follow."""
MOST_ROWS, LONGEST = 20, 300
MARKUP = re.compile(r"[\\`*\[\]|~$<>&]|(?<![^\W_])_|_(?![^\W_])|^(?:[#+=-]|[0-9]+(?=[.)](?:\s|$)))")
"""Characters that can begin markup in a dialect of Markdown: some anywhere, some only at the beginning of a line or of a word."""


def run(output: str) -> None:
    """Write the report of the checkout's model to the HTML file `output`, and the model card to the same folder.

    Raises Refusal if `output` is no HTML file, or if the results in `metrics/` are not those of a whole evaluation of the model file.
    """
    target, paths = Path(output), Paths()
    if target.suffix not in (".html", ".htm") or target.is_dir():
        raise Refusal(f"--output: {output}: should be an HTML file, such as reports/report.html")
    from pipeline.tools.compare import models  # late: torch takes seconds to import, and an invalid argument is reported before

    made = content_of(models.read(str(paths.model), paths, Environment.read()), paths)
    for path, template in ((target, "page.html"), (target.with_name(CARD.format(target.stem)), "card.md")):
        files.write_text(path, rendered(template, made))
        print(f"report: {path} ({path.stat().st_size / 1e3:,.0f} kB)")


class Table(NamedTuple):
    """A table of the page. It is hidden until a reader opens it if `is_folded`."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_folded: bool = False


def content_of(model: "ComparedModel", paths: Paths) -> dict[str, Any]:
    """Return the content of both templates."""
    scores, manifest, plots = recorded.scores(paths.metrics / "evaluate.json", paths.model), model.manifest, paths.evaluation_plots
    if not paths.predictions.is_file():  # it is written last, so an evaluation that was killed has none
        raise Refusal(f"{paths.predictions}: is missing: run `dvc pull {paths.predictions}`, or `dvc repro -f evaluate`")
    main, source = recorded.main_score(scores), data_name(model.facts.params)
    interval = scores.get(f"{main}_interval")
    between = f"between {rounded(interval['low'])} and {rounded(interval['high'])}, " if interval else ""
    title = manifest.inference.model.title + (f" on {source}" if source else "")
    task = manifest.spec.targets.hub_task.format(inputs=manifest.spec.inputs.kind.replace("table", "tabular"))
    pictures = {path.stem: path for path in sorted(plots.glob("*.png"))}
    samples = plots / "samples.md"
    return {
        "title": title,
        "subtitle": f"{task.replace('-', ' ')}, model file {model.digest[:12]}",
        "headline": (spoken(main), rounded(scores[main]), f"{between}on {counted(scores['samples'], 'sample', ',')} of test"),
        "beside": recorded.beside(scores),
        "figures": [
            (spoken(name), base64.b64encode(pictures[name].read_bytes()).decode())
            for name in sorted(pictures, key=[*FIGURES, *pictures].index)
        ],
        "tables": [table for table in tables(model, scores, paths) if table.rows],
        "samples": samples.read_text(encoding="utf-8").strip() if samples.is_file() else "",
        "commands": "\n".join(commands(model)),
        "metadata": metadata(title, source, task, scores, model),
    }


def spoken(name: str) -> str:
    return name.replace("_", " ")


def tables(model: "ComparedModel", scores: Mapping[str, Any], paths: Paths) -> Iterator[Table]:
    """Yield the tables of a model: its scores, classes and mistakes, its data, parameters and provenance. Some have no rows."""
    from pipeline.runs.terminal import duration  # late: it imports torch

    manifest, run, facts = model.manifest, model.run, model.facts
    trained = recorded.trained(paths.metrics / "train.json", manifest.step) or {}
    splits = {"test": {name: value for name, value in scores.items() if name not in (*recorded.PARTS, recorded.POSITIVE)}, **trained}
    numbers = {split: dict(leaves(splits.get(split, {}))) for split in reversed(SPLITS)}
    names = dict.fromkeys(name for each in numbers.values() for name in each)
    cells = [(spoken(name).replace(".", ", "), *(text(each[name]) if name in each else "" for each in numbers.values())) for name in names]
    yield Table(f"Scores, of the weights of step {manifest.step:,}", ("score", *numbers), cells)
    worst, part = recorded.ranked(scores)[:MOST_ROWS], recorded.PARTS.get(recorded.parts(scores) or "", "")
    header = (part, *worst[0][1]) if worst else ()
    yield Table(f"Lowest F1 of a {part}", header, [(name, *map(text, each.values())) for name, each in worst])
    for name, title in TABLES.items():
        if (path := paths.evaluation_plots / f"{name}.csv").is_file() and (rows := recorded.read_table(path, "evaluate")[:MOST_ROWS]):
            yield Table(title, tuple(rows[0]), [[text(cell) for cell in row.values()] for row in rows])
    record = read_record(paths.prepared) if (paths.prepared / "spec.json").is_file() else None
    if record and record.digest == manifest.inputs.get("data"):
        shared = ", ".join(shared_samples(record.splits))
        note = f" (samples with equal inputs are in two splits: {shared})" if shared else ""
        counts = [(name, text(split.samples), text(split.left_out)) for name, split in record.splits.items()]
        yield Table(f"Data{note}", ("split", "samples", "left out"), counts)
    if run and (cost := run.cost):
        found = {
            "time": duration(cost.time_s),
            "samples per second": f"{cost.samples_per_second:,.0f}" if cost.samples_per_second else "",
            **{f"GPU memory, {name.removesuffix('_megabytes')}": f"{size:,.0f} MB" for name, size in cost.memory_megabytes.items()},
            "energy of the GPUs": "" if cost.energy_wh is None else f"{cost.energy_wh:,.3g} Wh",
        }
        yield Table("Cost of the training", ("what", "value"), [(name, value) for name, value in found.items() if value])
    params = {**facts.params, **flatten(manifest.params)}
    yield Table("Parameters", ("parameter", "value"), [(name, text(formatted(value))) for name, value in params.items()], is_folded=True)
    known: dict[str, object] = {"SHA-256": model.digest, "precision": manifest.precision, **manifest.inputs, **facts.provenance}
    known |= flatten({"machine": manifest.fingerprint}) | {"recorded by": facts.origin or "no run in this checkout"}
    yield Table("Provenance", ("fact", "value"), [(name, text(value)) for name, value in known.items()], is_folded=True)


def text(cell: object) -> str:
    """Return the text of a cell: numbers rounded, and long texts cut."""
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return f"{cell:,}" if isinstance(cell, int) else rounded(cell)
    if "." in (found := str(cell)) and re.fullmatch(r"-?[0-9]+\.[0-9]+(e-?[0-9]+)?", found):
        return rounded(float(found))
    return found if len(found) <= LONGEST else f"{found[:LONGEST]} ..."


def commands(model: "ComparedModel") -> Iterator[str]:
    """Yield the commands that train the model again; none if its code and parameters are no commit."""
    facts, fingerprint = model.facts.provenance, model.manifest.fingerprint
    if facts.get("git.difference") == "none" and (commit := facts.get("git.commit")):
        variables = {"PIPELINE_DEVICE": "device", "PIPELINE_THREADS": "threads", "PIPELINE_PROCESSES": "processes"}
        set_ = [f"{name}={shlex.quote(str(fingerprint[field]))}" for name, field in variables.items() if field in fingerprint]
        yield from (f"git checkout {shlex.quote(commit)}", "make setup", " ".join([*set_, "make repro"]))
        yield f"sha256sum models/model.safetensors  # {model.digest}, on a machine of the same kind"


def metadata(title: str, source: str, task: str, scores: Mapping[str, Any], model: "ComparedModel") -> dict[str, Any]:
    """Return the metadata of the model card as the Hugging Face Hub defines it, with the exact scores. A licence is not known."""
    name = source or "unknown"
    metrics = [
        {"type": {"macro_f1": "f1"}.get(score, score), "name": f"test {score}", "value": value}
        for score, value in scores.items()
        if isinstance(value, float) and score not in recorded.BASELINES
    ]
    result = {"task": {"type": task}, "dataset": {"name": name, "type": name, "split": "test"}, "metrics": metrics}
    return {
        "library_name": "pytorch",
        "pipeline_tag": task,
        "tags": ["pytorch", model.manifest.inference.model.name],
        **({"datasets": [source]} if source else {}),
        "model-index": [{"name": title, "results": [result]}],
    }


def rendered(template: str, content: Mapping[str, Any]) -> str:
    """Return a template of this folder with the content. Every text that it outputs is escaped, so that no text of the data is read as markup."""
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    escape = html_text if template.endswith(".html") else markdown_text
    made = Templates(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(str(value))),  # noqa: S704  # escaped
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["json"] = lambda value: Markup(json.dumps(value))  # noqa: S704  # which is YAML, too
    made.filters["code"] = lambda value: Markup("".join(f"    {line}\n" for line in visible(value).split("\n")))  # noqa: S704  # Markdown reads no markup in it
    made.tests["number"] = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?(e-?[0-9]+)?").fullmatch
    return made.get_template(template).render(content)


def visible(text: str) -> str:
    """Return the text with Python's escapes in place of control characters and marks of text direction. Spaces and line feeds are kept."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" or unicodedata.category(letter) == "Zs" else ascii(letter)[1:-1]
        for letter in text
    )


def html_text(text: str) -> str:
    return html.escape(visible(text))


def markdown_text(text: str) -> str:
    """Return the text on one line, and without any markup."""

    def escaped(match: re.Match[str]) -> str:
        markup = match[0]
        return html.escape(markup) if markup in "<>&" else f"{markup}\\" if markup.isdigit() else f"\\{markup}"

    return MARKUP.sub(escaped, " ".join(visible(text).split()))
