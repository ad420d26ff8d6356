"""Arrays, MNIST and CIFAR in their own formats, damaged or foreign."""

import gzip
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import partial

import numpy as np

from tests.faults.corpus.archives import ZEROS, before_zeros, tar
from tests.faults.corpus.damage import cut, endless, loop, replaced
from tests.faults.corpus.models import Touch
from tests.faults.corpus.prepared import HEADERS, npy, saved, shaped
from tests.faults.hostile import RAW, Case, use

NPZ, ARRAYS, DIGITS, PICTURES = RAW / "hostile.npz", RAW / "arrays", RAW / "digits", RAW / "pictures"
GOOD = {"inputs": np.zeros((12, 4, 4), np.uint8), "targets": np.arange(12) % 2}


def npz(make: Callable[[], bytes]) -> Callable[[], None]:
    def put() -> None:
        use(name="arrays", root=str(NPZ), test=0.25)
        NPZ.write_bytes(make())

    return put


def npys(make: Callable[[], object]) -> Callable[[], None]:
    def put() -> None:
        use(name="arrays", root=str(ARRAYS), test=0.25)
        ARRAYS.mkdir()
        for name, array in GOOD.items():
            np.save(ARRAYS / f"{name}.npy", array)
        make()

    return put


def members(**changes: bytes) -> bytes:
    """The good arrays, and members of any bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**{name: saved(array) for name, array in GOOD.items()}, **changes}.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def headed(header: str) -> bytes:
    return members(inputs=npy(header, bytes(192)))


def lots(count: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}.npy", b"")
    return stream.getvalue()


def idx(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + data


def digits(name: str, content: Callable[[], bytes | None]) -> Callable[[], None]:
    """MNIST's files, in which one is another; `None` makes a pipe."""

    def put() -> None:
        use(name="mnist", root=str(DIGITS), variant="mnist")
        DIGITS.mkdir()
        for prefix in ("train", "t10k"):
            (DIGITS / f"{prefix}-images-idx3-ubyte").write_bytes(idx((20, 4, 4), bytes(320)))
            (DIGITS / f"{prefix}-labels-idx1-ubyte").write_bytes(idx((20,), bytes(range(10)) * 2))
        path = DIGITS / name
        (DIGITS / name.removesuffix(".gz")).unlink()
        data = content()
        path.write_bytes(data) if data is not None else os.mkfifo(path)

    return put


def pictures(make: Callable[[], dict[str, bytes]]) -> Callable[[], None]:
    """CIFAR-10's folder, in which some files are others."""

    def put() -> None:
        use(name="cifar", root=str(PICTURES), variant="cifar10")
        PICTURES.mkdir()
        records = np.zeros((20, 3073), np.uint8)
        records[:, 0] = np.arange(20) % 10
        good = {f"data_batch_{number}.bin": records.tobytes() for number in range(1, 6)} | {"test_batch.bin": records.tobytes()}
        for name, data in {**good, "batches.meta.txt": "\n".join("abcdefghij").encode(), **make()}.items():
            (PICTURES / name).write_bytes(data)

    return put


def grown() -> None:
    """Sparse files of records of class 0."""
    pictures(dict)()
    for path in PICTURES.glob("*.bin"):
        os.truncate(path, 13_600 * 3073)


def pickled() -> dict[str, bytes]:
    """What torchvision would unpickle."""
    batch = pickle.dumps({b"data": Touch(), b"labels": Touch()})
    return dict.fromkeys(["data_batch_1", "batches.meta", "data_batch_1.bin"], batch)


