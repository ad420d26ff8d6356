"""Model files and checkpoints: foreign, damaged, and whole ones that lie."""

import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.inference import tensor_file
from tests.faults.corpus.damage import cut, endless, flipped, loop, replaced
from tests.faults.hostile import MODEL, Case

NO_MODEL = "is not a model file of this pipeline"
FOREIGN, NOT_WHOLE = "was not written by this pipeline", "is not a complete safetensors file"
DAMAGED, UNFIT = "is damaged", "do not match the model"
UNMADE = "should be"
TORCHVISION: dict[str, Any] = {"name": "torchvision", "weights": None, "architecture": "resnet18", "stem": "original", "pretrained": None}


class Touch:
    """Unpickling it makes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned ../owned",)


def write(content: Callable[[], bytes]) -> None:
    MODEL.write_bytes(content())


def raw(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file in the format of safetensors, with a header that may be anything."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def described(metadata: object, tensors: dict[str, object] | None = None, data: bytes = b"") -> bytes:
    """One whose metadata is the text given."""
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    return raw({"__metadata__": {"pipeline": text}, **(tensors or {})}, data)


def changed(change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> Callable[[], None]:
    """The whole file with other contents, and the digest that belongs to them."""

    def write() -> None:
        tensors, metadata = tensor_file.load(MODEL)
        change(metadata, tensors)
        tensor_file.save(MODEL, tensors, metadata)

    return write


def param(**values: object) -> Callable[[], None]:
    return changed(lambda metadata, _: metadata["params"]["model"].update(values))


def network(**values: object) -> Callable[[], None]:
    return changed(lambda metadata, _: metadata["params"].update(model={"weights": None, **values}))


def images(channels: int) -> dict[str, object]:
    """Return the description of the largest images."""
    return {"height": 65_535, "width": 65_535, "channels": channels, "mean": [0.5] * channels, "std": [0.5] * channels}


def large(channels: int, **model: object) -> Callable[[], None]:
    """The largest images, for another network."""

    def change(metadata: dict[str, Any], _: object) -> None:
        metadata["spec"]["inputs"].update(images(channels))
        metadata["params"].update(model={"weights": None, **model})

    return changed(change)


def spec(part: str, **values: object) -> Callable[[], None]:
    return changed(lambda metadata, _: metadata["spec"][part].update(values))


def manifest(**values: object) -> Callable[[], None]:
    return changed(lambda metadata, _: metadata.update(values))


def keys(count: int) -> dict[str, int]:
    return {f"key{number}": 1 for number in range(count)}


def classes(count: int) -> Callable[[], None]:
    return changed(lambda metadata, _: metadata["spec"]["targets"].update(classes=[str(number) for number in range(count)]))


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[], None]:
    return changed(lambda _, found: change(found))


def fitting() -> None:
    """A network whose weights are the same for images of any size."""
    from torchvision.models import get_model  # late: it takes seconds to import, in every process that collects the tests

    weights = get_model("squeezenet1_1", num_classes=2).state_dict()
    _, metadata = tensor_file.load(MODEL)
    metadata["spec"]["inputs"].update(images(3))
    metadata["params"].update(model=TORCHVISION | {"architecture": "squeezenet1_1"})
    tensor_file.save(MODEL, weights, metadata)


def torch_saved() -> bytes:
    stream = io.BytesIO()
    torch.save({"weight": torch.zeros(3), "touch": Touch()}, stream)
    return stream.getvalue()


def laid(*entries: tuple[str, list[int], int, int], size: int = 4) -> Callable[[], bytes]:
    """Tensors of a type, a shape and offsets in data of a size."""
    return lambda: described({"digest": "x"}, {name: entry(*tensor) for name, tensor in zip("ab", entries, strict=False)}, bytes(size))


def many(count: int) -> dict[str, object]:
    return {f"tensor{number}": entry("F32", [0], 0, 0) for number in range(count)}


def nested(levels: int) -> str:
    return '{"digest": "x", "a": ' + "[" * levels + "]" * levels + "}"


BYTES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", NOT_WHOLE),
    "a header of 2^64 bytes": (lambda: raw(b"{}", length=2**64 - 1), NOT_WHOLE),
    "a header beyond the end": (lambda: raw(b"{}", length=5000), NOT_WHOLE),
    "a header of a hundred megabytes": (lambda: raw(b"[" * 99_999_000), "declares a header of 99999000 bytes, more than"),
    "a header of two megabytes of nesting": (lambda: raw(b"[" * 2_000_000), NOT_WHOLE),
    "one hundred thousand tensors": (lambda: described({"digest": "x"}, many(100_000)), "declares more than 50000 tensors"),
    "no metadata": (lambda: raw({}), FOREIGN),
    "metadata that is a number": (lambda: raw({"__metadata__": {"pipeline": 1}}), NOT_WHOLE),
    "metadata that is no JSON": (lambda: described("{'a': 1}"), FOREIGN),
    "metadata nested 100,000 deep": (lambda: described(nested(100_000)), NOT_WHOLE),
    "metadata with not a number": (lambda: described('{"digest": "x", "a": NaN}'), NOT_WHOLE),
    "metadata with 5,000 digits": (lambda: described('{"digest": "x", "a": ' + "9" * 5000 + "}"), NOT_WHOLE),
    "metadata with a key twice": (lambda: described('{"digest": "x", "digest": "y"}'), DAMAGED),
    "a digest that is a list": (lambda: described('{"digest": []}'), DAMAGED),
    "overlapping tensors": (laid(("F32", [2], 0, 8), ("F32", [2], 4, 12), size=12), NOT_WHOLE),
    "offsets beyond the end": (laid(("F32", [2**40], 0, 2**42)), NOT_WHOLE),
    "a shape that overflows": (laid(("F32", [2**62, 2**62], 0, 4)), NOT_WHOLE),
    "bytes behind the end": (lambda: MODEL.read_bytes() + b"more", NOT_WHOLE),
    "a pickle": (lambda: pickle.dumps(Touch()), NOT_WHOLE),
    "what torch.save writes": (torch_saved, NOT_WHOLE),
}
LIES: dict[str, tuple[Callable[[], None], str]] = {
    "a model of another package": (param(name="../../x"), "there is no model"),
    "params that are a list": (manifest(params=[]), NO_MODEL),
    "params with another section": (changed(lambda metadata, _: metadata["params"].pop("train")), "train: is missing"),
    "a key that clears the screen": (param(**{"\x1b[2J": 1}), "\\x1b[2J"),
    "a key of 100,000 letters": (param(**{"k" * 100_000: 1}), "its parameters have"),
    "parameters nested 900 deep": (manifest(params={"model": json.loads("[" * 900 + "]" * 900)}), MODEL.name),
    "a hundred thousand unknown parameters": (
        changed(lambda metadata, _: metadata["params"]["model"].update(keys(100_000))),
        "its parameters have",
    ),
    "a wide network": (param(width=65_536), UNFIT),
    "a deeper network": (param(depth=10**9), UNMADE),
    "a gigantic convolution": (network(name="convnet", width=65_536, dropout=0.0), UNFIT),
    "a network of torchvision": (network(**TORCHVISION | {"architecture": "vit_h_14"}), "does not accept images of 4x4"),
    "images of 65535x65535": (spec("inputs", **images(1)), UNFIT),
    "images of 65535x65535 for a convolution": (large(65_535, name="convnet", width=65_536, dropout=0.0), UNFIT),
    "images of 65535x65535 that fit the weights": (fitting, "was trained on image inputs (65535, 65535, 3) and 2 outputs"),
    "one hundred thousand classes": (classes(100_000), UNFIT),
    "a million classes": (classes(1_000_000), "Has more than"),
    "classes of one name": (spec("targets", classes=["a", "a"]), NO_MODEL),
    "a deviation of zero": (spec("inputs", std=[0.0]), NO_MODEL),
    "a deviation near zero": (spec("inputs", std=[1e-320]), "not finite"),
    "another format": (manifest(format="another-1"), NO_MODEL),
    "an earlier format": (manifest(format="pipeline-model-1"), "has the format pipeline-model-1 of another version"),
    "a kind of inputs that is a path": (spec("inputs", kind="../../models/mlp"), NO_MODEL),
    "halvings of nothing": (manifest(switches=[{"step": 1, "micro_batch_size": 0}]), NO_MODEL),
    "a precision of others": (manifest(precision="fp8"), NO_MODEL),
    "a tensor too many": (tensors(lambda found: found.update(extra=torch.zeros(1))), UNFIT),
    "a tensor of another type": (tensors(lambda found: found.update({"1.0.weight": found["1.0.weight"].double()})), UNFIT),
    "weights that are not numbers": (tensors(lambda found: found["1.0.weight"].fill_(torch.nan)), "not finite"),
}
PLACES: dict[str, tuple[Callable[[], None], str]] = {
    "cut in half": (lambda: MODEL.write_bytes(cut(MODEL.read_bytes(), 0.5)), NOT_WHOLE),
    "a flipped bit": (lambda: MODEL.write_bytes(flipped(MODEL.read_bytes(), -1)), DAMAGED),
    "missing": (MODEL.unlink, "is missing: run `dvc repro`"),
    "a folder": (replaced(MODEL, Path.mkdir), NOT_WHOLE),
    "a pipe": (replaced(MODEL, os.mkfifo), NOT_WHOLE),
    "without end": (replaced(MODEL, endless), NOT_WHOLE),
    "a link to itself": (replaced(MODEL, loop), NOT_WHOLE),
}
CASES = {
    f"model: {name}": Case(("evaluate",), change, said)
    for name, (change, said) in ({name: (partial(write, content), said) for name, (content, said) in BYTES.items()} | LIES | PLACES).items()
}
