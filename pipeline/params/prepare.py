"""The sections that the stage `prepare` may read."""

from typing import Annotated

from pipeline.params.section import Section
from pipeline.params.source import SourceSettings
from pipeline.registry import SOURCES


class PrepareParams(Section):
    source: Annotated[SourceSettings, SOURCES]
    """The dataset or format: a module of `pipeline/sources/`."""
