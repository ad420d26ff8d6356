"""`python -m pipeline report`: write what the stages recorded about the model as one HTML page and as a model card, by a template each."""

from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal

CARD = "{}-model-card.md"
"""The name of the model card, from the name of the page, so that the reports in one folder do not replace each other's."""


def run(output: str) -> None:
    """Write the report of the checkout's model to the HTML file `output`, and the model card to the same folder.

    Raises Refusal if `output` is no HTML file, or if the results in `metrics/` are not those of a whole evaluation of the model file.
    """
    target, paths = Path(output), Paths()
    if target.suffix not in (".html", ".htm") or target.is_dir():
        raise Refusal(f"--output: {output}: should be an HTML file, such as reports/report.html")
    from pipeline.tools.compare import models  # late: torch takes seconds to import, and an invalid argument is reported before
    from pipeline.tools.report import content

    made = content.report(models.read(str(paths.model), paths, Environment.read()), paths)
    for path, template in ((target, "page.html"), (target.with_name(CARD.format(target.stem)), "card.md")):
        files.write_text(path, content.rendered(template, made))
        print(f"report: {path} ({path.stat().st_size / 1e3:,.0f} kB)")
