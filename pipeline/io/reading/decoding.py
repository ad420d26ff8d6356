"""Decodes and stores chunks of image files in the threads or worker processes of `image_folder`.

It imports little, so that processes start fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.io.reading import images
from pipeline.io.reading.file_tree import READ_ERRORS, Member
from pipeline.io.untrusted import reason, shown
from pipeline.malloc import keep_freed_memory
from pipeline.raw_dataset import Destination
from pipeline.refusal import Refusal

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
        images.set_pixel_limit(self.max_pixels)
        keep_freed_memory()

    def decode(self, members: Sequence[Member]) -> Decoded:
        """Decode image files. Return an array of the decoded images, and a dict of the files that cannot be decoded (see Decoded).

        Raises Refusal if an image has more than `max_pixels` pixels, or if `Member.read` refuses a file, such as one that is too large.
        """
        strip = images.ImageStrip(len(members), self.size, self.channels)
        corrupt: dict[int, str] = {}
        for number, member in enumerate(members):
            try:
                square = images.decode(member.read(), height=self.size, width=self.size, channels=self.channels, max_pixels=self.max_pixels)
            except images.Oversized as error:
                raise Refusal(f"{self.place}: {shown(member.name)}: {error}: remove it, or raise source.max_pixels") from None
            except images.Corrupt as error:
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
