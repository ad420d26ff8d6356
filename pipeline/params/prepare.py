"""What `prepare` may read: the seed of the splits, and the source."""

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import NonNegativeInt, field_validator

from pipeline.params.section import Section, Share
from pipeline.registry import SOURCES

if TYPE_CHECKING:
    from pipeline.raw_dataset import RawDataset


class SourceSettings(Section):
    """What every source has; a source's own module adds what it alone knows."""

    untrusted: ClassVar[bool] = False
    """Whether `root` holds files of the user's own, whose classes `check` looks over before anything runs."""

    downloaded: ClassVar[bool] = False
    """Whether `open` downloads what `root` does not hold, which `check` therefore does before anything runs."""

    name: str
    """The dataset or format: a module of `pipeline/sources/`."""
    root: Path
    """The folder or file that holds the data, inside the checkout or not; `dvc repro` watches it."""
    valid: Share
    """Share of train kept for validation; 0 for none, and the last weights are kept. Unused where the source brings such a split."""
    test: Share
    """Share of all samples kept for the test, above 0. Unused, and perhaps 0, where the source brings such a split."""

    @field_validator("root")
    @classmethod
    def names_data(cls, root: Path) -> Path:
        if root == Path():
            raise ValueError("names the checkout itself, which `dvc repro` would watch: name the folder or file that holds the data")
        if any(unicodedata.category(sign) in ("Cc", "Zl", "Zp") for sign in str(root)):  # a line end would split what is said of it
            raise ValueError("holds a line end or another control character: rename the folder or file")
        return root

    def num_classes(self) -> int | None:
        """Where it is known before anything is read; None where names and folders tell."""
        return None

    def open(self, *, workers: int) -> "RawDataset":
        """Targets at once and samples in a stream; decoding uses `workers` threads or processes."""
        raise NotImplementedError(f"pipeline/sources/{self.name}.py defines no open()")


class PrepareParams(Section):
    seed: NonNegativeInt
    """The one seed: splits, order, initial weights, dropout and augmentation derive theirs from it."""
    source: Annotated[SourceSettings, SOURCES]
    """The dataset or format: a module of `pipeline/sources/`."""
