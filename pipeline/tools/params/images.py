"""Readings of images, in folders by class or listed by a table; their size, channels, and the value that means white in those of more than 8 bits."""

import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pipeline.core.raw_dataset import TEST, TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.inputs.image_files import ImageFileSettings
from pipeline.prepare.reading import archives, class_folders, table_formats
from pipeline.prepare.reading.class_folders import ClassFolders, split_in, split_of_folder, splits_among, visible_parts
from pipeline.prepare.reading.images import is_deep, white_point
from pipeline.prepare.reading.listed_images import images_by_stem
from pipeline.prepare.reading.table_sets import find_tables, visible_files
from pipeline.prepare.reading.tables import UnusableRows
from pipeline.tools.params import cell_values, columns
from pipeline.tools.params.table import (
    MOST_LISTED,
    MOST_TABLES,
    Given,
    Name,
    Option,
    Question,
    Table,
    Values,
    attempted,
    encoding_of,
    is_submission,
    kind_of,
)

MASKS, IMAGES = {"mask", "masks", "label", "labels", "annotation", "annotations", "segmentation", "gt"}, {"image", "images", "img", "imgs"}
"""Names of a folder whose images are masks, not a class, and of the one beside it."""
BEFORE_NUMBER = re.compile(r"(?=[^.]*[^\W\d_])(.+?)(?:[\W_]+\d|\d+\.\w+$)")
"""Matches `cat` in the name `cat.12.jpg`."""


def as_image_folder(root: Path, given: Given) -> Values | None:
    refuse_one_folder(root)
    layout = class_layout(root, lambda name: kind_of(name) == "image")
    if not layout or not any(kind_of(sample.name) == "image" for sample in layout.samples):
        return None
    if "name" not in given:
        refuse_masks(root, layout)
        refuse_uneven(root, layout)
    return {}


def refuse_one_folder(root: Path) -> None:
    """Raise Refusal if all images are in one folder, apart from those of test; a Question if their names begin with what may be their classes."""
    images = [
        path for path in map(PurePosixPath, visible_files(root)) if kind_of(path.name) == "image" and split_in(str(path.parent)) != TEST
    ]
    starts = Counter(match[1] for path in images if (match := BEFORE_NUMBER.match(path.name)))
    if len({tuple(part for part in path.parts[:-1] if not split_of_folder(part)) for path in images}) != 1:
        return
    if len(starts) > 1 and starts.total() == len(images) and min(starts.values()) > 1:
        begin = f"the names of its images begin with {shown(listed(sorted(starts), MOST_LISTED), 120)}"
        recipe = 'write a table of images and classes, as "Labels in the names of files" in docs/data.md shows'
        raise Question(root, f"{begin}: if these are the classes, {recipe}")
    remedy = "arrange them as CLASS/image, or write a table of images and classes"
    of_train = " of train" * any(split_in(str(path.parent)) for path in images)
    raise Refusal(f"data={root}: all its images{of_train} are in one folder, and nothing says their classes: {remedy}")


def refuse_masks(root: Path, layout: ClassFolders) -> None:
    """Raise Question if a folder is called like masks, and another one has an image of the same name for each of its images."""
    of_folders = defaultdict[str, set[str]](set)
    for path in (PurePosixPath(sample.name) for sample in layout.samples):
        of_folders[str(path.parent)].add(path.stem)
    for masks in (path for path in map(PurePosixPath, of_folders) if path.name.lower() in MASKS):
        beside = {folder: stems for folder, stems in of_folders.items() if PurePosixPath(folder).parent == masks.parent}
        images = next((folder for folder in beside if PurePosixPath(folder).name.lower() in IMAGES), "")
        if images and beside[str(masks)] <= beside[images]:
            pairs = f"{shown(images)}/ and {shown(masks)}/ have images of the same names, as for a segmentation, which no task learns"
            raise Question(
                root, f"{pairs}: to train on classes, arrange the images as CLASS/image; if these are two classes, add source=image_folder"
            )


