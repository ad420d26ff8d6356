"""From the bytes of any image that Pillow reads to a square of uint8 pixels."""

import warnings
from functools import cache
from io import BytesIO
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from pipeline.io.untrusted import reason

# Pillow hands these to Ghostscript, and so would run a stranger's program
REFUSED_FORMATS = {"EPS"}
# tried first: some of the others look at more than the first bytes, and an image of 32x32 pixels costs twice the time
COMMON_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
TEXTS = (b"P1", b"P2", b"P3")
MODES: dict[int, str] = {1: "L", 3: "RGB"}
DEEP = 65_535
PNG_DEPTH = 24
"""The byte of a PNG that holds its bits a channel."""
LOADED_ONCE = ("JPEG", "PNG")
"""Other readers may decode anew, and fail, when an image that they read is used a second time."""
TURNED = range(2, 9)
"""Orientations that are not upright; Pillow knows no others."""


class Corrupt(Exception):
    """The bytes cannot be decoded; the text says why."""


class Oversized(Exception):
    """The image declares more pixels than allowed; nothing of it was decoded."""


def bound(max_pixels: int) -> None:
    """Make Pillow's own bound ours, for the images that it finds inside of others (icons), and its warnings silent in every thread."""
    Image.MAX_IMAGE_PIXELS = -(-max_pixels // 2)  # Pillow raises beyond twice this number
    warnings.filterwarnings("ignore", module=r"PIL\.")


class Sheet:
    """Squares below one another in one image, which numpy takes in one piece: each by itself would cost a sixth of a small one's decoding."""

    def __init__(self, most: int, size: int, channels: Literal[1, 3]) -> None:
        self.image = Image.new(MODES[channels], (size, size * most))
        self.count, self.shape = 0, (size, size, channels)

    def add(self, square: Image.Image) -> None:
        self.image.paste(square, (0, square.height * self.count))
        self.count += 1

    def pixels(self) -> NDArray[np.uint8]:
        """(n, size, size, channels), in the order in which they came."""
        return np.asarray(self.image).reshape(-1, *self.shape)[: self.count]


def decode(data: bytes, *, size: int, channels: Literal[1, 3], max_pixels: int) -> Image.Image:
    """The first frame, upright, on white where it is transparent, its shorter side resized to `size`, the middle of it.

    Raises Corrupt, or Oversized before anything is decoded. `bound` was called before.
    """
    if data[:2] in TEXTS:
        raise Corrupt("is written as text, which takes seconds to read: store it in a binary form")
    try:
        with Image.open(BytesIO(data), formats=formats()) as image:
            refuse_oversized(*image.size, max_pixels)
            image.draft(None, (2 * size, 2 * size))  # a JPEG is decoded at a half, a fourth or an eighth where that is still twice the goal
            image.load()
            if image.format == "PNG" and "transparency" in image.info:
                scale_transparency(image, depth=data[PNG_DEPTH])
            whole = plain(upright(image), MODES[channels])
            return whole if whole.size == (size, size) else ImageOps.fit(whole, (size, size), Image.Resampling.BICUBIC)
    except (Oversized, Corrupt, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise Oversized(f"declares more than {max_pixels} pixels") from None
    except UnidentifiedImageError:
        raise Corrupt("is no image that Pillow reads") from None
    except Exception as error:  # foreign bytes take Pillow's many readers anywhere
        raise Corrupt(reason(error)) from None


def refuse_oversized(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise Oversized(f"declares more than {max_pixels} pixels")


@cache
def formats() -> tuple[str, ...]:
    Image.init()
    known = [name for name in Image.ID if name not in REFUSED_FORMATS]
    return tuple(sorted(known, key=lambda name: name not in COMMON_FORMATS))


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says; damaged EXIF data say nothing."""
    try:
        if image.format in LOADED_ONCE and image.getexif().get(ExifTags.Base.Orientation) not in TURNED:
            return image  # without the copy that Pillow makes of it
        return ImageOps.exif_transpose(image)
    except Exception:
        return image.copy()


def scale_transparency(image: Image.Image, *, depth: int) -> None:
    """Scale the transparent value of a PNG to 8 bits where Pillow has scaled the pixels alone: grey of 2 and 4 bits, and colours of 16 bits."""
    value = image.info["transparency"]
    if image.mode == "L" and depth in (2, 4):
        image.info["transparency"] = value * 255 // (2**depth - 1)
    elif image.mode == "RGB" and depth == 16:
        image.info["transparency"] = tuple(part >> 8 for part in value)


def plain(image: Image.Image, mode: str) -> Image.Image:
    """8 bits a channel, without palette and transparency."""
    if image.mode.startswith("I"):
        image = eight_bits(image)
    elif image.mode == "F":
        raise Corrupt("has floating-point pixels, whose scale is not known: store it with 8 or 16 bits")
    elif image.has_transparency_data:
        seen = image.convert("RGBA")
        image = Image.new("RGBA", seen.size, "white")
        image.alpha_composite(seen)
    return image if image.mode == mode else image.convert(mode)


def eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey, scaled, and white where it is transparent: Pillow's own conversion clips at 255."""
    pixels = np.asarray(image).astype(np.int64)
    if pixels.min() < 0 or pixels.max() > DEEP:
        raise Corrupt(f"has pixels outside 0 to {DEEP}, whose scale is not known: store it with 8 or 16 bits")
    if "transparency" in image.info:
        pixels[pixels == image.info["transparency"]] = DEEP
    return Image.fromarray(((pixels * 255 + DEEP // 2) // DEEP).astype(np.uint8))
