"""The sections that the stage `prepare` may read."""

from typing import Annotated

from pydantic import NonNegativeInt

from pipeline.params.section import Section
from pipeline.params.source import SourceSettings
from pipeline.registry import SOURCES


class PrepareParams(Section):
    seed: NonNegativeInt
    """Seed of all random numbers: of splits, sample order, initial weights, dropout and augmentation."""
    source: Annotated[SourceSettings, SOURCES]
    """The dataset or format: a module of `pipeline/sources/`."""