def refuse_uneven(root: Path, layout: ClassFolders) -> None:
    """Raise Question if some class folders have files, and others only several folders, which may be the classes."""
    inside, places = defaultdict[str, set[str]](set), dict[str, str]()
    every = [visible_parts(sample.name)[:-1] for sample in layout.samples]
    splits = splits_among({folders[layout.outer] for folders in every})
    for folders in every:
        is_split = len(folders) > layout.outer + 1 and splits.get(folders[layout.outer]) in layout.targets
        depth = layout.outer + is_split
        inside[folders[depth]].add("/".join(folders[depth + 1 : depth + 2]))
        places.setdefault(folders[depth], "/".join(folders[: depth + 1]))
    flat = [top for top, subfolders in inside.items() if subfolders == {""}]
    deep = [top for top, subfolders in inside.items() if len(subfolders - {""}) > 1 and "" not in subfolders]
    if flat and deep:
        one, other = shown(flat[0]), shown(deep[0])
        unclear = f"{one}/ has images, but {other}/ has only folders ({shown(listed(sorted(inside[deep[0]]), MOST_LISTED))}), so it is not clear which are the classes"
        alone = archives.alone(root, "that folder", [places[deep[0]]])
        raise Question(root, f"{unclear}: {alone}, or, if {one} and {other} are two classes, add source=image_folder")


def as_image_table(root: Path, given: Given) -> Values | None:
    """Return the columns of the images, labels and splits, and the table, if `root` is such a table or a folder with one.

    The images of a table may also be in a folder beside its own. Raises Refusal if there are tables and images, but no table lists images.
    """
    names = visible_files(root)
    kinds = set(map(kind_of, names))
    if not root.is_dir():
        if table_formats.suffix_of(root):
            return of_single_table(root, given)
        if {"image", "table"} <= kinds:
            before, folder = archives.unpacked(root)
            raise Refusal(f"data={root}: has a table, which is read only from a folder: {before}write {shlex.quote(f'data={folder}')}")
        return None
    options, by_stem = folder_tables(root, names, given), images_by_stem(names)
    found = attempted(root, options, given, partial(table_values, root, by_stem), "list images")
    if not found and options and "image" in kinds:
        listed_in = ", ".join(shown(path.relative_to(root)) for _, (path, *_) in options)
        raise Refusal(f"data={root}: no column of {listed_in} lists the images: write their paths into a column")
    return found


def folder_tables(root: Path, names: Sequence[str], given: Given) -> list[Option]:
    """Return the tables of a folder with the files `names`. `table` is None for those whose names are splits: one of train represents them."""
    if given.get("table") is not None:
        return [({"root": root, "table": Path(given["table"])}, [root / given["table"]])]
    of_splits: Mapping[str, Sequence[Path]] = {}
    with suppress(Refusal):  # as one of several tables of train, each may be read
        of_splits = find_tables(root)
        if not of_splits:
            of_lines = find_tables(root, of_lines=True)
            of_splits = {split: paths for split, paths in of_lines.items() if begin_with_images(paths, given)}
    options: dict[Path | None, Sequence[Path]] = {None: of_splits[TRAIN]} if TRAIN in of_splits else {}
    several = {path for paths in of_splits.values() for path in paths}
    num_texts = sum(kind_of(name) == "text" for name in names)
    for path in [root / name for name in names if "table" not in given and not is_submission(name)]:
        may_list = path.parent == root and kind_of(path.name) == "text" and not table_formats.is_document(path) and num_texts <= MOST_TABLES
        if path not in several and (kind_of(path.name) == "table" or (may_list and begin_with_images([path], given))):
            options[path.relative_to(root)] = [path]
    return [({"root": root, "table": table}, paths) for table, paths in options.items()]


def begin_with_images(paths: Sequence[Path], given: Given) -> bool:
    """Return True if the lines of files of text begin with the names of images."""
    with suppress(Refusal):  # as it is no list
        table = Table.read(*paths, encoding=encoding_of(given))
        return len(table.columns) > 1 and cell_values.are_image_names(next(iter(table.columns.values())))
    return False


