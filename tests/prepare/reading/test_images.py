"""Every mode and format that Pillow reads becomes an upright square of bytes."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps
from PIL.features import check

from pipeline.prepare.reading import images

RED, GREY = (200, 40, 60), 120


@pytest.fixture(autouse=True)
def _bound():
    images.set_pixel_limit(10**6)


def encoded(image, kind="PNG", **options):
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decode(data, size=8, channels=3, max_pixels=10**6, white=None):
    strip = images.ImageStrip(1, size, channels)
    strip.add(images.decode(data, height=size, width=size, channels=channels, max_pixels=max_pixels, white=white))
    return strip.pixels()[0]


def close(pixels, colour, within=4):
    return np.abs(pixels.astype(int) - np.array(colour)).max() <= within


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "TGA", "AVIF"])
def test_formats(kind):
    if kind == "AVIF" and not check("avif"):
        pytest.skip("this Pillow has no AVIF")
    assert close(decode(encoded(Image.new("RGB", (16, 16), RED), kind)), RED, within=12)


@pytest.mark.parametrize("mode", ["1", "LA", "P", "PA", "RGBA", "CMYK"])
def test_modes(mode):
    image = Image.new("RGB", (10, 14), (255, 255, 255)).convert("P" if mode == "PA" else mode)
    if mode == "PA":
        image = image.convert("PA")
    data = encoded(image, "TIFF" if mode in {"CMYK", "PA"} else "PNG")
    for channels in (1, 3):
        pixels = decode(data, channels=channels)
        assert pixels.shape == (8, 8, channels)
        assert close(pixels, 255)


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "PNG"), ("I;16B", "TIFF"), ("I", "TIFF")])
def test_sixteen_bits_are_scaled_and_not_clipped(mode, kind):
    ramp = np.linspace(0, 65_535, 64).round().astype(np.int32).reshape(8, 8)
    raw = ramp.astype({"I;16": "<u2", "I;16B": ">u2", "I": "<i4"}[mode]).tobytes()
    pixels = decode(encoded(Image.frombytes(mode, (8, 8), raw), kind), channels=1)
    assert np.array_equal(pixels[..., 0], np.round(ramp / 257).astype(np.uint8))


@pytest.mark.parametrize(
    ("white", "image", "expected"),
    [
        (4095, np.array([[0, 2048], [1000, 4095]], np.uint16), [0, 128, 62, 255]),
        (255, np.array([[0, 1], [200, 255]], np.int32), [0, 1, 200, 255]),
        (1, np.array([[0, 0.25], [0.5, 1.0001]], np.float32), [0, 64, 128, 255]),
    ],
)
def test_white_is_the_value_that_becomes_255(white, image, expected):
    data = encoded(Image.fromarray(image), "TIFF")
    assert decode(data, size=2, channels=1, white=white).ravel().tolist() == expected
    with pytest.raises(images.Corrupt, match=r"has values up to .*, but white is"):
        decode(encoded(Image.fromarray((image * 1.5).astype(image.dtype)), "TIFF"), size=2, channels=1, white=white)
    with pytest.raises(images.Corrupt, match="has values from nan on"):
        decode(encoded(Image.fromarray(np.full((2, 2), np.nan, np.float32)), "TIFF"), size=2, channels=1, white=white)


def test_white_changes_no_image_of_eight_bits():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert np.array_equal(decode(encoded(Image.fromarray(pixels)), white=4095), pixels)


@pytest.mark.parametrize(
    ("pixels", "white", "lost"),
    [
        (np.arange(1000, 1064), None, True),  # one grey level is left
        (np.arange(0, 4096, 16), None, True),  # 17 of 256, and white could be 4095
        (np.arange(0, 4096, 16), 4095, None),
        (np.arange(17_000, 18_280, 20), 65_535, None),  # 6 of 64, but no smaller white
        (np.arange(17_000, 17_320, 5), 65_535, True),
        (np.arange(64) % 2 * 65_535, None, None),  # black and white
        (np.full(64, 700), None, False),
    ],
)
def test_contents_are_lost_where_few_levels_are_left_of_many(pixels, white, lost):
    image = Image.fromarray(pixels.astype(np.uint16).reshape(8, -1))
    found = images.few_levels(images.fitted(image, height=image.height, width=image.width, channels=1, white=white), encoded(image), white)
    assert (found and found.lost) == lost
    assert not found or (found.lowest, found.highest) == (pixels.min(), pixels.max())


def test_transparent_pixels_are_white_whatever_colour_they_hide():
    half = Image.new("RGBA", (16, 16), (*RED, 255))
    half.paste((0, 0, 0, 0), (8, 0, 16, 16))
    pixels = decode(encoded(half), size=16)
    assert close(pixels[:, :8], RED)
    assert close(pixels[:, 8:], 255)
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([0, 0, 0, *RED])
    palette.paste(0, (8, 0, 16, 16))
    assert np.array_equal(decode(encoded(palette, transparency=0), size=16), pixels)


def png(depth: int, kind: int, rows: bytes, *, transparent: bytes, side: int) -> bytes:
    """A square PNG that Pillow would not write: `kind` 0 is grey, 2 is colour; `rows` are packed, without their filter bytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, depth, kind, 0, 0, 0)
    row = len(rows) // side
    packed = zlib.compress(b"".join(b"\0" + rows[start : start + row] for start in range(0, len(rows), row)))
    chunks = (chunk(b"IHDR", header), chunk(b"tRNS", transparent), chunk(b"IDAT", packed), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("depth", "rows", "transparent", "seen"),
    [
        (16, struct.pack(">4H", 0, 1000, 1001, 30_000), 1000, [0, 255, 4, 117]),
        (16, struct.pack(">4H", 0, 1000, 1001, 30_000), 0, [255, 4, 4, 117]),
        (8, bytes([0, 10, 200, 255]), 10, [0, 255, 200, 255]),
        (4, bytes([0x05, 0xA5]), 5, [0, 255, 170, 255]),
        (2, bytes([0b0001_0000, 0b1001_0000]), 1, [0, 255, 170, 255]),
        (1, bytes([0b0100_0000, 0b1000_0000]), 0, [255, 255, 255, 255]),
    ],
)
def test_the_transparent_grey_of_a_png_is_white_at_every_depth(depth, rows, transparent, seen):
    data = png(depth, 0, rows, transparent=struct.pack(">H", transparent), side=2)
    assert decode(data, size=2, channels=1).ravel().tolist() == seen


