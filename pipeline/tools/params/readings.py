"""For each source, a function that finds its values for the data at a path, or says why they cannot be read."""

import os.path
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.section import suggestion
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import archives, class_folders, encodings, labelled_tables, lines, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, ClassFolders, visible_parts
from pipeline.prepare.reading.labelled_tables import SeveralSets, visible_files
from pipeline.prepare.reading.lines import WrongLines
from pipeline.prepare.reading.listed_images import images_by_stem
from pipeline.prepare.reading.split_names import SPLIT_NAMES, split_in
from pipeline.tools.params import columns, rows
from pipeline.tools.params.columns import IMAGES, LABELS, MOST_LISTED, SPLITS, TEXTS, WRITTEN, Question

ARRAYS, FOLDER, TABLE, ROWS, LABELLED, CORPUS = "arrays", "image_folder", "image_table", "table", "text_classification", "text"
PAIRS = "text_pairs"
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
COLUMNS_OF_FILES: dict[str, Any] = {TEXTS: None, LABELS: None, SPLITS: None}
MOST_BLANK = 0.05
"""The share of blank lines in files whose lines are samples. Prose and verse have more."""
Key = TypeVar("Key")
Options = Mapping[Key, Sequence[Path]]
"""Tables that may be read, by what chooses each."""


def kind_of(name: str) -> str:
    """Return the kind of a file: `image`, `table`, `text`, `array` or `other`."""
    suffixes = {"image": IMAGE_SUFFIXES, "text": TEXT_SUFFIXES, "array": (".npy", ".npz")}
    if tables.suffix_of(Path(name)):
        return "table"
    return next((kind for kind, several in suffixes.items() if name.lower().endswith(several)), "other")


def encoding_of(given: Mapping[str, Any]) -> str:
    return str(given.get("encoding", encodings.UTF8))


