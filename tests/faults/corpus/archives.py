"""Archives of images: tar and zip."""

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tests.faults.corpus.damage import cut, endless, loop
from tests.faults.corpus.samples import IMAGES, PIXEL, folder
from tests.faults.hostile import RAW, Case, use

TAR, ZIP, FOLDER = RAW / "all.tar", RAW / "all.zip", RAW / "images"
WHOLE, CORRUPT, OUTSIDE = "cannot be read as a complete", "cannot be decoded", "has a path outside"
LINK, LARGE, BOMB = "is a link or a device", "bytes, more than", "that unpack to"
ZEROS = bytes(100 * 2**20)
LONG = 390 * 2**20
"""As long as a reader within bounds could still hold it, and show."""


def source(path: Path, make: Callable[[], object]) -> Callable[[], None]:
    """Images in what `make` puts at `path`."""

    def put() -> None:
        use(name="image_folder", root=str(path), image_size=4, channels=1, on_corrupt="fail", max_pixels=10_000, white=None)
        made = make()
        if isinstance(made, bytes):
            path.write_bytes(made)

    return put


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]] = (), *, before: bool = True, form: int = tarfile.GNU_FORMAT) -> bytes:
    """Good images, and the members given."""
    stream = io.BytesIO()
    good = [(member(name, len(data)), data) for name, data in IMAGES.items()] if before else []
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for info, data in [*good, *members]:
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def member(name: str, size: int = 0, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A tar header in which the size may be any twelve bytes."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124:136], block[156:157], block[257:265] = b"0000644\0", size.ljust(12, b"\0"), kind, b"ustar  \0"
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(*records: tuple[str, str]) -> bytes:
    return tar([(member("train/cat/pax.png", 3, pax_headers=dict(records)), b"abc")], form=tarfile.PAX_FORMAT)


def raw_pax(records: bytes) -> bytes:
    return header(b"pax", b"%011o" % 512, b"x") + records.ljust(512) + header(b"x", b"0" * 11)


@cache
def zeros() -> bytes:
    return gzip.compress(ZEROS, 1)


def before_zeros(content: bytes, times: int) -> bytes:
    """Compressed, with a hundred megabytes of zeros behind it, some times."""
    return gzip.compress(content, 1) + zeros() * times


def bomb(members: int = 1) -> bytes:
    """More than the 64 megabytes to which every archive may unpack."""
    size = 80 * 2**20 // members
    return tar([(member(f"train/cat/x{number}.png", size), ZEROS[:size]) for number in range(members)])


def longnames(count: int) -> bytes:
    """A name of a name of a name."""
    return header(b"././@LongLink", b"%011o" % 512, b"L") + bytes(512) if count == 1 else longnames(1) * count


def one(name: str, **fields: object) -> Callable[[], bytes]:
    return lambda: tar([(member(name, **fields), b"")])  # type: ignore[arg-type]


def zipped(contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, level: int | None = None) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method, compresslevel=level) as archive:
        for name, data in {**IMAGES, **contents}.items():
            archive.writestr(name, data)
    return stream.getvalue()


def patched(content: bytes, magic: bytes, offset: int, value: bytes) -> bytes:
    """Bytes after the last `magic` replaced."""
    start = content.rindex(magic) + offset
    return content[:start] + value + content[start + len(value) :]


def overlapping(count: int) -> bytes:
    """Many names of the same ten megabytes (Fifield, 2019)."""
    whole = zipped({"train/cat/zeros.png": bytes(10 * 2**20)})
    end = whole.rindex(b"PK\5\6")
    start = struct.unpack("<I", whole[end + 16 : end + 20])[0]
    entry = whole[whole.rindex(b"PK\1\2") : end]
    names = [entry.replace(b"zeros.png", b"%05d.png" % number) for number in range(count)]
    directory = b"".join(names)
    return whole[:start] + directory + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), start, 0)


def lying() -> bytes:
    """A member that says it has ten bytes and inflates to four hundred megabytes."""
    whole = zipped({"train/cat/zeros.png": ZEROS * 4}, level=1)
    return patched(patched(whole, b"PK\1\2", 24, struct.pack("<I", 10)), b"PK\3\4", 22, struct.pack("<I", 10))


