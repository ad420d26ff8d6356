"""Decodes images to arrays: checks the size before decoding, resizes and crops. One image must not hold up or end the others."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from pipeline.core.limits import keep_freed_memory
from pipeline.core.raw_dataset import Destination
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.reading.file_tree import READ_ERRORS, Member

# Pillow passes EPS to Ghostscript, which would execute an untrusted program.
REFUSED_FORMATS = {"EPS"}
# These formats are tried first: the readers of some others inspect more than the first bytes. Trying those first would double the time
# for an image of 32x32 pixels.
COMMON_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
ASCII_FORMATS = (b"P1", b"P2", b"P3")
MODES: dict[int, str] = {1: "L", 3: "RGB"}
MAX_16_BIT = 65_535
HEIC = re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL)
PNG_DEPTH = 24
"""Offset in a PNG of the byte with the number of bits per channel."""
LOADED_ONCE = ("JPEG", "PNG")
"""Formats whose images can be used without a copy after `load()`. For other formats, Pillow may decode the image again and fail."""
ROTATED = range(2, 9)
"""The EXIF orientations that are not upright. 1 is upright; Pillow ignores all other values."""


class Corrupt(Exception):
    """Raised if the bytes cannot be decoded; the message gives the reason."""


class Oversized(Exception):
    """Raised before decoding if the image declares more pixels than allowed."""


def set_pixel_limit(max_pixels: int) -> None:
    """Let Pillow refuse images of more than `max_pixels` pixels, and turn off its warnings.

    Unlike the check in `decode`, the limit of Pillow also applies to the images that an icon file contains.
    """
    Image.MAX_IMAGE_PIXELS = -(-max_pixels // 2)  # Pillow warns above this number and raises above twice this number
    warnings.filterwarnings("ignore", module=r"PIL\.")


class ImageStrip:
    """Stacks square images vertically into one tall image, so that all of them are converted to NumPy in one call.

    Converting each square separately would add a sixth to the decoding time of small images. `capacity` is the largest number of squares.
    """

    def __init__(self, capacity: int, size: int, channels: Literal[1, 3]) -> None:
        self.image = Image.new(MODES[channels], (size, size * capacity))
        self.count, self.shape = 0, (size, size, channels)

    def add(self, square: Image.Image) -> None:
        self.image.paste(square, (0, square.height * self.count))
        self.count += 1

    def pixels(self) -> NDArray[np.uint8]:
        """Return the pixels of the added images, (n, size, size, channels), in the order of addition."""
        return np.asarray(self.image).reshape(-1, *self.shape)[: self.count]


def decode(data: bytes, *, height: int, width: int, channels: Literal[1, 3], max_pixels: int) -> Image.Image:
    """Decode the first frame of an image file, and return it with exactly `height`, `width` and `channels`, as `fitted` describes.

    `data` is the contents of the file. Raises Corrupt if the image cannot be decoded. Raises Oversized, before decoding, if it has more
    than `max_pixels` pixels. Call `set_pixel_limit` first: otherwise Pillow's default limit applies as well, and Pillow prints warnings.
    """
    if data[:2] in ASCII_FORMATS:
        raise Corrupt("is an ASCII image (PNM P1 to P3), which takes seconds to read: store it in a binary format")
    try:
        with Image.open(BytesIO(data), formats=formats()) as image:
            refuse_oversized(*image.size, max_pixels)
            # decode a JPEG at 1/2, 1/4 or 1/8 scale if the result is at least twice the target size
            image.draft(None, (2 * width, 2 * height))
            image.load()
            if image.format == "PNG" and "transparency" in image.info:
                scale_transparency(image, depth=data[PNG_DEPTH])
            return fitted(image, height=height, width=width, channels=channels)
    except (Oversized, Corrupt, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise Oversized(f"declares more than {max_pixels} pixels") from None
    except UnidentifiedImageError:
        if HEIC.match(data):
            raise Corrupt("is a HEIC image, which Pillow cannot read: convert it to JPEG or PNG") from None
        raise Corrupt("is not an image that Pillow can read") from None
    except Exception as error:  # Pillow's readers may raise any exception on untrusted bytes
        raise Corrupt(reason(error)) from None


def fitted(image: Image.Image, *, height: int, width: int, channels: Literal[1, 3]) -> Image.Image:
    """Return an image of exactly `height`, `width` and `channels`, made from `image`.

    The image is rotated upright, and its transparent parts become white. It is then resized until it just covers `height` and `width`, and
    what extends beyond them is cropped equally on both sides. Raises Corrupt if the pixels are floats, or integers outside 0 to MAX_16_BIT.
    """
    converted = to_mode(upright(image), MODES[channels])
    return converted if converted.size == (width, height) else ImageOps.fit(converted, (width, height), Image.Resampling.BICUBIC)


def refuse_oversized(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise Oversized(f"declares more than {max_pixels} pixels")


@cache
def formats() -> tuple[str, ...]:
    Image.init()
    known = [name for name in Image.ID if name not in REFUSED_FORMATS]
    return tuple(sorted(known, key=lambda name: name not in COMMON_FORMATS))


def upright(image: Image.Image) -> Image.Image:
    """Return the image rotated and mirrored as its EXIF orientation says. Damaged EXIF data is ignored."""
    try:
        if image.format in LOADED_ONCE and image.getexif().get(ExifTags.Base.Orientation) not in ROTATED:
            return image  # exif_transpose would copy it
        return ImageOps.exif_transpose(image)
    except Exception:
        return image.copy()


def scale_transparency(image: Image.Image, *, depth: int) -> None:
    """Scale the transparent colour of a PNG, `image.info["transparency"]`, to 8 bits per channel.

    A PNG may declare that all pixels of one colour are transparent. For 2-bit and 4-bit grey and for 16-bit colour, Pillow scales the
    pixels to 8 bits, but not the declared colour. `depth` is the number of bits per channel in the file.
    """
    value = image.info["transparency"]
    if image.mode == "L" and depth in (2, 4):
        image.info["transparency"] = value * 255 // (2**depth - 1)
    elif image.mode == "RGB" and depth == 16:
        image.info["transparency"] = tuple(part >> 8 for part in value)


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert the image to `mode` with 8 bits per channel. Transparent parts become white.

    Raises Corrupt if the pixels are floats, or integers outside 0 to MAX_16_BIT.
    """
    if image.mode.startswith("I"):
        image = eight_bits(image)
    elif image.mode == "F":
        raise Corrupt("has floating-point pixels of unknown scale: store it with 8 or 16 bits")
    elif image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.new("RGBA", rgba.size, "white")
        image.alpha_composite(rgba)
    return image if image.mode == mode else image.convert(mode)


def eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits; transparent pixels become white. Raises Corrupt if a pixel does not fit in 16 bits.

    Pillow's own conversion is not used, because it would turn all values above 255 into 255.
    """
    pixels = np.asarray(image).astype(np.int64)
    if pixels.min() < 0 or pixels.max() > MAX_16_BIT:
        raise Corrupt(f"has pixels outside 0 to {MAX_16_BIT}: store it with 8 or 16 bits")
    if "transparency" in image.info:
        pixels[pixels == image.info["transparency"]] = MAX_16_BIT
    return Image.fromarray(((pixels * 255 + MAX_16_BIT // 2) // MAX_16_BIT).astype(np.uint8))


Result = TypeVar("Result")
Decoded = tuple[NDArray[np.uint8], dict[int, str]]
"""The decoded images (n, size, size, channels), without the corrupt ones; and a dict from the position of each corrupt file in the chunk
to the reason why it cannot be decoded.
"""


@dataclass(frozen=True)
class Chunk(Generic[Result]):
    """Some image files and where they go: file n goes to `destinations[numbers[n]]`."""

    members: Sequence[Member]
    numbers: NDArray[np.intp]
    destinations: Sequence[Destination[Result]]


@dataclass(frozen=True)
class Decoder:
    """Decodes images to `size` x `size` pixels of `channels` channels. `place` names the dataset in messages.

    An image of more than `max_pixels` pixels is refused.
    """

    place: str
    size: int
    channels: Literal[1, 3]
    max_pixels: int

    def prepare(self) -> None:
        """Set the largest number of pixels that Pillow accepts, and configure malloc. Call this method once in every process."""
        set_pixel_limit(self.max_pixels)
        keep_freed_memory()

    def decode(self, members: Sequence[Member]) -> Decoded:
        """Decode image files. Return an array of the decoded images, and a dict of the files that cannot be decoded (see Decoded).

        Raises Refusal if an image has more than `max_pixels` pixels, or if `Member.read` refuses a file, such as one that is too large.
        """
        strip = ImageStrip(len(members), self.size, self.channels)
        corrupt: dict[int, str] = {}
        for number, member in enumerate(members):
            try:
                square = decode(member.read(), height=self.size, width=self.size, channels=self.channels, max_pixels=self.max_pixels)
            except Oversized as error:
                raise Refusal(f"{self.place}: {shown(member.name)}: {error}: remove it, or raise source.max_pixels") from None
            except Corrupt as error:
                corrupt[number] = str(error)
            except Refusal:
                raise
            except READ_ERRORS as error:
                corrupt[number] = reason(error)
            else:
                strip.add(square)
        return strip.pixels(), corrupt

    def decode_and_store(self, chunk: Chunk[Result]) -> tuple[list[Result], dict[int, str]]:
        """Decode the files of a chunk, and store each image at its destination.

        Returns what the destinations returned, and a dict of the files that cannot be decoded (see Decoded). A destination of which no file
        can be decoded returns nothing. Raises Refusal like `decode`.
        """
        inputs, corrupt = self.decode(chunk.members)
        kept = np.array([number not in corrupt for number in range(len(chunk.members))])
        results = []
        for number, destination in enumerate(chunk.destinations):
            chosen = chunk.numbers[kept] == number
            if chosen.any():
                results.append(destination.store(inputs if chosen.all() else inputs[chosen], kept[chunk.numbers == number]))
        return results, corrupt
