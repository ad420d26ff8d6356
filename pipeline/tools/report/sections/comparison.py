"""The section on what differs between several models, with the paired tests of their predictions, as `compare` prints them."""

from collections.abc import Sequence

from pipeline.core.environment import Environment
from pipeline.core.paths import Paths
from pipeline.core.refusal import Refusal
from pipeline.tools.compare import rendering
from pipeline.tools.compare.comparing import compare
from pipeline.tools.report.content import Paragraph, Section, Table

TITLE = "What differs"


def sections(names: Sequence[str], paths: Paths, environment: Environment) -> tuple[Section, ...]:
    """Return the comparison of each model with the first; () for a single model. Raises Refusal if there are too many models."""
    if len(names) < 2:
        return ()
    if len(names) > rendering.MOST_MODELS:
        raise Refusal(f"report: names {len(names)} models: name {rendering.MOST_MODELS} at most")
    comparison = compare(names, paths, environment)
    blocks = tuple(
        Paragraph(block) if isinstance(block, str) else table(block.header, block.rows, block.title)
        for block in rendering.blocks(comparison)
    )
    return (Section(TITLE, blocks),)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], title: str) -> Table:
    """Return the table without the columns that are empty, such as that of remarks where there are none."""
    columns = [column for column in zip(header, *rows, strict=True) if any(column)]
    kept_header, *kept_rows = zip(*columns, strict=True)
    return Table(kept_header, tuple(kept_rows), title)
