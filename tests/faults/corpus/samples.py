"""Good images, beside which a hostile one lies."""

import io
from pathlib import Path

from PIL import Image


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


PIXEL = encoded(Image.new("L", (4, 4), 7))
IMAGES = {f"{split}/{kind}/{number}.png": PIXEL for split in ("train", "test") for kind in ("cat", "dog") for number in range(4)}


def folder(root: Path) -> Path:
    for name, data in IMAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root