def as_image_folder(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    layout = class_layout(root, IMAGE_SUFFIXES)
    if not layout or not any(kind_of(sample.name) == "image" for sample in layout.samples):
        return None
    if "name" not in given:
        refuse_uneven(root, layout)
    return {}


def refuse_uneven(root: Path, layout: ClassFolders) -> None:
    """Raise Question if some class folders have files, and others only several folders, which may be the classes."""
    inside, places = defaultdict[str, set[str]](set), dict[str, str]()
    for folders in (visible_parts(sample.name)[:-1] for sample in layout.samples):
        depth = layout.outer + (SPLIT_NAMES.get(folders[layout.outer].lower()) in layout.targets)
        inside[folders[depth]].add("/".join(folders[depth + 1 : depth + 2]))
        places.setdefault(folders[depth], "/".join(folders[: depth + 1]))
    flat = [top for top, subfolders in inside.items() if subfolders == {""}]
    deep = [top for top, subfolders in inside.items() if len(subfolders - {""}) > 1 and "" not in subfolders]
    if flat and deep:
        subfolders = listed(sorted(inside[deep[0]]), MOST_LISTED)
        raise Question(
            root,
            f"{shown(flat[0])}/ has images, but {shown(deep[0])}/ has only folders ({shown(subfolders)}), so it is not clear which are the "
            f"classes: {archives.alone(root, 'that folder', [places[deep[0]]])}, or, if {shown(flat[0])} and {shown(deep[0])} are two classes, add source={FOLDER}",
        )


def as_image_table(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of the images, labels and splits, and the table, if `root` is such a table or a folder with one.

    The images of a table may also be in a folder beside its own. Raises Refusal if there are tables and images, but no table lists images.
    """
    kinds = {kind_of(name) for name in visible_files(root)}
    if not root.is_dir():
        if tables.suffix_of(root):
            return of_single_table(root, given)
        if {"image", "table"} <= kinds:
            before, folder = archives.unpacked(root)
            raise Refusal(f"data={root}: has a table, which is read only from a folder: {before}write {shlex.quote(f'data={folder}')}")
        return None
    if given.get("table") is not None:
        options: Options[Path | None] = {Path(given["table"]): [root / given["table"]]}
    else:
        options = folder_tables(root, given)
    by_stem = images_by_stem(visible_files(root))
    found = attempted(
        options,
        lambda name, paths: table_values(root, name, paths, by_stem, given),
        lambda names: (
            f"{len(names)} tables list images: add "
            + " or ".join(
                columns.assignment("table", name or "null") + ("" if name else f" ({shown(options[name][0].relative_to(root))})")
                for name in names
            )
        ),
        root,
    )
    if not found and options and "image" in kinds:
        names = ", ".join(shown(path.relative_to(root)) for path, *_ in options.values())
        raise Refusal(f"data={root}: no column of {names} lists the images: write their paths into a column")
    return found


def folder_tables(root: Path, given: Mapping[str, Any]) -> Options[Path | None]:
    """Return the tables of a folder by the value of `source.table`. It is None for those whose names are splits: one of train represents them."""
    of_splits: Mapping[str, Sequence[Path]] = {}
    with suppress(Refusal):  # as one of several tables of train, each may be read
        of_splits = labelled_tables.find_tables(root) or lists_of_images(labelled_tables.find_tables(root, of_lines=True), given)
    options: dict[Path | None, Sequence[Path]] = {None: of_splits[TRAIN]} if TRAIN in of_splits else {}
    several = {path for paths in of_splits.values() for path in paths}
    if "table" not in given:
        others = [root / name for name in visible_files(root) if root / name not in several]
        texts = {
            path.name: [path] for path in others if path.parent == root and kind_of(path.name) == "text" and not lines.is_document(path)
        }
        options |= {path.relative_to(root): [path] for path in others if kind_of(path.name) == "table"}
        options |= {Path(name): paths for name, paths in lists_of_images(texts, given).items()}
    return options


def lists_of_images(found: Mapping[str, Sequence[Path]], given: Mapping[str, Any]) -> Mapping[str, Sequence[Path]]:
    """Return those of the files of text `found` whose lines begin with the names of images."""
    kept = dict[str, Sequence[Path]]()
    for key, paths in found.items():
        with suppress(Refusal):  # as it is no list
            table = columns.read(*paths, encoding=encoding_of(given))
            if len(table.columns) > 1 and columns.are_image_names(next(iter(table.columns.values()))):
                kept[key] = paths
    return kept


def attempted(
    options: Options[Key],
    attempt: Callable[[Key, Sequence[Path]], dict[str, Any] | None],
    several: Callable[[Sequence[Key]], str],
    root: Path,
) -> dict[str, Any] | None:
    """Return what `attempt` returns for the only table that can be read, or None if it returns None for each.

    Raises Question if several can be read, or could be if a question about them were answered: what `several` returns, and these questions.
    Raises the first Refusal of `attempt` if none can.
    """
    found, questions, refusals = dict[Key, dict[str, Any]](), dict[Key, Question](), list[Refusal]()
    for key, paths in options.items():
        try:
            if (values := attempt(key, paths)) is not None:
                found[key] = values
        except Question as error:
            questions[key] = error
        except Refusal as error:
            refusals.append(error)
    if len(readable := [key for key in options if key in found or key in questions]) > 1:
        asked = defaultdict[str, list[str]](list)
        for key, question in questions.items():
            for each in question.questions:
                asked[each].append(options[key][0].name)
        raise Question(
            root,
            several(readable),
            *(each if len(names) == len(readable) else f"in {shown(', '.join(names))}, {each}" for each, names in asked.items()),
        )
    if not found and (refused := [*questions.values(), *refusals]):
        raise refused[0]
    return next(iter(found.values()), None)


def of_single_table(path: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values for the table `path` with images in it, in its folder, or in a folder beside its own."""
    table = columns.read(path, encoding=encoding_of(given))
    if table.holds_images and given.get(IMAGES) not in table.columns:
        return {**table_values(path.parent, Path(path.name), [path], {}, given), "root": path, "table": None}  # type: ignore[dict-item]
    folders = [path.parent]
    if any(map(columns.are_image_names, table.columns.values())) and len(path.parts) > 2:
        folders.append(path.parent.parent)
    by_stem = {folder: images_by_stem(visible_files(folder)) for folder in folders}
    most = max(folders, key=lambda folder: sum(columns.paths(table, by_stem[folder]).values()))
    return table_values(most, path.relative_to(most), [path], by_stem[most], given)


def table_values(
    root: Path, name: Path | None, paths: Sequence[Path], by_stem: Mapping[str, Sequence[str]], given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the values for the table `paths` (its parts) that lists images, or holds them; None if it does neither.

    `by_stem` has the images in `root`. Raises Refusal if none of the listed images is there, or if a column is not clear.
    """
    table, path = columns.read(*paths, encoding=encoding_of(given)), paths[0]
    existing = dict[columns.Name, int](dict.fromkeys(table.holds_images, 1)) if table.holds_images else columns.paths(table, by_stem)
    if not existing and IMAGES not in given:
        return None
    best = [image for image, count in existing.items() if count == max(existing.values())]
    image = columns.chosen(path, table, IMAGES, given, best)
    if not existing.get(image):
        example = shown(next(iter(table.columns.get(image, ())), ""), 60)
        raise Refusal(
            f"data={path}: the column {shown(image)} lists images such as {example}, but there are none of them in {root}: put them there, or "
            "write as data=PATH the folder that has both"
        )
    split = columns.split_column(path, table, given)
    return {"root": root, "table": name, IMAGES: image, **columns.labels(path, table, given, (image, split)), SPLITS: split}


def as_rows(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the column to predict, the task and the column of splits of tables whose other columns are numbers, categories and dates."""
    of_splits = labelled_tables.find_tables(root, given.get("table"))
    names = [name for name in visible_files(root) if kind_of(name) == "table"]
    options = {root: of_splits[TRAIN]} if of_splits else {root / name: [root / name] for name in names}
    return attempted(
        options,
        lambda place, paths: rows.values(place, paths, given),
        lambda places: f"{len(places)} tables have rows to train on: write {' or '.join(shlex.quote(f'data={place}') for place in places)}",
        root,
    )


def as_labelled_texts(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    chosen, names = given.get("table"), visible_files(root)
    if chosen is not None and not any(fnmatch(name, chosen) for name in names):
        raise Refusal(f"source.table={shown(chosen, 60)}: {root} has no such file: {suggestion(chosen, tuple(names))}")
    try:
        of_splits = labelled_tables.find_tables(root, chosen)
    except SeveralSets as error:
        return attempted(
            {Path(paths[0]).relative_to(root): paths for paths in error.sets},
            lambda name, paths: with_table(text_values(root, paths, given), name),
            lambda names: f"has {len(names)} tables of train: add " + " or ".join(columns.assignment("table", name) for name in names),
            root,
        )
    options = {root: of_splits[TRAIN]} if of_splits else {root / name: [root / name] for name in names if kind_of(name) == "table"}
    try:
        values = of_tables(root, options, given)
    except Question:
        raise
    except Refusal:
        if of_splits or not any(kind_of(name) in ("text", "other") and not lines.is_document(name) for name in names):
            raise
        values = None  # the tables may describe texts in files
    if values is not None or of_splits:
        return values
    if values := of_line_files(root, given) or of_labelled_lines(root, given) or of_class_files(root, given):
        return values
    if "name" not in given:
        refuse_loose_texts(root)
    layout = class_layout(root, TEXT_SUFFIXES)
    return (
        COLUMNS_OF_FILES if layout and 2 * sum(kind_of(sample.name) == "text" for sample in layout.samples) > len(layout.samples) else None
    )


def of_tables(root: Path, options: Options[Path], given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values for the only one of `options` with labelled texts, tables by their places. The key `table` names one in an archive."""
    if root.is_dir() or root in options:
        return attempted(
            options,
            lambda place, paths: text_values(place, paths, given),
            lambda places: (
                f"{len(places)} tables have labelled texts: write {' or '.join(shlex.quote(f'data={place}') for place in places)}"
            ),
            root,
        )
    return attempted(
        {place.relative_to(root): paths for place, paths in options.items()},
        lambda name, paths: with_table(text_values(root, paths, given), name),
        lambda names: f"{len(names)} tables have labelled texts: add " + " or ".join(columns.assignment("table", name) for name in names),
        root,
    )


def refuse_loose_texts(root: Path) -> None:
    """Raise Question if `root` has files that may have the texts of a class each, and folders that may be classes."""
    names = visible_files(root)
    loose = [name for name in names if "/" not in name and kind_of(name) == "text"]
    classes = lines.class_files(loose, None)
    if classes and not any(map(split_in, classes)) and any("/" in name for name in names):
        ways = " or ".join(columns.assignment("table", f"*{suffix}") for suffix in {PurePosixPath(name).suffix: 0 for name in classes})
        raise Question(
            root,
            f"has files ({listed(list(classes), MOST_LISTED)}) beside folders: if each file has the texts of one class, line by line, add {ways}; "
            f"if the folders are the classes, add source={LABELLED}",
        )


def with_table(values: dict[str, Any] | None, name: Path) -> dict[str, Any] | None:
    return values and {**values, "table": str(name)}


def of_labelled_lines(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values for files of text with a label in each line, or None if the lines of train have none.

    Raises Question if several files have such lines, and their names have no word for a split.
    """
    of_splits = labelled_tables.find_tables(root, given.get("table"), of_lines=True)
    if not of_splits and root.is_dir():
        labelled = []
        for name in visible_files(root):
            with suppress(encodings.NotDecoded, WrongLines):  # as it is no text, or one beside others
                labelled += [name] if "/" not in name and labelled_lines([root / name], encoding_of(given)) else []
        if len(labelled) > 1:
            pattern = beginning(labelled) + "*" + beginning([name[::-1] for name in labelled])[::-1]
            ways = " or ".join(columns.assignment("table", name) for name in (pattern, *labelled[:MOST_LISTED]))
            raise Question(root, f"{len(labelled)} files have a label in each line: add {ways}")
        return text_values(root / labelled[0], [root / labelled[0]], given) if labelled else None
    if TRAIN not in of_splits or not labelled_lines(of_splits[TRAIN], encoding_of(given)):
        return None
    if given.get("table") is None and (sets := suffix_sets(root)):
        choices = [of_splits[TRAIN][0].relative_to(root), *(f"{stem}.*" for stem in sets)]
        raise Question(
            root,
            f"has {shown(choices[0])} with a label in each line, and {counted(len(sets), 'set')} of files whose suffixes may be classes: add "
            + " or ".join(columns.assignment("table", way) for way in choices[:MOST_LISTED]),
        )
    return text_values(root, of_splits[TRAIN], given)


def beginning(names: Sequence[str]) -> str:
    """Return the characters with which all names begin."""
    return os.path.commonprefix(names)  # noqa: RUF071  # of characters, not of folders


def labelled_lines(paths: Sequence[Path], encoding: str) -> bool:
    """Return True if the lines of files that are no tables have labels beside other fields. Raises NotDecoded if they are not in `encoding`."""
    if any(lines.is_document(path) or kind_of(path.name) not in ("text", "other") for path in paths):
        return False
    try:
        table = columns.read(*paths, encoding=encoding)
    except (encodings.NotDecoded, WrongLines):
        raise
    except Refusal:  # as other readings say that a file cannot be read
        return False
    return len(table.columns) > 1 and bool(columns.label_columns(table))


def of_class_files(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values for files with the texts of a class each, or None if they seem to be texts as a whole, with blank lines.

    Raises Question if there are several sets of such files.
    """
    is_one = not root.is_dir() and not root.name.lower().endswith(archives.SUFFIXES)
    if len(sets := suffix_sets(root)) > 1 and given.get("table") is None:
        ways = " or ".join(columns.assignment("table", f"{stem}.*") for stem in sets[:MOST_LISTED])
        raise Question(root, f"has {len(sets)} sets of files whose suffixes may be classes: add {ways}")
    found = {} if is_one else lines.class_files(visible_files(root), given.get("table"))
    if not found or any(map(split_in, found)):
        return None
    several = {name: labelled_tables.lines_of(root / name, encoding_of(given)) for name in found}
    if labels := next((name for name, content in several.items() if columns.is_label(content)), None):
        raise Refusal(
            f"data={root}: {labels} has a label in each line, but no other file has as many lines: make their numbers of lines equal"
        )
    blank = sum(not line.strip() for content in several.values() for line in content)
    are_texts = all(name.lower().endswith(TEXT_SUFFIXES) for name in found)
    return None if are_texts and blank > MOST_BLANK * sum(map(len, several.values())) and "name" not in given else COLUMNS_OF_FILES


def suffix_sets(root: Path) -> list[str]:
    """Return the stems that several files directly in a folder or archive have, such as `reviews` for `reviews.pos` and `reviews.neg`."""
    names = [name for name in visible_files(root) if "/" not in name]
    stems = Counter(PurePosixPath(name).stem for name in names if kind_of(name) == "other" and not split_in(name))
    return [stem for stem, count in stems.items() if count > 1]


def text_values(root: Path, paths: Sequence[Path], given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values for the table `paths` (its parts) of texts in `root`, or None if it holds or lists images, and no texts."""
    table, path = columns.read(*paths, encoding=encoding_of(given)), paths[0]
    has_images = table.holds_images or any(map(columns.are_image_names, table.columns.values()))
    found = columns.texts(table)
    if TEXTS not in given and has_images and not found:
        return None
    return {"root": root, **columns.answered(path, table, given, TEXTS, found)}


def as_text_pairs(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of the source texts and the target texts of the only table of train."""
    try:
        of_splits = labelled_tables.find_tables(root, given.get("table"))
        if not of_splits and "name" in given:
            of_splits = labelled_tables.find_tables(root, given.get("table"), of_lines=True)
    except SeveralSets:
        if "name" in given:
            raise
        return None  # as labelled texts, they are asked for
    if not of_splits:
        return None
    paths = of_splits[TRAIN]
    numbered = any(isinstance(given.get(key), int) for key in (TEXTS, WRITTEN))
    return columns.pair(paths[0], columns.read(*paths, encoding=encoding_of(given), numbered=numbered), given)


def of_line_files(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values for files of texts and labels, line by line, or None if no file of several has labels."""
    files = labelled_tables.find_line_files(root, encoding_of(given)).get(TRAIN, {})
    table = columns.Table({name: list(labelled_tables.lines_of(path, encoding_of(given))) for name, path in files.items()})
    labels = columns.label_columns(table)
    if not labels:
        return None
    text = columns.chosen(root, table, TEXTS, given, columns.texts(table))
    return {TEXTS: text, LABELS: columns.chosen(root, table, LABELS, given, labels), SPLITS: None}


def as_arrays(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001  # as the other readers
    is_folder = root.is_dir() and any(path.suffix == ".npy" for path in root.iterdir())
    return {} if is_folder or root.suffix.lower() == ".npz" else None


def as_corpus(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    if "name" in given:
        return {}
    try:
        layout = class_layout(root, TEXT_SUFFIXES)
    except Refusal:  # which that of labelled texts says, too
        return None
    names = visible_files(root)
    if root.name.lower().endswith(archives.SUFFIXES):
        return None
    if (layout and len(layout.classes) > 1) or not names or not all(name.lower().endswith(TEXT_SUFFIXES) for name in names):
        return None
    for path in [root / name for name in names] if root.is_dir() else [root]:
        refuse_labelled_lines(path, encoding_of(given))
    return {}


def refuse_labelled_lines(path: Path, encoding: str) -> None:
    """Raise Refusal if the lines of a file of text have labels, or are labels: a corpus is only what nothing labels."""
    if labelled_lines([path], encoding):
        raise Refusal(f"data={path}: has a label in each line; if it is a text without labels, add source={CORPUS}")
    if columns.is_label([line.rstrip("\r") for line in columns.sampled(labelled_tables.lines_of(path, encoding)) if line.strip()]):
        raise Refusal(
            f"data={path}: has a label in each line: put a file with the texts beside it, line by line, such as train_text.txt beside "
            "train_labels.txt, and write as data=PATH their folder; or, if it is a text, add source=text"
        )


READERS: dict[str, Callable[[Path, Mapping[str, Any]], dict[str, Any] | None]] = {
    FOLDER: as_image_folder,
    TABLE: as_image_table,
    ROWS: as_rows,
    LABELLED: as_labelled_texts,
    PAIRS: as_text_pairs,
    ARRAYS: as_arrays,
    CORPUS: as_corpus,
}
"""For each source a function that returns its values for the data at a path, or None if they are no such data.

It raises Refusal if they seem to be, and cannot be read, or if a key of `source` must decide. With `source=NAME`, only its function is called.
"""


def class_layout(root: Path, suffixes: tuple[str, ...]) -> ClassFolders | None:
    """Return the classes and files of a folder or archive, or None if no file in a folder of it has one of `suffixes`.

    Raises the Refusal of `find_classes` if the files are not arranged by class.
    """
    if not root.is_dir() and not root.name.lower().endswith(archives.SUFFIXES):
        return None
    listing = archives.open_tree(root).listing()
    files = [name for name in listing.files if visible_parts(name) and not lines.is_document(name)]
    if not any("/" in name and name.lower().endswith(suffixes) for name in files):
        return None
    return class_folders.find_classes(listing, str(root))