def test_the_transparent_colour_of_a_png_of_sixteen_bits_is_white():
    rows = struct.pack(">12H", 0, 0, 0, *(0x0A01, 0x1402, 0x1E03), *(0x0B01, 0x1402, 0x1E03), 0, 0, 0)
    data = png(16, 2, rows, transparent=struct.pack(">3H", 0x0A01, 0x1402, 0x1E03), side=2)
    assert decode(data, size=2).reshape(4, 3).tolist() == [[0] * 3, [255] * 3, [0x0B, 0x14, 0x1E], [0] * 3]


@pytest.mark.parametrize(("kind", "damaged"), [("JPEG", b"II*\0\xff\xff\xff\xffbroken"), ("WEBP", b"no TIFF header")])
def test_damaged_exif_does_not_cost_the_image(damaged, kind):
    data = encoded(Image.new("RGB", (9, 9), RED), kind, exif=b"Exif\0\0" + damaged)
    assert close(decode(data), RED, within=8)


def test_the_shorter_side_is_resized_and_the_middle_kept():
    stripes = Image.new("RGB", (30, 10), "black")
    stripes.paste("white", (10, 0, 20, 10))
    assert decode(encoded(stripes), size=10).min() == 255
    assert decode(encoded(stripes), size=5).shape == (5, 5, 3)
    assert decode(encoded(stripes), size=50).shape == (50, 50, 3)
    assert decode(encoded(Image.new("RGB", (900, 1))), size=4).shape == (4, 4, 3)


def test_an_image_of_the_right_size_keeps_its_bytes():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert np.array_equal(decode(encoded(Image.fromarray(pixels))), pixels)


def test_a_large_jpeg_is_scaled_without_aliasing():
    checks = np.indices((800, 800)).sum(0) % 2 * 255
    pixels = decode(encoded(Image.fromarray(checks.astype(np.uint8)), "JPEG", quality=95), size=20, channels=1)
    assert close(pixels, 128, within=12)


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("white", "black")]
    assert decode(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])).min() == 255


@pytest.mark.parametrize(("kind", "orientation"), [("WEBP", 6), ("PNG", None), *(("JPEG", number) for number in (0, 1, 2, 3, 6, 8, 9))])
def test_an_image_is_what_pillow_makes_of_it_upright(kind, orientation):
    exif = Image.Exif()
    if orientation is not None:
        exif[ExifTags.Base.Orientation] = orientation
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(pixels), kind, exif=exif)
    with Image.open(BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    assert np.array_equal(decode(data, size=32), upright.resize((32, 32)))


def test_an_icon_that_pillow_would_decode_anew_is_decoded_once():
    images.set_pixel_limit(10**7)
    data = encoded(Image.new("P", (32, 32)), "ICNS")
    assert close(decode(data, max_pixels=10**7), 0)


@pytest.mark.parametrize(("channels", "count"), [(1, 4), (3, 0), (3, 2)])
def test_a_sheet_gives_the_squares_in_the_order_in_which_they_came(channels, count):
    """Also where some of those that were planned did not come."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 6, 6, channels), dtype=np.uint8)
    strip = images.ImageStrip(4, 6, channels)
    for square in pixels:
        strip.add(Image.fromarray(square.squeeze()))
    assert strip.pixels().shape == (count, 6, 6, channels)
    assert np.array_equal(strip.pixels(), pixels)


def test_an_image_is_fitted_to_a_size_that_is_not_square():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
    fitted = images.fitted(image, height=6, width=18, channels=3, white=None)
    assert np.array_equal(fitted, ImageOps.fit(image, (18, 6), Image.Resampling.BICUBIC))
    decoded = images.decode(encoded(image), height=6, width=18, channels=3, max_pixels=10**6, white=None)
    assert np.array_equal(decoded, fitted)


def test_a_program_is_no_image():
    """Pillow would give EPS to Ghostscript, which executes it."""
    with pytest.raises(images.Corrupt, match=r"^is not an image that Pillow can read$"):
        decode(encoded(Image.new("RGB", (16, 16), RED), "EPS"))