def of_single_table(path: Path, given: Given) -> Values | None:
    """Return the values for the table `path` with images in it, in its folder, or in a folder beside its own."""
    table = Table.read(path, encoding=encoding_of(given), given=given)
    if table.holds_images and given.get("image_column") not in table.columns:
        return {**(table_values(path.parent, {}, path, table, given) or {}), "root": path, "table": None}
    folders, has_names = [path.parent], any(map(cell_values.are_image_names, table.columns.values()))
    if has_names and len(path.parts) > 2:
        folders.append(path.parent.parent)
    try:
        by_stem = {folder: images_by_stem(visible_files(folder)) for folder in folders}
    except Refusal:  # such as that of links in the environment of a checkout, beside a table of something else
        if has_names or "image_column" in given:
            raise
        return None
    root = max(folders, key=lambda folder: sum(columns.paths(table, by_stem[folder]).values()))
    values = table_values(root, by_stem[root], path, table, given)
    return values and {"root": root, "table": path.relative_to(root), **values}


def table_values(root: Path, by_stem: Mapping[str, Sequence[str]], path: Path, table: Table, given: Given) -> Values | None:
    """Return the values for a table that lists images, or holds them; None if it does neither.

    `by_stem` has the images in `root`. Raises Refusal if none of the listed images is there, or if a column is not clear.
    """
    existing = dict[Name, int](dict.fromkeys(table.holds_images, 1)) if table.holds_images else columns.paths(table, by_stem)
    if not existing and "image_column" not in given:
        return None
    best = [image for image, count in existing.items() if count == max(existing.values())]
    image = given["image_column"] if "image_column" in given else best[0]
    has_boxes = {"xmin", "ymin"} <= {str(name).lower() for name in table.columns} and image in table.columns
    if has_boxes and len({*table.columns[image]}) < len(table.columns[image]) and not {"label_column", "name"} & set(given):
        boxes = "has boxes in images (xmin, ymin), and no task learns to find them"
        raise UnusableRows(f"data={path}: {boxes}: to train on a class of each image, name its column by source.label_column")
    if image in table.columns and not existing.get(image):
        example = shown(next(iter(table.columns[image]), ""), 60)
        missing = f"lists images such as {example}, but there are none of them in {root}"
        remedy = "put them there, or write as data=PATH the folder that has both"
        raise Refusal(f"data={path}: the column {shown(image)} {missing}: {remedy}")
    return columns.answered(path, table, given, "image_column", best)


def class_layout(root: Path, fits: Callable[[str], bool]) -> ClassFolders | None:
    """Return the classes and files of a folder or archive, or None if the name of no file in a folder of it `fits`.

    Raises the Refusal of `find_classes` if the files are not arranged by class.
    """
    if not root.is_dir() and not root.name.lower().endswith(archives.SUFFIXES):
        return None
    listing = archives.open_tree(root).listing()
    files = [name for name in listing.files if visible_parts(name) and not table_formats.is_document(name)]
    if not any("/" in name and fits(name) for name in files):
        return None
    return class_folders.find_classes(listing, str(root))


MEASURED = 100
DECODING_S = 10.0
MOST_CROPPED = 0.3
"""The crop of a photograph of 4:3 cuts off a quarter."""
LARGE, RESIZED = 96, 224
"""Images whose shorter sides are mostly longer than LARGE pixels are resized to RESIZED, the size of pretrained models."""
FACTOR, FEWEST, LEAST_SHARE = 4, 2, 0.05
"""Files whose largest values are all FACTOR times smaller than those of the others have another scale, if they are at least FEWEST and LEAST_SHARE of all."""


