"""Decodes image files, such as those of a folder, and stores them. Threads, worker processes or the workers of a cluster decode."""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipeline.core.raw_dataset import SPLITS, TRAIN, Cluster, Place, RawDataset, SampleBlock
from pipeline.core.refusal import Refusal, listed
from pipeline.core.registry import TASKS
from pipeline.core.section import ValueOf
from pipeline.core.untrusted import shown
from pipeline.inputs.image.description import ImageInputs, WhitePoint
from pipeline.prepare.inputs.image import Statistics
from pipeline.prepare.params import Duplicates, SourceSettings
from pipeline.prepare.reading.class_folders import ClassFolders, Sample
from pipeline.prepare.reading.file_tree import READ_ERRORS, Member, Tree, name_bytes
from pipeline.prepare.reading.images import MAX_16_BIT, MOST_LEVELS, Chunk, Decoder, FewLevels, white_point
from pipeline.prepare.reading.workers import on_cluster, on_processes, on_threads

Result = TypeVar("Result")
CHUNK_BYTES = 2 * 2**20
CHUNK_SAMPLES = 128
CLUSTER_CHUNK = 8
"""How many times larger the chunks for a cluster are: its scheduler needs milliseconds for each."""
MOST_NAMED, MOST_RANGES = 10, 3
MANY, WORKERS_OF_MANY = 4096, 4
"""From MANY samples on, worker processes replace threads: WORKERS_OF_MANY processes per MANY samples. For fewer samples, starting
processes takes more time than they save. Threads contend for the GIL in Pillow's Python code, which takes most of the time of
a small image.
"""


