"""Turns image files, PIL images and arrays into stored samples, to use a model with nothing but its model file.

`ImageInputs` describes this completely: height, width, number of channels, and white. A file is decoded as the source `image_folder` decodes it: upright,
on white, resized so that it just covers height and width, centre-cropped. An image that already has this size keeps its pixels.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason
from pipeline.inference.batch import Batch
from pipeline.inputs.image.description import ImageInputs
from pipeline.prepare.reading import images
from pipeline.prepare.reading.file_tree import Member

Row = NDArray[np.uint8]
MAX_PIXELS = 100_000_000
"""A larger image is refused before it is decoded: kilobytes can decompress to gigabytes."""


class Reader:
    """Reads images for a model. Its functions may be called on several threads."""

    strings_are_paths: ClassVar[bool] = True

    def __init__(self, inputs: ImageInputs) -> None:
        self.inputs = inputs

    def read(self, file: Member) -> Row:
        """Return the image in a file as `prepare` would store it.

        Raises Refusal if the image cannot be decoded, or if the model's images do not have 1 or 3 channels. Exceptions of `file.read` are
        passed on.
        """
        try:
            return self.pixels(images.decode(file.read(), **self.size, max_pixels=MAX_PIXELS))
        except (images.Corrupt, images.Oversized) as error:
            raise Refusal(f"cannot be decoded: {error}") from None

    def expected(self) -> str:
        """Describe the images that are sent to a model in MLflow, for people."""
        scale = f" (255 is white, which was {self.inputs.white} in the files of the training)" if self.inputs.white else ""
        shape = ", ".join(map(str, self.inputs.row_shape))
        return f"raw images, integers from 0 to 255{scale} of shape (n, {shape}): the model normalises them itself"

    def example(self, stored: Row) -> Row:
        """Return stored samples as images that are sent."""
        return stored

    def values(self, given: Any) -> list[Any]:
        """Return images that were sent as arrays. Raises ValueError for other numbers."""
        array, limits = np.asarray(given), np.iinfo(np.uint8)
        fit = array.ndim and array.dtype.kind in "iu" and (not array.size or limits.min <= array.min() <= array.max() <= limits.max)
        if not fit:
            problem = f"the input has values of type {array.dtype} or out of range"
            raise ValueError(f"{problem}: send a list of images, whole numbers from 0 to 255")
        return list(array.astype(self.inputs.dtype))

    def row(self, value: Any) -> Row:
        """Convert `value` to a sample as `prepare` stores it: an array (height, width, channels) uint8 of the size that the model takes.

        `value` is a PIL image of any size, which is resized, or an array that already has this size and dtype. If the model takes one
        channel, the array may also be (height, width). Raises Refusal for anything else.
        """
        if isinstance(value, Image.Image):
            size = self.size
            try:
                return self.pixels(images.fitted(value, **size))
            except Exception as error:  # an opened file is decoded only now, and Pillow's readers may raise any exception
                raise Refusal(f"cannot be decoded: {reason(error)}") from None
        shape = self.inputs.row_shape
        if not isinstance(value, np.ndarray):
            raise Refusal(f"is of type {type(value).__name__}: give a path, a PIL image, or a NumPy array uint8 of shape {shape}")
        if value.dtype != np.uint8 or value.shape not in (shape, shape[:2] if shape[2] == 1 else shape):
            problem = f"is an array {value.dtype} of shape {value.shape}, but the model takes uint8 of shape {shape}, values from 0 to 255"
            raise Refusal(f"{problem}: convert the array, or give an image file or a PIL image: these are resized")
        return value.reshape(shape)

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Return the samples as the input of a forward pass, (n, height, width, channels)."""
        return Batch(torch.from_numpy(np.stack(rows)))

    def note(self) -> str:
        return ""

    @property
    def size(self) -> dict[str, Any]:
        """Return the height, width, channels and white of the model's images, as keyword arguments for the functions that decode images.

        Raises Refusal unless the number of channels is 1 or 3: image files are decoded to grey or RGB.
        """
        channels = self.inputs.channels
        if channels not in images.MODES:
            raise Refusal(f"the model takes images of {channels} channels, but image files give only 1 or 3: give an array or a .npy file")
        return {"height": self.inputs.height, "width": self.inputs.width, "channels": channels, "white": self.inputs.white}

    def pixels(self, image: Image.Image) -> Row:
        return np.asarray(image).reshape(self.inputs.row_shape)