def find_white(root: Path, brightest: Mapping[str, float], shallow: Sequence[str]) -> int | None:
    """Return the value of `source.white` for files with the largest values `brightest`, by name, or None if it is not needed.

    `shallow` are the names of the files with 8 bits. Raises Question if the files have several scales.
    """
    if not brightest:
        return None
    ordered = sorted(brightest.items(), key=lambda item: item[1])
    name, highest = ordered[-1]
    white = white_point(highest)
    if white is None:
        raise Refusal(f"data={root}: {shown(name)} has values up to {highest:.10g}: store the images with 8 or 16 bits")
    if shallow:
        few = f"of {counted(len(brightest) + len(shallow), 'image')}, {len(shallow)} have 8 bits, such as {shown(shallow[0])}"
        more = f"{len(brightest)} have more, with values up to {highest:.10g}, such as {shown(name)}"
        remedy = f"if {white} means white in these, add source.white={white}; else store all images with 8 bits"
        raise Question(root, f"{few}, and {more}: {remedy}")
    if darker := num_darker([value for _, value in ordered]):
        dark_name, dark = ordered[darker - 1]
        few = f"{counted(darker, 'image')} have values up to {dark:.10g}, such as {shown(dark_name)}"
        more = f"{len(ordered) - darker} up to {highest:.10g}, such as {shown(name)}"
        remedy = f"if all of them have one scale, add source.white={white}, the value that means white; else store all images on one scale"
        raise Question(root, f"{few}, and {more}: {remedy}")
    return white


def num_darker(ordered: Sequence[float]) -> int:
    """Return how many of the largest values `ordered`, in ascending order, seem to have a smaller scale than the others, or 0 if none do."""
    fewest = max(FEWEST, LEAST_SHARE * len(ordered))
    steps = [(high / low, number) for number, (low, high) in enumerate(pairwise(ordered), 1) if low > 0 and number >= fewest]
    step, number = max(steps, default=(0.0, 0))
    return number if step >= FACTOR and white_point(ordered[number - 1]) != white_point(ordered[-1]) else 0


def image_facts(settings: ImageFileSettings, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the size and the number of channels to which the images should be converted, and the value that means white, from some of them.

    Those in `given` stay. Also returns a line about what the centre crop cuts off, if it is more than MOST_CROPPED of most images, and one
    about white. Raises Refusal if no image can be read, and Question like `find_white`.
    """
    from PIL import Image, ImageMode

    tree, layout = settings.files()
    names = [sample.name for sample in layout.samples][:: max(1, len(layout.samples) // MEASURED)]
    sides, modes, reasons = list[tuple[int, int]](), set[str](), list[str]()
    brightest, shallow = dict[str, float](), list[str]()
    with tree.contents(names) as members:
        for member in members:
            try:
                with Image.open(BytesIO(member.read())) as image:
                    sides.append((min(image.size), max(image.size)))
                    modes.add(ImageMode.getmode(image.mode).basemode)
                    if not is_deep(image):
                        shallow.append(member.name)
                    elif image.width * image.height <= settings.max_pixels:
                        highest = float(np.asarray(image).max())
                        brightest |= {member.name: highest} if math.isfinite(highest) else {}  # the decoder reports it
            except Exception as error:  # Pillow may raise any exception; `stored` names the damaged ones
                reasons.append(f"{shown(member.name)} ({reason(error)})")
    if not sides:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
        raise Refusal(f"{settings.place}: none of its images can be read: {listed(reasons, 1)}: convert or repair them")
    side = sorted(sides)[len(sides) // 2][0]
    shares = sorted(1 - short / long for short, long in sides)
    cropped, most = shares[len(shares) // 2], shares[-1]
    white = given["white"] if "white" in given else find_white(settings.root, brightest, shallow)
    facts = {"image_size": side if side <= LARGE else RESIZED, "channels": 1 if modes == {"L"} else 3, "white": white}
    lines = list[str]()
    if cropped > MOST_CROPPED:
        lines.append(f"images are not square: a crop to the middle cuts off {cropped:.0%} of an image (median), {most:.0%} at most")
    if white is not None and brightest:
        highest = max(brightest.values())
        lines.append(f"pixels of more than 8 bits have values up to {highest:.10g}, so {white} means white (source.white)")
    return facts | {key: given[key] for key in facts if key in given}, lines


def stored(settings: ImageFileSettings) -> list[str]:
    """Return a line about the images as they will be stored, and one about those that cannot be decoded."""
    side = settings.image_size
    lines = [f"images are stored as {side}x{side} with {settings.channels} channels (source.image_size, source.channels)"]
    try:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
    except Refusal as error:
        lines.append(f"warning: {error}")
    return lines
