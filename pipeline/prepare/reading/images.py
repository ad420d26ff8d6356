"""Decodes images to arrays: checks the size before decoding, resizes and crops. One image must not hold up or end the others."""

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Generic, Literal, NamedTuple, TypeVar

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
WHITE_POINTS = tuple(2**bits - 1 for bits in (1, 4, 8, 10, 12, 14, 16, 20, 24, 28, 31))
"""The largest values of pixels of so many bits."""
FLOAT_ROUNDING = 1e-3
"""The share by which floating-point pixels may exceed white, because of the rounding of what computed them."""
FEW_LEVELS, MOST_LEVELS, LOST_LEVELS = 3, 17, 4
"""See `few_levels`. 12 bits that are read as 16 leave 17 levels."""
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


def decode(data: bytes, *, height: int, width: int, channels: Literal[1, 3], max_pixels: int, white: int | None) -> Image.Image:
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
            return fitted(image, height=height, width=width, channels=channels, white=white)
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


def fitted(image: Image.Image, *, height: int, width: int, channels: Literal[1, 3], white: int | None) -> Image.Image:
    """Return an image of exactly `height`, `width` and `channels`, made from `image`.

    The image is rotated upright, and its transparent parts become white. It is then resized until it just covers `height` and `width`, and
    what extends beyond them is cropped equally on both sides. `white` is described in `eight_bits`, whose Corrupt is raised.
    """
    converted = to_mode(upright(image), MODES[channels], white)
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


def to_mode(image: Image.Image, mode: str, white: int | None) -> Image.Image:
    """Convert the image to `mode` with 8 bits per channel. Transparent parts become white. Raises Corrupt like `eight_bits`."""
    if is_deep(image):
        image = eight_bits(image, white)
    elif image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.new("RGBA", rgba.size, "white")
        image.alpha_composite(rgba)
    return image if image.mode == mode else image.convert(mode)


def is_deep(image: Image.Image) -> bool:
    """Return True if the pixels have more than 8 bits: integers of 16 or 32 bits, or floating-point numbers, of one channel."""
    return image.mode.startswith(("I", "F"))


def eight_bits(image: Image.Image, white: int | None) -> Image.Image:
    """Scale the pixels of a deep image so that `white` becomes 255; transparent pixels become white. None means MAX_16_BIT, for integers.

    Raises Corrupt if a pixel is below 0 or above white, or if the scale of floating-point pixels is not given. Pillow's own conversion is
    not used, because it would turn all values above 255 into 255.
    """
    is_float, largest = image.mode == "F", white or MAX_16_BIT
    pixels = np.asarray(image).astype(np.float64)
    lowest, highest = pixels.min(), pixels.max()
    if not lowest >= 0:  # also NaN
        raise Corrupt(f"has values from {lowest:.10g} on, but black is 0: shift them, so that none is negative, or store it with 8 bits")
    if is_float and white is None:
        raise Corrupt("has floating-point pixels of unknown scale: store it with 8 or 16 bits, or set source.white to the value of white")
    if highest > largest * (1 + FLOAT_ROUNDING * is_float):
        raise Corrupt(f"has values up to {highest:.10g}, but white is {largest}: store it on this scale, or raise source.white")
    if "transparency" in image.info:
        pixels[pixels == image.info["transparency"]] = largest
    return Image.fromarray(np.rint(np.minimum(pixels, largest) * 255 / largest).astype(np.uint8))


def white_point(highest: float) -> int | None:
    """Return the smallest of WHITE_POINTS that is not below `highest`, the largest value of some pixels, or None if all are below."""
    return next((white for white in WHITE_POINTS if highest <= white * (1 + FLOAT_ROUNDING * (highest % 1 > 0))), None)


class FewLevels(NamedTuple):
    """A decoded image with few grey levels. `lowest` and `highest` are the extreme values of its file, and `deep` that of `is_deep`.

    `lost` is True if it has lost its contents. `colour` is that of all its pixels, or None if they have several.
    """

    lowest: float
    highest: float
    deep: bool
    lost: bool
    colour: float | tuple[int, ...] | None


