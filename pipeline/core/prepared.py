"""The prepared data on disk: memory-mapped arrays of inputs and of targets for each split, and `spec.json`, which describes them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from pipeline.core import files, untrusted
from pipeline.core.raw_dataset import SPLITS, TRAIN
from pipeline.core.refusal import Refusal
from pipeline.core.spec import MOST_BYTES, Inputs, Spec

FORMAT = "pipeline-prepared-4"
HEADER_BYTES = 1 << 16
"""Upper bound for the size of the header of an `.npy` file."""


class SplitRecord(BaseModel):
    """The entry of one split in `spec.json`.

    `samples` is the number of samples in the split's two `.npy` files. `left_out` is the number of corrupt samples, which are not in these
    files. `inputs_digest` and `targets_digest` are the digests of these two files, computed by `files.chunked_digest`.
    `also_in` says for each split before this one, in the order train, valid, test, how many samples of this split have inputs that a sample
    of that split has, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: PositiveInt
    left_out: NonNegativeInt
    also_in: dict[str, NonNegativeInt]
    inputs_digest: str
    targets_digest: str


def shared_samples(splits: Mapping[str, SplitRecord]) -> list[str]:
    """Return a text such as "113 of 1,114 samples of test in train" for each two splits of which samples have equal inputs."""
    return [
        f"{number:,} of {record.samples:,} samples of {name} in {other}"
        for name, record in splits.items()
        for other, number in record.also_in.items()
        if number
    ]


class PreparedRecord(BaseModel):
    """The contents of `data/prepared/spec.json`, the file that describes the prepared data.

    `source` is the section of params.yaml that `prepare` used. It is None if an earlier version wrote the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["pipeline-prepared-4"]
    spec: Spec
    splits: dict[str, SplitRecord]
    source: dict[str, Any] | None = None

    @property
    def digest(self) -> str:
        """A hash of the prepared data. Parameters do not count: if others give the same data, they give the same model."""
        return files.digest_of(self.model_dump(mode="json", exclude={"source"}))


@dataclass(frozen=True)
class Split:
    """The samples of one split, as copy-on-write memory maps.

    `inputs` and `targets` have one row per sample. `Prepared.spec` describes the shape and dtype of a row. `lengths` (n,) contains the
    length of each sample without its padding. It is None if nothing is padded.

    If `windows` is True, the samples are consecutive pieces of one long text. The target of each token is then the next token, so no
    targets are stored: `targets` has the shape (n, 0). `pad` is then the number of the padding after the last token. If tokens of the samples
    are their targets, which are not stored either, `within` describes the samples.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    lengths: NDArray[np.int64] | None = None
    windows: bool = False
    pad: int = 0
    within: Inputs | None = None

    @classmethod
    def of(cls, spec: Spec, inputs: NDArray[Any], targets: NDArray[Any]) -> "Split":
        """Return the split with samples that `spec` describes."""
        windows, within = (spec.targets.stored == place for place in ("windows", "within"))
        lengths = None if windows else spec.inputs.lengths(inputs)
        return cls(inputs, targets, lengths, windows, spec.inputs.pad, spec.inputs if within else None)

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Prepared:
    """The contents of the folder `data/prepared/`. `digest` is that of its record."""

    spec: Spec
    digest: str
    splits: Mapping[str, Split]

    @property
    def train(self) -> Split:
        return self.splits[TRAIN]

    @classmethod
    def open(cls, folder: Path, *, verify: bool = True) -> "Prepared":
        """Open and verify the prepared data in `folder`. Without `verify`, the contents of the arrays are not read and not verified: another
        process on the same machine does this.

        Raises Refusal if a file is missing, cannot be read, has another format, or differs from what `prepare` wrote. Raises Refusal if
        there is no train split, or if a target is invalid.
        """
        record = read_record(folder)
        if TRAIN not in record.splits:
            raise Refusal(f"{folder / 'spec.json'}: does not describe a train split: run `dvc repro -f prepare`")
        splits = {name: open_split(folder, name, record, verify=verify) for name in SPLITS if name in record.splits}
        return cls(record.spec, record.digest, splits)

    def split(self, name: str) -> Split:
        """Return a split by name. Raises Refusal if the prepared data has no such split."""
        if name not in self.splits:
            raise Refusal(f"the prepared data has no {name} split: set source.{name} above 0, and run `dvc repro` again")
        return self.splits[name]


def read_record(folder: Path) -> PreparedRecord:
    path = folder / "spec.json"
    try:
        content = untrusted.read(path, MOST_BYTES)
        untrusted.refuse_crowded(content)
        return PreparedRecord.model_validate_json(content)
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro prepare`") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        what = untrusted.shown(f"{place}: {first['msg'].removeprefix('Value error, ')}")
        raise Refusal(f"{path}: does not have the format {FORMAT} ({what}): run `dvc repro -f prepare`") from None
    except OSError as error:
        raise Refusal(f"{path}: cannot be read ({untrusted.reason(error)}): run `dvc repro -f prepare`") from None


def sample_keys(folder: Path, split: str, count: int) -> list[str] | None:
    """Return where the source has each of the `count` samples of a split, such as the path of a file, or the position `train:17`.

    Return None if there are no keys: a corpus has none, and an earlier version has written none. Raises Refusal if they cannot be read.
    """
    path = folder / f"{split}-keys.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            return [str(json.loads(line)) for line, _ in zip(lines, range(count), strict=True)]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise Refusal(f"{path}: cannot be read ({untrusted.reason(error)}): run `dvc repro -f prepare`") from None


def open_split(folder: Path, name: str, record: PreparedRecord, *, verify: bool) -> Split:
    expected, spec = record.splits[name], record.spec
    inputs_digest, targets_digest = (expected.inputs_digest, expected.targets_digest) if verify else (None, None)
    inputs = read_array(folder / f"{name}-inputs.npy", inputs_digest, (expected.samples, *spec.inputs.row_shape), spec.inputs.dtype)
    targets = read_array(folder / f"{name}-targets.npy", targets_digest, (expected.samples, *spec.targets.row_shape), spec.targets.dtype)
    spec.targets.refuse_invalid(targets, f"{folder}: {name}")
    return Split.of(spec, inputs, targets)


def read_array(path: Path, digest: str | None, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Return the array in the `.npy` file `path` as a copy-on-write memory map.

    Raises Refusal if the file cannot be read, or if `files.chunked_digest` does not return `digest` for it, unless `digest` is None. Raises
    Refusal if the array does not have
    `shape` and `dtype`, or is not C-contiguous. If the file is too large for an array of this shape and dtype, it is refused without being
    read.
    """
    try:
        extra_bytes = untrusted.size_bytes(path) - prod(shape) * np.dtype(dtype).itemsize
        described = extra_bytes <= HEADER_BYTES and (digest is None or files.chunked_digest(path) == digest)
        array: NDArray[Any] | None = npy.open_memmap(path, mode="c") if described else None
    except Exception as error:  # numpy parses the header as a Python literal, which may raise any exception
        raise Refusal(f"{path}: cannot be read ({untrusted.reason(error)}): run `dvc repro -f prepare`") from None
    if array is None:
        raise Refusal(f"{path}: does not match its digest in spec.json: run `dvc repro -f prepare`")
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise Refusal(
            f"{path}: has shape {array.shape} and dtype {array.dtype}, but spec.json says shape {shape} and dtype {np.dtype(dtype)}: run `dvc repro -f prepare`"
        )
    return array
