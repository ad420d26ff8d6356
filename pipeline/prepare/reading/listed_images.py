"""Finds the images that the rows of a table list by their paths."""

import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, split_in, visible_parts

MOST_FOLDERS = 100
"""A name that images of more folders have is refused, because comparing all of them would take too long."""


class ListedImage(NamedTuple):
    """A row of the table `path`. `line` is the number of its line, from 1, `text` the path of the image as it is written, and `split` that of the row."""

    path: Path
    line: int
    text: str
    split: str

    @property
    def place(self) -> str:
        return f"{shown(self.path)}:{self.line}"


def located(rows: Sequence[ListedImage], files: Sequence[str], root: Path) -> list[str]:
    """Return the name among `files`, those of the folder `root`, of each image that a row lists. That of a missing image is as written.

    Raises Refusal if a path leads out of the folder to an image that is not in it, or if several images fit equally well.
    """
    known = set(files)
    folders = {row.path: row.path.parent.relative_to(root).as_posix() for row in rows}  # a path is relative to that of its table
    written = [posixpath.normpath(posixpath.join(folders[row.path], row.text.strip().replace("\\", "/"))) for row in rows]
    if known.issuperset(written):
        return written
    by_stem = images_by_stem(files)
    fitting = [candidates(row.text, by_stem) for row in rows]
    together = Counter[tuple[Path, str, str, str]]()
    counts = Counter((row.path, row.split, frozenset(map(posixpath.dirname, names))) for names, row in zip(fitting, rows, strict=True))
    for (path, split, places), count in counts.items():
        for folder, rival in product(places, repeat=2) if len(places) <= MOST_FOLDERS else ():
            together[path, split, folder, rival] += count

    def is_better(name: str, other: str, row: ListedImage) -> bool:
        """Return whether a name fits better than another: its folder alone is that of the row's split, or it has all that the other folder
        has of the rows, and more. Folders that have a part of the rows each, as those of classes, leave the question open.
        """
        folder, rival = posixpath.dirname(name), posixpath.dirname(other)
        if (split_in(folder) == row.split) != (split_in(rival) == row.split):
            return split_in(folder) == row.split
        in_folder, in_rival, in_both = (together[row.path, row.split, *pair] for pair in ((folder,) * 2, (rival,) * 2, (folder, rival)))
        return in_both == in_rival < in_folder

    def chosen(path: str, row: ListedImage, names: Sequence[str]) -> str:
        if path.startswith("../") or (not names and path.startswith("/")):
            problem = f"{row.place}: {shown(row.text.strip())} is not below {root}, so DVC would not see its changes"
            raise Refusal(f"source.root: {problem}: put the images there, and write their paths relative to the table")
        if path in known or not names:
            return path
        compared = names if len(names) <= MOST_FOLDERS else ()
        best = next((name for name in compared if all(name == other or is_better(name, other, row) for other in names)), None)
        if best is None:
            remedy = "write the path relative to the folder of the table, or move one of them to another place"
            raise Refusal(f"source.root: {row.place}: {shown(row.text, 60)} may be {shown(names[0])} or {shown(names[1])}: {remedy}")
        return best

    return [chosen(path, row, names) for path, row, names in zip(written, rows, fitting, strict=True)]


def images_by_stem(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the images among `files`, by their last parts without the suffix, in lower case."""
    found = defaultdict[str, list[str]](list)
    for name in files:
        if name.lower().endswith(IMAGE_SUFFIXES) and visible_parts(name):
            found[PurePosixPath(name.lower()).stem].append(name)
    return found


def candidates(written: str, by_stem: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the images whose paths end as written, or whose whole paths are the end of what is written."""
    tail = PurePosixPath(written.strip().replace("\\", "/").lower())
    has_suffix = tail.name.endswith(IMAGE_SUFFIXES)
    found = []
    for name in by_stem.get(tail.stem if has_suffix else tail.name, []):
        image = PurePosixPath(name.lower())
        parts, expected = (image if has_suffix else image.with_suffix("")).parts, tail.parts
        shared = min(len(parts), len(expected))
        if parts[-shared:] == expected[-shared:]:
            found.append(name)
    return found
