"""The section `source`, the only one that the stage `prepare` reads: the base class of every source's settings."""

import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, ValidationInfo, field_validator

from pipeline.core.refusal import Refusal
from pipeline.core.registry import SOURCES, USUAL_TASK
from pipeline.core.section import Section, Share, ValueOf

if TYPE_CHECKING:
    from pipeline.core.raw_dataset import RawDataset

Duplicates = Annotated[
    Literal["keep", "together"],
    Field(
        description="How splits are drawn if the bytes of several image files, several texts or the values of several arrays are equal. "
        "`keep`: without regard to it, so that equal samples may be in train and in test; `together`: equal samples go to the same split. "
        "Splits that the source has are not changed. `prepare` says how many samples are in two splits."
    ),
]


class SourceSettings(Section):
    """The settings and methods that every source has. Each source adds its own settings in its module, in `pipeline/sources/`."""

    untrusted: ClassVar[bool] = False
    """True if `root` has the user's own files. `check` then validates their classes and splits before any stage runs."""

    embedded: ClassVar[bool] = False
    """True if `open` reads nothing from `root`. Any other root than the recommended one is then refused."""

    downloaded: ClassVar[bool] = False
    """True if `open` downloads files that are missing in `root`. `check` then calls `open`, so that a failed download is reported before
    any stage runs. If `prepare` is up to date, `check` does not call `open`.
    """

    divides: ClassVar[bool] = False
    """True if `open` itself divides the dataset by `valid` and `test`. Its splits are then no reason to ignore these shares."""

    inputs: ClassVar[str] = "image"
    """The kind of the dataset's inputs: the name of a folder of `pipeline/inputs/`."""

    TASK: ClassVar[str] = USUAL_TASK
    """The kind of the dataset's targets, which decides the task: the name of a folder of `pipeline/tasks/`. Where a key decides it, as in
    `LabelSettings`, this is the usual task."""

    name: str
    """The dataset or format: a module of `pipeline/sources/`."""
    root: Path
    """The folder or file with the data, inside or outside the checkout; `dvc repro` detects its changes."""
    valid: Share
    """Share of the train samples to split off for validation; 0 for none, which needs `train.export_weights: last`. Not used if the source
    has a validation split of its own, or if `folds` is set.
    """
    test: Share
    """Share of all samples to split off for the test, above 0. Not used, and may be 0, if the source has a test split of its own."""

    seed: NonNegativeInt
    """Seed with which missing validation and test splits are drawn. It is another one than `seed`, so that trainings with several seeds have
    one test split. Without effect if no split is drawn at random, as for `text` and `package_source`.
    """
    folds: Annotated[int, Field(ge=2, le=1000)] | None
    """Number of parts of equal size into which the samples that are not in the test split are divided for a cross-validation: the part `fold`
    is the validation split, and the others are for training. `null` for none: the share `valid` is then the validation split.
    """
    fold: NonNegativeInt
    """The part, counted from 0, of `folds` that is the validation split; 0 if `folds` is null."""

    RECOMMENDED: ClassVar = {"valid": 0.1, "test": 0.1, "seed": 1, "folds": None, "fold": 0}
    ADDED: ClassVar = {"seed": ValueOf("seed"), "folds": None, "fold": 0}

    @field_validator("folds")
    @classmethod
    def refuse_folds_of_a_text(cls, folds: int | None) -> int | None:
        if folds and cls.divides:
            raise ValueError("this source takes its splits from whole documents, not at random: write null")
        return folds

    @field_validator("fold")
    @classmethod
    def refuse_no_such_fold(cls, fold: int, info: ValidationInfo) -> int:
        folds = info.data.get("folds", fold + 1)  # without an entry, `folds` itself is invalid
        if fold >= (folds or 1):
            raise ValueError(
                f"there is no fold {fold} of {folds}, because they are counted from 0: write {folds - 1} or less"
                if folds
                else "needs the number of folds: write 0, or set source.folds, too"
            )
        return fold

    @field_validator("root")
    @classmethod
    def refuse_unusable_root(cls, root: Path) -> Path:
        if root == Path():
            raise ValueError("is the checkout itself, which also has the results of the stages: write the path of the data")
        if any(unicodedata.category(sign) in ("Cc", "Zl", "Zp") for sign in str(root)):  # it would split the lines of a message
            raise ValueError("contains a line break or another control character: rename the folder or file")
        if cls.embedded and root != Path(cls.RECOMMENDED["root"]):
            raise ValueError(
                f"is not read by this source, so it must be {cls.RECOMMENDED['root']}: to read data of your own, choose the source for it, too: "
                "`python -m pipeline set source=image_folder source.root=...`, or source=arrays, source=text_classification or source=text"
            )
        return root

    @classmethod
    def task_of(cls, section: Mapping[str, Any]) -> str:
        """Return the task that `section`, a section `source`, decides. It need not be valid."""
        return str(section.get("task", cls.TASK)) if "task" in cls.model_fields else cls.TASK

    @property
    def targets_kind(self) -> str:
        return self.task_of(dict(self))

    def refuse_missing(self) -> None:
        """Raise Refusal if the folder or archive `root`, or another file that the settings name, does not exist or cannot be used."""
        if not os.path.exists(self.root):  # noqa: PTH110  # os.path.exists returns False for invalid names, where Path.exists raises
            remedy = "write the path of the folder or archive with the data; for a dataset that is downloaded, create this folder"
            if "PIPELINE_IMAGE_REVISION" in os.environ:  # set by the image
                remedy = (
                    f"add `-v FOLDER:{os.path.realpath(self.root)}` to `docker run`, or as RUN_ARGS to `make docker-repro`: "
                    "the container sees only what is mounted, and FOLDER is the path of the data on the host"
                )
            raise Refusal(f"source.root: {self.root} does not exist: {remedy}")

    def cluster_paths(self) -> tuple[Path, ...] | None:
        """Return the paths that the workers of a cluster must see to decode or tokenize samples, or None if such workers have nothing to do."""
        return None

    def example_inputs(self, example: Any) -> Any:
        """Return `example`, a description of typical inputs, with what the settings say of the prepared inputs, such as the size of images.

        This base class returns `example`.
        """
        return example

    def num_classes(self) -> int | None:
        """Return the number of classes if the settings determine it, as for CIFAR-10. Return None if only the data determine it."""
        return None

    def open(self, *, workers: int) -> "RawDataset":  # noqa: ARG002  # for the sources
        """Open the dataset and return it with its targets in memory. The returned dataset yields the samples later, some at a time.

        `workers` is the number of threads or processes that decode samples, if the source needs them.
        """
        problem = "its class `Settings` has no method `open(self, *, workers)`"
        raise Refusal(f"pipeline/sources/{self.name}.py: {problem}: define it, as docs/extending.md explains")

    def refuse_damaged(self, *, workers: int, within_s: float) -> None:
        """Raise Refusal if `prepare` would refuse files that `open` does not read, such as corrupt images. Return after `within_s` seconds.

        `check` calls this if DVC would run `prepare`: DVC removes the prepared data before `prepare` finds out.
        """


class PrepareParams(Section):
    source: Annotated[SourceSettings, SOURCES]
    """The dataset or format: a module of `pipeline/sources/`."""


def data_name(params: Mapping[str, Any]) -> str:
    """Return a name for the data of a run: the stem of `source.root` if the user's own files are read, else `source.dataset` or `source.name`.

    `params` are the parameters by dotted key. They need not be valid. The name is "" if they do not have the source.
    """
    name, root = str(params.get("source.name") or ""), str(params.get("source.root") or "")
    own = name in SOURCES.names and SOURCES.settings(name).untrusted
    return (
        re.sub(r"(\.tar)?\.[A-Za-z]\w{0,5}$", "", PurePath(root).name.lstrip(".")) if own else str(params.get("source.dataset") or "")
    ) or name