def deep() -> None:
    folder(FOLDER)
    (FOLDER / "/".join("d" * 100)).mkdir(parents=True)


def multiplied() -> None:
    """Ten folders of three links each to the next: 3^10 ways to the last."""
    folder(FOLDER)
    for depth in range(10):
        (FOLDER / f"train/{depth}").mkdir()
        for link in range(3):
            (FOLDER / f"train/{depth}/{link}").symlink_to(f"../{depth + 1}" if depth < 9 else "../cat")


def in_folder(make: Callable[[Path], object]) -> Callable[[], None]:
    def put() -> None:
        folder(FOLDER)
        make(FOLDER / "train/cat/hostile.png")

    return put


TARS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a name above": (one("../train/cat/x.png"), OUTSIDE),
    "an absolute name": (one("/etc/passwd"), OUTSIDE),
    "a symbolic link": (one("train/cat/x.png", type=tarfile.SYMTYPE, linkname="/etc/passwd"), LINK),
    "a device": (one("train/cat/x.png", type=tarfile.CHRTYPE, devmajor=1, devminor=5), LINK),
    "a sparse file": (one("train/cat/x.png", type=tarfile.GNUTYPE_SPARSE), "is sparse"),
    "a name of 10,000 characters": (one("train/cat/" + "x" * 10_000 + ".png"), CORRUPT),
    "a class of 10,000 characters": (one("train/" + "x" * 10_000 + "/x.png"), "has a name of 10000 characters"),
    "a class that clears the screen": (one("train/\x1b[2J/x.png"), r"\x1b[2J"),
    "a name of broken UTF-8": (lambda: tar()[:-10240] + header(b"train/cat/\xff\xfe.png", b"0" * 11) + bytes(1024), ""),
    "a member twice": (one("train/cat/0.png"), "occurs twice"),
    "a size of 300 megabytes": (lambda: header(b"train/cat/x.png", b"%011o" % (300 * 2**20)), LARGE),
    "a size of 2^80": (lambda: header(b"train/cat/x.png", b"\x80" + b"\xff" * 11), LARGE),
    "a negative size": (lambda: header(b"train/cat/x.png", b"\xff" * 10 + b"\xfe\x00") + bytes(2048), ""),
    "a size that is no number": (lambda: header(b"train/cat/x.png", b"size?"), WHOLE),
    "pax records of 390 megabytes": (lambda: before_zeros(header(b"pax", b"%011o" % LONG, b"x"), 4), WHOLE),
    "ten thousand names of names": (lambda: longnames(10_000), WHOLE),
    "a pax size of 10^30": (lambda: pax(("size", "1" + "0" * 30)), ""),
    "a pax name above": (lambda: pax(("path", "../x")), OUTSIDE),
    "a pax map that is no number": (lambda: pax(("GNU.sparse.map", "a,b")), WHOLE),
    "pax records of nonsense": (lambda: raw_pax(b"99999999999 a=b\n"), WHOLE),
    "pax in an unknown encoding": (lambda: pax(("hdrcharset", "rot13"), ("path", "x")), ""),
    "a gigabyte of zeros behind the end": (lambda: before_zeros(tar(), 10), WHOLE),
    "a gzip bomb": (lambda: gzip.compress(bomb()), BOMB),
    "a bzip2 bomb": (lambda: bz2.compress(bomb(), 1), BOMB),
    "an xz bomb": (lambda: lzma.compress(bomb(), preset=0), BOMB),
    "a bomb of many members": (lambda: gzip.compress(bomb(8)), BOMB),
    "an xz of a gigabyte of dictionary": (
        lambda: lzma.compress(tar(), filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**20}]).replace(
            b"\x21\x01\x10", b"\x21\x01\x28"
        ),
        WHOLE,
    ),
    "a cut gzip": (lambda: cut(gzip.compress(tar()), 0.7), WHOLE),
    "30,000 members": (lambda: b"".join(header(b"train/cat/%d.png" % number, b"0" * 11) for number in range(30_000)) + bytes(1024), ""),
    "a shell script": (lambda: b"#!/bin/sh\ntouch owned\n", WHOLE),
}
ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a name above": (lambda: zipped({"../x.png": b""}), OUTSIDE),
    "a link": (lambda: patched(zipped({"train/cat/x.png": b"/etc/passwd"}), b"PK\1\2", 38, struct.pack("<I", 0o120777 << 16)), LINK),
    "encrypted": (lambda: patched(zipped({"train/cat/x.png": b"x"}), b"PK\1\2", 8, b"\1\0"), "is encrypted"),
    "a bomb": (lambda: zipped({"train/cat/x.png": ZEROS}), BOMB),
    "a bomb that lies about its size": (lying, CORRUPT),
    "a hundred overlapping members": (lambda: overlapping(100), BOMB),
    "a bzip2 bomb": (lambda: zipped({"train/cat/x.png": ZEROS[: 2**25]}, zipfile.ZIP_BZIP2), "uses compression method 12"),
    "an unknown method": (lambda: patched(zipped({"train/cat/x.png": b"x"}), b"PK\1\2", 10, b"\x63\0"), "uses compression method 99"),
    "a size of 4 gigabytes": (lambda: patched(zipped({"train/cat/x.png": b"x"}), b"PK\1\2", 24, b"\xfe\xff\xff\xff"), LARGE),
    "an offset beyond the end": (lambda: patched(zipped({"train/cat/x.png": b"x"}), b"PK\1\2", 42, b"\xfe\xff\xff\x7f"), CORRUPT),
    "65,535 members of none": (lambda: patched(zipped({}), b"PK\5\6", 8, b"\xff\xff\xff\xff"), ""),
    "a name that clears the screen": (lambda: zipped({"train/cat/\x1b[2J.png": b"x"}), r"\x1b[2J"),
    "a flipped checksum": (lambda: patched(zipped({"train/cat/x.png": PIXEL}), b"PK\1\2", 16, b"\0\0\0\0"), CORRUPT),
    "a cut": (lambda: cut(zipped({}), 0.8), WHOLE),
}
PLACES: dict[str, tuple[Path, Callable[[], object], str]] = {
    "a pipe": (TAR, lambda: os.mkfifo(TAR), "Is a device, a pipe or a socket"),
    "without end": (TAR, lambda: endless(TAR), "Is a device, a pipe or a socket"),
    "a link to itself": (TAR, lambda: loop(TAR), "does not exist"),
    "a terabyte of nothing": (TAR, lambda: (TAR.touch(), os.truncate(TAR, 2**40)), "zeros after its end"),
    "a folder that holds itself": (
        FOLDER,
        in_folder(lambda path: path.symlink_to("..")),
        "is reached twice through links, perhaps one to a parent folder",
    ),
    "100 folders deep": (FOLDER, deep, "folders deep"),
    "links that multiply": (FOLDER, multiplied, "is reached twice through links, perhaps one to a parent folder: remove the link"),
    "a pipe among images": (FOLDER, in_folder(os.mkfifo), "is a device, a pipe or a socket"),
    "a link without end among images": (FOLDER, in_folder(endless), "is a device, a pipe or a socket"),
}
UNREADABLE: dict[str, tuple[Callable[[], None], str]] = {
    "a link to itself": (in_folder(loop), CORRUPT),
    "a link to nothing": (in_folder(lambda path: path.symlink_to("nowhere")), CORRUPT),
    "a sparse terabyte": (in_folder(lambda path: (path.touch(), os.truncate(path, 2**40))), LARGE),
}
HARMLESS = {"tar: pax in an unknown encoding", "zip: 65,535 members of none"}
"""What tarfile and zipfile have ignored so far."""
CASES = (
    {
        f"tar: {name}": Case(("prepare",), source(TAR, make), said, harmless=f"tar: {name}" in HARMLESS)
        for name, (make, said) in TARS.items()
    }
    | {
        f"zip: {name}": Case(("prepare",), source(ZIP, make), said, harmless=f"zip: {name}" in HARMLESS)
        for name, (make, said) in ZIPS.items()
    }
    | {f"source.root: {name}": Case(("check", "prepare"), source(path, make), said) for name, (path, make, said) in PLACES.items()}
    | {f"folder: {name}": Case(("prepare",), source(FOLDER, make), said) for name, (make, said) in UNREADABLE.items()}
)