def published(content: Callable[[], bytes]) -> Callable[[], None]:
    """The archive as it would be downloaded."""

    def put() -> None:
        use(name="cifar", root=str(PICTURES), variant="cifar10")
        PICTURES.mkdir()
        (PICTURES / "cifar-10-binary.tar.gz").write_bytes(content())

    return put


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
NPZS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a bomb of images": (lambda: members(inputs=npy(shaped("(12, 4096, 4096)")) + bytes(12 * 2**24)), "that unpack to"),
    "a bomb of names": (lambda: members(classes=npy(shaped("(2,)", "'<U10000000'"), bytes(80_000_000))), "that unpack to"),
    "names of ten megabytes": (lambda: members(classes=npy(shaped("(2,)", "'<U2500000'"), bytes(20_000_000))), "shorten the longest names"),
    "a name that clears the screen": (lambda: members(classes=saved(np.array(["\x1b[2J", "b"]))), r"\x1b[2J"),
    "ten thousand arrays": (lambda: lots(10_000), "is not an .npy array"),
    "a pickle": (lambda: members(inputs=saved(np.array([Touch()], dtype=object))), "is not plain numbers"),
    "a pickle for an archive": (lambda: pickle.dumps(Touch()), "is neither a folder"),
    "an image of four gigabytes": (lambda: members(inputs=npy(shaped("(12, 65535, 65535)"))), "according to its header"),
    "an array cut short": (lambda: members(inputs=npy(shaped("(12, 4, 4)"), bytes(5))), "according to its header"),
    "a cut": (lambda: cut(members(), 0.7), "is neither a folder"),
    **{f"a header of {name}": (partial(headed, HEADERS[name]), "inputs.npy") for name in ("a call", "nine thousand brackets", "objects")},
}
NPYS: dict[str, tuple[Callable[[], object], str]] = {
    "a pipe": (replaced(ARRAYS / "inputs.npy", os.mkfifo), "Is a device, a pipe or a socket"),
    "without end": (replaced(ARRAYS / "inputs.npy", endless), "Is a device, a pipe or a socket"),
    "a link to itself": (replaced(ARRAYS / "inputs.npy", loop), "Too many levels"),
    "a terabyte": (lambda: os.truncate(ARRAYS / "inputs.npy", 2**40), "according to its header"),
    "names without end": (lambda: endless(ARRAYS / "classes.txt"), ""),
    "names of a hundred megabytes": (lambda: (ARRAYS / "classes.txt").write_bytes(b"a\n" * 50_000_000), "more than"),
}
MNIST: dict[str, tuple[str, Callable[[], bytes | None], str]] = {
    "a bomb": (f"{IMAGES}.gz", lambda: before_zeros(idx((400, 1024, 1024)), 4), "unpacks to more than"),
    "a shape of 2^96": (IMAGES, lambda: idx((2**32 - 1,) * 3, b"x"), "its header gives the shape"),
    "no images": (IMAGES, lambda: idx((0, 4, 4)), "has 0 images"),
    "another type": (IMAGES, lambda: b"\0\0\x0d\3" + bytes(12), "is not an idx file"),
    "a cut gzip": (f"{LABELS}.gz", lambda: cut(gzip.compress(idx((20,), bytes(range(20)))), 0.7), "cannot be read"),
    "labels beyond the classes": (LABELS, lambda: idx((20,), b"\xff" * 20), "has the label 255"),
    "a pickle": (IMAGES, lambda: pickle.dumps(Touch()), "is not an idx file"),
    "a pipe": (LABELS, lambda: None, "Is a device, a pipe or a socket"),
}
CIFAR: dict[str, tuple[Callable[[], None], str]] = {
    "pickled batches": (pictures(pickled), "which is not a positive multiple of"),
    "labels beyond the classes": (pictures(lambda: {"test_batch.bin": b"\xff" * 3073}), "has the label 255"),
    "no names": (pictures(lambda: {"batches.meta.txt": b"\xff\0"}), "lists 1 classes"),
    "a terabyte of names": (lambda: (pictures(dict)(), os.truncate(PICTURES / "batches.meta.txt", 2**40)), "bytes, more than"),
    "batches of forty megabytes": (grown, "bytes in total, which is more than CIFAR has"),
    "a pipe for a batch": (lambda: (pictures(dict)(), replaced(PICTURES / "test_batch.bin", os.mkfifo)()), "a pipe"),
    "an archive without the files": (published(lambda: gzip.compress(tar())), "has no batches.meta.txt"),
    "an archive bomb": (published(lambda: gzip.compress(bytes(512) + ZEROS, 1)), "zeros after its end"),
}
CASES = (
    {f"npz: {name}": Case(("prepare",), npz(make), said) for name, (make, said) in NPZS.items()}
    | {f"npy: {name}": Case(("check", "prepare"), npys(make), said, harmless=not said) for name, (make, said) in NPYS.items()}
    | {f"mnist: {name}": Case(("prepare",), digits(file, make), said) for name, (file, make, said) in MNIST.items()}
    | {f"cifar: {name}": Case(("prepare",), change, said) for name, (change, said) in CIFAR.items()}
)