def few_levels(decoded: Image.Image, data: bytes, white: int | None) -> FewLevels | None:
    """Return a description of the image `decoded` if it has lost its contents, or if all its pixels have one colour; otherwise None.

    Contents are lost if one colour is left of several in the file `data`, or if few levels are left of LOST_LEVELS times as many: of a deep
    file FEW_LEVELS, or MOST_LEVELS if the file has a smaller `white_point` than `white`. Drawings in black and white lose nothing.
    """
    colours = decoded.getcolors(MOST_LEVELS)
    if colours is None:
        return None
    with Image.open(BytesIO(data), formats=formats()) as image:
        deep, single = is_deep(image), len(colours) == 1
        if not deep and not single:
            return None
        levels = np.unique(np.asarray(image if deep else image.convert("L")))
    lowest, highest = float(levels[0]), float(levels[-1])
    most = MOST_LEVELS if (white_point(highest) or math.inf) < (white or MAX_16_BIT) else FEW_LEVELS
    lost = len(levels) > 1 if single else len(colours) <= most and len(levels) >= LOST_LEVELS * len(colours)
    return FewLevels(lowest, highest, deep, lost, colours[0][1] if single else None) if lost or single else None


Result = TypeVar("Result")


@dataclass(frozen=True)
class Chunk(Generic[Result]):
    """Some image files and where they go: file n goes to `destinations[numbers[n]]`."""

    members: Sequence[Member]
    numbers: NDArray[np.intp]
    destinations: Sequence[Destination[Result]]


@dataclass(frozen=True)
class Decoder:
    """Decodes images to `size` x `size` pixels of `channels` channels. `place` names the dataset in messages.

    An image of more than `max_pixels` pixels is refused. `white` is described in `eight_bits`.
    """

    place: str
    size: int
    channels: Literal[1, 3]
    max_pixels: int
    white: int | None

    def prepare(self) -> None:
        """Set the largest number of pixels that Pillow accepts, and configure malloc. Call this method once in every process."""
        set_pixel_limit(self.max_pixels)
        keep_freed_memory()

    def decode(self, members: Sequence[Member]) -> tuple[NDArray[np.uint8], dict[int, str], dict[int, FewLevels]]:
        """Return the decoded images (n, size, size, channels), without the corrupt ones.

        Also return why a file cannot be decoded, and what is notable about an image, by its position in `members`.
        Raises Refusal if an image has more than `max_pixels` pixels, or if `Member.read` refuses a file, such as one that is too large.
        """
        strip = ImageStrip(len(members), self.size, self.channels)
        corrupt, notable = dict[int, str](), dict[int, FewLevels]()
        for number, member in enumerate(members):
            try:
                data = member.read()
                square = decode(
                    data, height=self.size, width=self.size, channels=self.channels, max_pixels=self.max_pixels, white=self.white
                )
            except Oversized as error:
                raise Refusal(f"{self.place}: {shown(member.name)}: {error}: remove it, or raise source.max_pixels") from None
            except Corrupt as error:
                corrupt[number] = str(error)
            except Refusal:
                raise
            except FileNotFoundError:
                corrupt[number] = "there is no such file"
            except READ_ERRORS as error:
                corrupt[number] = reason(error)
            else:
                strip.add(square)
                if found := few_levels(square, data, self.white):
                    notable[number] = found
        return strip.pixels(), corrupt, notable

    def decode_and_store(self, chunk: Chunk[Result]) -> tuple[list[Result], dict[int, str], dict[int, FewLevels]]:
        """Decode the files of a chunk, and store each image at its destination.

        Returns what the destinations returned, and the two dicts of `decode`. A destination of which no file can be decoded returns nothing.
        Raises Refusal like `decode`.
        """
        inputs, corrupt, notable = self.decode(chunk.members)
        kept = np.array([number not in corrupt for number in range(len(chunk.members))])
        results = []
        for number, destination in enumerate(chunk.destinations):
            chosen = chunk.numbers[kept] == number
            if chosen.any():
                results.append(destination.store(inputs if chosen.all() else inputs[chosen], kept[chunk.numbers == number]))
        return results, corrupt, notable
