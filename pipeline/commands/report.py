"""`python -m pipeline report`: write what is known about a model as one HTML page and as a model card."""

from contextlib import ExitStack
from pathlib import Path

from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment

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
    from pipeline.io import files  # late: torch takes seconds to import, and an invalid argument is reported before
    from pipeline.report_page import evidence, html, markdown, page
    from pipeline.report_page.sections import comparison

    paths, environment = Paths(), Environment.read()
    names = subjects or [str(paths.model)]
    compared = comparison.sections(names, paths, environment)
    with ExitStack() as stack:
        content = page.page([stack.enter_context(evidence.collect(name, paths, environment)) for name in names], compared)
    card = target.with_name(CARD.format(target.stem))
    files.write_text(target, html.render(content))
    files.write_text(card, markdown.render(content))
    print(f"report: {target} ({target.stat().st_size / 1e3:,.0f} kB), {card}")
