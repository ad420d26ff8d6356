"""Images that a table lists: paths in a folder, and encoded images in a Parquet file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal
from pipeline.prepare.reading.listed_images import MOST_FOLDERS, ListedImage, located
from pipeline.sources import image_table

from .pictures import gathered, picture, write_folder
from .settings import source

GREYS = [10, 200, 210, 20]
LABELS = ["cat", "dog", "dog", "cat"]


def settings(root: Path, **changes: object) -> image_table.Settings:
    small = {"image_size": 8, "channels": 1, "max_pixels": 10_000}
    return source(image_table.Settings, root, **{**small, **changes})  # type: ignore[no-any-return]


def values(found: image_table.Settings) -> list[tuple[str, int]]:
    """Return the class and the grey value of each sample."""
    dataset = found.open(workers=2)
    names = [dataset.task.output_names[number] for number in dataset.targets[TRAIN]]
    return list(zip(names, gathered(dataset)[TRAIN][:, 4, 4, 0].tolist(), strict=True))


def write_table(root: Path, *paths: str) -> Path:
    write_folder(root, {f"lists/pictures/{number}.png": picture(value) for number, value in enumerate(GREYS)})
    rows = zip(paths or [f"pictures/{number}.png" for number in range(4)], LABELS, strict=True)
    (root / "lists/all.csv").write_text("image,label\n" + "".join(f"{path},{label}\n" for path, label in rows), encoding="utf-8")
    return Path("lists/all.csv")


def write_parquet(path: Path, images: list[object]) -> Path:
    pq.write_table(pa.table({"image": images, "label": LABELS}), path, row_group_size=3)
    return path


def test_the_paths_of_a_table_are_relative_to_its_folder(tmp_path: Path) -> None:
    found = settings(tmp_path, table=write_table(tmp_path))
    assert values(found) == list(zip(LABELS, GREYS, strict=True))
    keys = found.open(workers=1).sample_keys
    assert keys
    assert keys()[TRAIN][1] == "lists/pictures/1.png"


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x.png", "pictures/../../../x.png"])
def test_a_path_that_leaves_the_folder_is_refused_with_its_line(tmp_path: Path, path: str) -> None:
    table = write_table(tmp_path, "pictures/0.png", path, "pictures/2.png", "pictures/3.png")
    with pytest.raises(Refusal, match=r"all\.csv:3: .* is not below "):
        settings(tmp_path, table=table).open(workers=1)


@pytest.mark.parametrize(
    ("written", "files", "expected"),
    [
        ("pictures/1.png", ["lists/pictures/1.png", "pictures/1.png"], "lists/pictures/1.png"),
        ("1", ["a/1.png", "a/2.png"], "a/1.png"),
        ("../a/1.png", ["a/1.png", "b/1.png"], "a/1.png"),
        (".\\A\\1.PNG", ["a/1.png", "b/1.png"], "a/1.png"),
        ("data/a/1.png", ["a/1.png", "b/1.png"], "a/1.png"),
        ("1.png", ["a/1.png", "a/0.png", "b/1.png"], "a/1.png"),
        ("1.png", ["train/1.png", "test/1.png", "test/0.png"], "train/1.png"),
        ("1.png", ["test/1.png", "training/1.png"], "training/1.png"),
        ("3.png", ["a/1.png"], "lists/3.png"),
        ("1.png", ["a/1.png", "b/1.png"], None),
        ("1.png", ["a/1.png", "a/2.png", "b/1.png", "b/0.png"], None),
        ("1.png", ["a/1.png", "b/1.png", "b/2.png", *(f"{number}/1.png" for number in range(MOST_FOLDERS))], None),
    ],
)
def test_an_image_is_the_one_whose_path_ends_as_written(written: str, files: list[str], expected: str | None) -> None:
    rows = [ListedImage(Path("data/lists/all.csv"), number, text, TRAIN) for number, text in enumerate((written, "0.png", "2.png"))]
    if expected is None:
        with pytest.raises(
            Refusal, match=r"all.csv:0: 1.png may be a/1.png or b/1.png: write the path relative to the folder of the table"
        ):
            located(rows, files, Path("data"))
    else:
        assert located(rows, files, Path("data"))[0] == expected


def test_a_missing_image_is_told_as_a_corrupt_one(tmp_path: Path) -> None:
    table = write_table(tmp_path, "pictures/0.png", "pictures/9.png", "pictures/2.png", "pictures/3.png")
    with pytest.raises(Refusal, match=r"1 of 4 images cannot be used: lists/pictures/9\.png"):
        values(settings(tmp_path, table=table))


@pytest.mark.parametrize("as_struct", [False, True])
def test_the_images_of_a_parquet_file_are_read_in_order_across_its_row_groups(tmp_path: Path, as_struct: bool) -> None:
    images = [{"bytes": picture(value), "path": None} if as_struct else picture(value) for value in GREYS]
    assert values(settings(write_parquet(tmp_path / "a.parquet", images))) == list(zip(LABELS, GREYS, strict=True))


def test_a_table_outside_the_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"must be a path inside the folder source\.root"):
        settings(tmp_path, table=Path("../all.csv"))


def test_a_column_without_images_is_refused_and_an_empty_image_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [picture(1), None, picture(2), picture(3)])
    with pytest.raises(Refusal, match=r"source\.image_column: .* the column label has values of type string"):
        settings(path, image_column="label").open(workers=1)
    with pytest.raises(Refusal, match="1 of 4 images cannot be used: 2: cannot be decoded"):
        values(settings(path))