class ImageFileSettings(SourceSettings):
    """The settings of sources whose samples are encoded images, such as JPEG files. Each source says which, by `files`.

    Images are rotated by their EXIF orientation, and transparency is replaced by white.
    """

    untrusted: ClassVar[bool] = True
    duplicates: Duplicates
    image_size: Annotated[int, Field(ge=1, le=4096)]
    """Side of the square images in pixels. Each image is resized so that its shorter side has this length, then centre-cropped."""
    channels: Literal[1, 3]
    """Number of channels to which every image is converted: 1 for grey, 3 for colour."""
    on_corrupt: Literal["fail", "skip"]
    """How to handle an image that cannot be decoded: `fail` stops the stage after all images, with their number and the first ten; `skip` leaves the image out, prints its name and counts it. A row of a table without a path counts, too."""
    max_pixels: Annotated[int, Field(gt=0, le=1_000_000_000)]
    """Largest number of pixels of an image. A larger image is refused before it is decoded, because a file of kilobytes can decompress to
    gigabytes.
    """

    white: WhitePoint | None
    """The value that means white in files with more than 8 bits per pixel, grey integers or floating-point numbers: 4095 for 12 bits in files of 16. It becomes
    255, and a file with a value above it cannot be decoded. Null means 65535; floating-point numbers then cannot be decoded. Files with 8 bits or with colours do not need it.
    """

    RECOMMENDED: ClassVar = {
        "duplicates": "together",
        "image_size": 224,
        "channels": 3,
        "on_corrupt": "fail",
        "max_pixels": 100_000_000,
        "white": None,
    }
    ADDED: ClassVar = {"image_size": ValueOf("source.size"), "white": None}

    def example_inputs(self, example: ImageInputs) -> ImageInputs:
        side, common = self.image_size, (0.5,) * self.channels
        return example.model_copy(update={"height": side, "width": side, "channels": self.channels, "mean": common, "std": common})

    def files(self) -> tuple[Tree, ClassFolders]:
        """Return the files and their classes and splits."""
        raise NotImplementedError

    def cluster_paths(self) -> tuple[Path, ...]:
        return (self.root.absolute(),)

    def open(self, *, workers: int) -> RawDataset:
        tree, layout = self.files()
        decode_and_store = partial(self.decode_and_store, tree, layout, workers)
        statistics = Statistics((self.image_size, self.image_size, self.channels), self.white)
        together = self.duplicates == "together"
        return RawDataset(
            layout.task or TASKS.module(self.TASK).Targets.named(layout.classes, str(self.root)),
            statistics,
            layout.targets,
            partial(decode_and_store, InMemory),
            decode_and_store=decode_and_store,
            drawing_keys=layout.groups or (partial(contents, tree, layout.names()[TRAIN], workers) if together else layout.paths),
            together=together or layout.groups is not None,
            sample_keys=layout.names,
            notes=layout.notes,
        )

    def refuse_damaged(self, *, workers: int, within_s: float) -> None:
        """Decode the images as `prepare` does, for at most `within_s` seconds. Raise Refusal if `prepare` would refuse one of them."""
        if self.on_corrupt == "fail":
            until_s = time.monotonic() + within_s
            for _ in self.decode_and_store(*self.files(), workers, InMemory, until_s=until_s):
                pass

    def decode_and_store(
        self,
        tree: Tree,
        layout: ClassFolders,
        workers: int,
        place: Place[Result],
        cluster: Cluster | None = None,
        *,
        until_s: float = math.inf,
    ) -> Generator[Result]:
        """Yield what the destinations of all images return, or of those that are decoded when `time.monotonic()` reaches `until_s`.

        Raises Refusal at the end if `on_corrupt` is `fail` and images cannot be decoded, so that one message tells of all of them, and like
        `few_levels`. After all images, prints what `few_levels` returns.
        """
        decoder = Decoder(self.place, self.image_size, self.channels, self.max_pixels, self.white)
        decoder.prepare()
        ordered, larger = partial(on_threads, workers=workers), 1
        if cluster:
            cluster = replace(cluster, shared=(*self.cluster_paths(), *cluster.shared))
            ordered, larger = partial(on_cluster, cluster=cluster, prepare=decoder.prepare), CLUSTER_CHUNK
            dataclass_of_tree: Any = tree
            tree = replace(dataclass_of_tree, path=dataclass_of_tree.path.absolute())  # workers run in another working folder
        elif workers > 1 and len(layout.samples) >= MANY:
            enough = min(workers, len(layout.samples) * WORKERS_OF_MANY // MANY)
            ordered = partial(on_processes, workers=enough, prepare=decoder.prepare)
        with tree.contents([sample.name for sample in layout.samples]) as members:
            chunks = placed(chunked(members, self.image_size**2 * self.channels, larger), layout.samples, place)
            num_decoded, problems, notable = 0, list[str](), list[tuple[str, FewLevels]]()
            for chunk, (results, corrupt, found) in ordered(decoder.decode_and_store, chunks):
                num_decoded += len(chunk.members)
                problems += self.report(chunk.members, corrupt)
                notable += [(chunk.members[number].name, found[number]) for number in sorted(found)]
                yield from results
                if time.monotonic() > until_s:
                    break
        if problems and self.on_corrupt == "fail":
            several = f"{len(problems)} of {num_decoded} images cannot be used: {listed(problems, MOST_NAMED, separator='; ')}"
            raise Refusal(f"{self.place}: {several}: repair or remove them, or write `source.on_corrupt: skip`")
        sentences = self.few_levels(notable, num_decoded - len(problems))
        if until_s == math.inf:
            for sentence in sentences:
                print(f"prepare: {sentence}")

    def few_levels(self, notable: Sequence[tuple[str, FewLevels]], num_images: int) -> list[str]:
        """Return a sentence about the images that have lost their contents, and one about other images of one colour.

        `notable` has the names of such images. Raises Refusal if most of `num_images` images have lost their contents, or if most have the
        same single colour.
        """
        lost = [(name, image) for name, image in notable if image.lost]
        single = [(name, image) for name, image in notable if not image.lost]
        sentences = list[str]()
        if lost:
            few = "one grey level" if all(image.colour is not None for _, image in lost) else f"{MOST_LEVELS} grey levels or fewer"
            found = f"{len(lost)} of {num_images} images have {few} as they are stored, but more in their files: {ranges(lost)}"
            sentences.append(f"{found}: {self.remedy_for_lost([image for _, image in lost])}")
            if 2 * len(lost) > num_images:
                raise Refusal(f"{self.place}: {sentences[-1]}")
        if single:
            found = f"{len(single)} of {num_images} images have only one colour: {ranges(single)}"
            sentences.append(f"{found}: replace or remove them, if they should have more")
            if 2 * max(Counter(image.colour for _, image in single).values()) > num_images:
                raise Refusal(f"{self.place}: {sentences[-1]}")
        return sentences

    def remedy_for_lost(self, images: Sequence[FewLevels]) -> str:
        if not all(image.deep for image in images):
            return "raise source.image_size, or crop the images to their contents"
        suggested = white_point(max(image.highest for image in images))
        if suggested and suggested < (self.white or MAX_16_BIT):
            return f"set source.white to the value that means white, such as source.white={suggested}"
        return "stretch their contrast (a few high values may decide the scale: clip them), and store them with 8 bits"

    def report(self, members: Sequence[Member], corrupt: Mapping[int, str]) -> list[str]:
        """Return a text for each file of a chunk that cannot be decoded, and print its name if `on_corrupt` is `skip`.

        `corrupt` maps the positions of these files in `members` to the reasons. The texts are in the order of the samples, even if the workers
        decoded them in another order.
        """
        if self.on_corrupt == "skip":
            for number in sorted(corrupt):
                print(f"prepare: skipped {shown(members[number].name)} in {self.root}: cannot be decoded ({corrupt[number]})")
        return [f"{shown(members[number].name)}: cannot be decoded ({corrupt[number]})" for number in sorted(corrupt)]

    @property
    def place(self) -> str:
        return f"source.root: {self.root}"


def ranges(images: Sequence[tuple[str, FewLevels]]) -> str:
    """Return the names of the first images, with the range of the values in their files."""

    def values(image: FewLevels) -> str:
        return f"value {image.lowest:.10g}" if image.lowest == image.highest else f"values {image.lowest:.10g} to {image.highest:.10g}"

    return listed([f"{shown(name)} ({values(image)})" for name, image in images], MOST_RANGES)


def contents(tree: Tree, names: Sequence[str], workers: int) -> list[bytes]:
    """Return the SHA-256 of each of the files `names`, read on `workers` threads. Of a file that cannot be read, return the name."""
    with tree.contents(names) as members:
        return [
            digest
            for _, digests in on_threads(lambda some: [*map(digest_of, some)], chunked(members, 0), workers=workers)
            for digest in digests
        ]


def digest_of(member: Member) -> bytes:
    try:
        return hashlib.sha256(member.read()).digest()
    except Refusal:
        raise
    except READ_ERRORS:  # the decoder reports the file
        return name_bytes(member.name)


def chunked(members: Iterable[Member], image_bytes: int, larger: int = 1) -> Iterator[list[Member]]:
    """Yield `members` (image files) in chunks, lists of at most CHUNK_SAMPLES files.

    A chunk also ends when its files that are already in memory, and the images decoded from all its files, need CHUNK_BYTES bytes together.
    `image_bytes` is the size of one decoded image. Both limits are multiplied by `larger`.
    """
    chunk: list[Member] = []
    held_bytes = 0
    for member in members:
        chunk.append(member)
        held_bytes += member.held_bytes + image_bytes
        if len(chunk) == larger * CHUNK_SAMPLES or held_bytes >= larger * CHUNK_BYTES:
            yield chunk
            chunk, held_bytes = [], 0
    if chunk:
        yield chunk


def placed(chunks: Iterable[list[Member]], samples: Sequence[Sample], place: Place[Result]) -> Iterator[Chunk[Result]]:
    """Yield a Chunk for each list of files, with their destinations. `samples` has the split and the position of each file, in order.

    An archive may mix the splits, so a chunk may have several destinations: one for each split that occurs in it.
    """
    remaining = iter(samples)
    for members in chunks:
        chunk = list(islice(remaining, len(members)))
        numbers = np.array([SPLITS.index(sample.split) for sample in chunk])
        positions = np.array([sample.position for sample in chunk])
        occurring, numbers = np.unique(numbers, return_inverse=True)
        yield Chunk(members, numbers, [place(SPLITS[split], positions[numbers == row]) for row, split in enumerate(occurring)])
    assert next(remaining, None) is None


@dataclass(frozen=True)
class InMemory:
    """Keeps the samples in memory, as a SampleBlock."""

    split: str
    positions: NDArray[np.int64]

    def store(self, inputs: NDArray[np.uint8], kept: NDArray[np.bool_]) -> SampleBlock:
        return SampleBlock(self.split, self.positions[kept], inputs)
