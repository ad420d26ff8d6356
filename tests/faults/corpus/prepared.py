"""Prepared data: descriptions and arrays, also with digests that fit."""

import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pipeline.core import files
from tests.faults.corpus.damage import endless, loop, replaced
from tests.faults.hostile import PREPARED, Case

RECORD, INPUTS, TARGETS = PREPARED / "spec.json", PREPARED / "train-inputs.npy", PREPARED / "train-targets.npy"
FORMAT, UNREAD, OTHER, SHAPE = "does not have the format", "cannot be read", "does not match its digest in spec.json", "spec.json says"


def recorded(**changes: object) -> Callable[[], None]:
    """Keys of spec.json, dotted by `__`."""

    def write() -> None:
        record = json.loads(RECORD.read_bytes())
        for dotted, value in changes.items():
            *sections, key = dotted.split("__")
            place = record
            for section in sections:
                place = place[section]
            place[key] = value
        RECORD.write_text(json.dumps(record), encoding="utf-8")

    return write


def record(content: bytes) -> Callable[[], object]:
    return lambda: RECORD.write_bytes(content)


def keys(count: int) -> Callable[[], object]:
    return lambda: RECORD.write_bytes(b"{" + b",".join(b'"key%d":1' % number for number in range(count)) + b"}")


def stored(path: Path, content: Callable[[], bytes]) -> Callable[[], None]:
    """An array file, and its digest in spec.json."""

    def write() -> None:
        path.write_bytes(content())
        split, part = path.stem.split("-")
        recorded(**{f"splits__{split}__{part}_digest": files.chunked_digest(path)})()

    return write


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A file whose header is the text given, right or wrong."""
    text = header.encode("latin-1")
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text + data


def shaped(shape: str, descr: str = "'|u1'", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def saved(array: np.ndarray, *, zipped: bool = False) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, inputs=array) if zipped else np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


HEADERS: dict[str, str] = {
    "a call": "__import__('os').system('touch owned')",
    "nine thousand brackets": "(" * 9_000,
    "sixty thousand characters": " " * 60_000,
    "NUL": "\0" * 100,
    "a negative shape": shaped("(-6, -4, 4, 1)"),
    "a shape of 10^30": shaped("(" + "9" * 30 + ", 4, 4, 1)"),
    "a type of two gigabytes": shaped("(6,)", "'|V2000000000'"),
    "objects": shaped("(6, 4, 4, 1)", "'|O'"),
}
RECORDS: dict[str, tuple[Callable[[], object], str]] = {
    "empty": (record(b""), FORMAT),
    "a list": (record(b"[]"), FORMAT),
    "half a surrogate": (record(b'{"format": "\\ud800"}'), FORMAT),
    "a million keys": (keys(1_000_000), UNREAD),
    "a key that clears the screen": (record(b'{"\\u001b[2J": 1}'), FORMAT),
    "without splits": (recorded(splits={}), "does not describe a train split"),
    "a train split of nothing": (recorded(splits__train__samples=0), FORMAT),
    "10^30 samples": (recorded(splits__train__samples=10**30), SHAPE),
    "images of 65535x65535": (recorded(spec__inputs__height=65_535, spec__inputs__width=65_535), SHAPE),
    "a deviation of zero": (recorded(spec__inputs__std=[0]), FORMAT),
    "a kind of inputs that is a path": (recorded(spec__inputs__kind="/etc/passwd"), FORMAT),
    "a kind of targets with a null byte": (recorded(spec__targets__kind="a\0b"), FORMAT),
    "a digest that is a path": (recorded(splits__train__inputs_digest="../../etc/passwd"), OTHER),
    "a folder": (replaced(RECORD, Path.mkdir), UNREAD),
    "a pipe": (replaced(RECORD, os.mkfifo), UNREAD),
    "without end": (replaced(RECORD, endless), UNREAD),
    "a link to itself": (replaced(RECORD, loop), UNREAD),
}
ARRAYS: dict[str, tuple[Callable[[], object], str]] = {
    "pickled objects": (stored(INPUTS, lambda: saved(np.array([{}] * 6, dtype=object))), UNREAD),
    "an archive": (stored(INPUTS, lambda: saved(np.zeros((6, 4, 4, 1), np.uint8), zipped=True)), UNREAD),
    "column by column": (stored(INPUTS, lambda: saved(np.asfortranarray(np.arange(96, dtype=np.uint8).reshape(6, 4, 4, 1)))), SHAPE),
    "of another type": (stored(INPUTS, lambda: saved(np.zeros((6, 4, 4, 1), np.float32))), SHAPE),
    "of another shape": (stored(INPUTS, lambda: saved(np.zeros((6, 5, 4, 1), np.uint8))), SHAPE),
    "shorter than its header says": (stored(INPUTS, lambda: npy(shaped("(6, 4, 4, 1)"), bytes(5))), UNREAD),
    "targets beyond the classes": (
        stored(TARGETS, lambda: saved(np.full(6, 2**60, np.int64))),
        "but the numbers of its 2 classes are 0 to 1",
    ),
    "targets below zero": (stored(TARGETS, lambda: saved(np.full(6, -1, np.int64))), "but the numbers of its 2 classes are 0 to 1"),
    "an array that is a terabyte": (lambda: os.truncate(INPUTS, 2**40), OTHER),
    "a folder": (replaced(INPUTS, Path.mkdir), UNREAD),
    "a pipe": (replaced(INPUTS, os.mkfifo), UNREAD),
    "without end": (replaced(TARGETS, endless), UNREAD),
    "a link to itself": (replaced(TARGETS, loop), UNREAD),
    **{
        f"a header of {name}": (stored(INPUTS, lambda header=header: npy(header, bytes(96))), "train-inputs.npy")  # type: ignore[misc]
        for name, header in HEADERS.items()
    },
    "a later format with a long header": (stored(INPUTS, lambda: npy(" " * 60_000, version=b"\x02\x00")), UNREAD),
}
MET_BY_BOTH = {"a list", "of another shape"}
"""Inputs that both stages meet, because both open the prepared data in the same way."""
CASES = {
    f"prepared, {place}: {name}": Case(("train", "evaluate") if name in MET_BY_BOTH else ("train",), change, said)
    for place, cases in {"spec.json": RECORDS, "array": ARRAYS}.items()
    for name, (change, said) in cases.items()
}
