"""Images that are none, or that unpack to more than they seem."""

import struct
import zlib
from collections.abc import Callable
from functools import cache

from PIL import Image

from tests.faults.corpus.archives import CORRUPT, FOLDER, source
from tests.faults.corpus.damage import cut
from tests.faults.corpus.samples import encoded, folder
from tests.faults.hostile import Case

PIXELS = "declares more than 10000 pixels"
GREY = Image.new("L", (8, 8), 90)
JPEG = encoded(Image.effect_noise((64, 64), 90), "JPEG")


@cache
def zeros() -> bytes:
    return zlib.compress(bytes(64 * 2**20), 1)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(*extra: bytes, width: int = 4, height: int = 4, data: bytes | None = None) -> bytes:
    pixels = zlib.compress(bytes(5 * 4)) if data is None else data
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + b"".join(extra) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def animated(frames: int, kind: str) -> bytes:
    pictures = [Image.new("L", (4, 4), number % 251) for number in range(frames)]
    return encoded(pictures[0], kind, save_all=True, append_images=pictures[1:])


def gif(frames: int) -> bytes:
    """The second frame, again and again."""
    two = animated(2, "GIF")
    frame = two[two.rindex(b"!\xf9") : -1]
    return two[:-1] + frame * frames + b";"


def tiff(entries: list[tuple[int, int, int, int]], *, following: int = 0, data: bytes = b"") -> bytes:
    """One directory of tag, type, count and value or offset."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + body + struct.pack("<I", following) + data


def size(width: int, height: int) -> list[tuple[int, int, int, int]]:
    return [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, 1, 8),
        (278, 4, 1, height),
        (279, 4, 1, 16),
    ]


def greedy(tags: int) -> list[tuple[int, int, int, int]]:
    """Tags that each name the same 500,000 bytes."""
    return [(30_000 + number, 1, 500_000, 8) for number in range(tags)]


def icon(inner: bytes) -> bytes:
    return b"\0\0\1\0\1\0" + bytes([16, 16, 0, 0, 1, 0, 32, 0]) + struct.pack("<II", len(inner), 22) + inner


def bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def large_webp() -> bytes:
    """Sizes of 14 bits stand behind the signature."""
    small = encoded(GREY.convert("RGB"), "WEBP", lossless=True)
    start = small.index(b"VP8L") + 9
    return small[:start] + b"\xff\xff\xff\x0f" + small[start + 4 :]


def with_exif(exif: bytes) -> bytes:
    """A JPEG with as many segments as the data need."""
    parts = [exif[start : start + 60_000] for start in range(0, len(exif), 60_000)]
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in parts)
    return JPEG[:2] + segments + JPEG[2:]


IMAGES: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", CORRUPT),
    "a PNG that only says 20000x20000": (lambda: png(width=20_000, height=20_000), PIXELS),
    "a PNG with 64 megabytes of pixels": (lambda: png(data=zeros()), ""),
    "a PNG with a text bomb": (lambda: png(chunk(b"zTXt", b"a\0\0" + zeros())), ""),
    "a PNG with a thousand text bombs": (lambda: png(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**20 - 10))) * 1000), ""),
    "a PNG with ten megabytes of EXIF": (lambda: png(chunk(b"eXIf", tiff(greedy(5_000), data=bytes(10**7)))), ""),
    "a PNG with a chunk of 2^31 bytes": (lambda: png(struct.pack(">I", 2**31 - 1) + b"tEXt"), CORRUPT),
    "a PNG with ten thousand chunks": (lambda: png(chunk(b"tEXt", b"a\0b") * 10_000), ""),
    "a cut JPEG": (lambda: cut(JPEG, 0.7), CORRUPT),
    "a JPEG of 65535x65535": (lambda: JPEG.replace(struct.pack(">HH", 64, 64), b"\xff\xff\xff\xff", 1), PIXELS),
    "a JPEG with six megabytes of EXIF": (lambda: with_exif(tiff(greedy(5_000), data=bytes(6 * 10**6))), ""),
    "a GIF of ten thousand frames": (lambda: gif(10_000), ""),
    "a GIF of 65535x65535": (lambda: b"GIF89a\xff\xff\xff\xff\0\0\0" + encoded(GREY, "GIF")[13:], PIXELS),
    "an animated WebP": (lambda: animated(50, "WEBP"), ""),
    "a WebP of 16384x16384": (large_webp, PIXELS),
    "a TIFF that follows itself": (lambda: tiff(size(4, 4), following=8, data=bytes(16)), ""),
    "a TIFF of greedy tags": (lambda: tiff([*size(4, 4), *greedy(2_000)], data=bytes(500_000)), ""),
    "a TIFF of 2^32 strips": (lambda: tiff([*size(4, 4)[:5], (273, 4, 2**32 - 1, 8), (279, 4, 2**32 - 1, 8)]), CORRUPT),
    "a BMP of 2^31 pixels a side": (lambda: bmp(2**31 - 1, 2**31 - 1), PIXELS),
    "an icon with a large image": (lambda: icon(encoded(Image.new("1", (2_000, 2_000)))), PIXELS),
    "a PPM of 10^9 pixels a side": (lambda: b"P6 1000000000 1000000000 255\n", PIXELS),
    "a PPM of comments": (lambda: b"P3 4 4 255\n" + b"# x\n" * 300_000, "is an ASCII image"),
    "an EPS": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(touch owned) system\n", CORRUPT),
}


def beside_good_ones(content: Callable[[], bytes]) -> Callable[[], None]:
    def put() -> None:
        folder(FOLDER)
        (FOLDER / "train/cat/hostile.png").write_bytes(content())

    return put


CASES = {
    f"image: {name}": Case(("prepare",), source(FOLDER, beside_good_ones(make)), said, harmless=not said)
    for name, (make, said) in IMAGES.items()
}
