"""Images in folders, tar and zip archives: what is read, what is refused, and that no thread changes a byte."""

import pickle
import tracemalloc
from pathlib import Path

import psutil
import pytest
from PIL import Image

from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.prepare.inputs import image_files
from pipeline.prepare.reading import archives, file_tree
from pipeline.sources import image_folder

from .pictures import FILES, dataset, encoded, gathered, picture, write_folder, write_tar, write_zip


def settings(root: Path, **changes: object) -> image_folder.Settings:
    fields = (
        {"image_size": 8, "channels": 3, "on_corrupt": "fail", "max_pixels": 10_000, "white": None, "valid": 0.0, "test": 0.0}
        | {"seed": 1, "folds": None, "fold": 0, "duplicates": "keep"}
        | changes
    )
    return image_folder.Settings(name="image_folder", root=root, **fields)  # type: ignore[arg-type]


def refusal(root: Path, **changes: object) -> str:
    with pytest.raises(Refusal) as caught:
        gathered(settings(root, **changes).open(workers=2))
    return str(caught.value)


def values(root: Path, **changes: object) -> dict[str, list[tuple[str, int]]]:
    """For each split, the class and the grey value of each sample."""
    raw_dataset = settings(root, **changes).open(workers=2)
    inputs = gathered(raw_dataset)
    names = {split: [raw_dataset.task.classes[number] for number in numbers] for split, numbers in raw_dataset.targets.items()}
    return {split: list(zip(names[split], inputs[split][:, 4, 4, 0].tolist(), strict=True)) for split in inputs}


EXPECTED = {TRAIN: [("cat", 10), ("cat", 20), ("dog", 200), ("dog", 210), ("dog", 220)], TEST: [("cat", 30), ("dog", 230)]}


def test_a_folder_and_a_zip_are_read_in_the_order_of_their_names(tmp_path):
    contents = dict(reversed(dataset().items()))
    assert values(write_folder(tmp_path / "folder", contents)) == EXPECTED
    assert values(write_zip(tmp_path / "all.zip", contents)) == EXPECTED


def test_a_tar_is_read_in_its_own_order(tmp_path):
    for mode in ("w", "w:gz", "w:bz2", "w:xz"):
        found = values(write_tar(tmp_path / "archive", dataset(), mode))
        assert found == {TRAIN: EXPECTED[TRAIN], TEST: EXPECTED[TEST][::-1]}, mode


@pytest.mark.parametrize("write", [write_folder, *(pytest.param(each, marks=pytest.mark.slow) for each in (write_tar, write_zip))])
def test_processes_decode_to_the_same_bytes_and_words_as_threads(tmp_path, monkeypatch, capsys, write) -> None:
    contents = {f"{'cd'[number % 2]}/{number:03}.png": picture(number) for number in range(200)}
    contents |= {"d/003.png": b"no image", "c/150.png": contents["c/150.png"][:40]}
    root = write(tmp_path / "all", contents)
    found = []
    for many in (10**9, 1):
        monkeypatch.setattr(image_files, "MANY", many)
        monkeypatch.setattr(image_files, "CHUNK_SAMPLES", 16)
        raw_dataset = settings(root, on_corrupt="skip").open(workers=2)
        blocks = [(block.split, block.positions.tolist(), block.inputs.tobytes()) for block in raw_dataset.blocks()]
        found.append((blocks, capsys.readouterr().out, refusal(root), refusal(root, max_pixels=10)))
    assert found[0] == found[1]
    blocks, said, corrupt, oversized = found[0]
    assert sum(len(positions) for _, positions, _ in blocks) == 198
    assert said.count(f" in {root}: cannot be decoded (") == 2
    assert ".png: cannot be decoded (" in corrupt
    assert "declares more than 10 pixels: remove it, or raise source.max_pixels" in oversized


@pytest.mark.parametrize(("samples", "workers", "processes"), [(7, 4, 0), (8, 5, 4), (8, 1, 0), (80, 9, 9)])
def test_many_images_are_decoded_by_processes_and_no_more_than_are_worth_their_start(
    tmp_path, monkeypatch, samples: int, workers: int, processes: int
) -> None:
    asked = [0]

    def recorded(function, items, *, workers, prepare):
        asked.append(workers)
        return ((item, function(item)) for item in items)

    monkeypatch.setattr(image_files, "MANY", 8)
    monkeypatch.setattr(image_files, "on_processes", recorded)
    root = write_folder(tmp_path, {f"{'cd'[number % 2]}/{number:03}.png": picture(number) for number in range(samples)})
    assert sum(len(block.positions) for block in settings(root).open(workers=workers).blocks()) == samples
    assert asked[-1] == processes


def test_a_zip_that_was_replaced_is_opened_again(tmp_path) -> None:
    """A worker of a cluster reads one archive after another, perhaps with the same name."""
    path = tmp_path / "all.zip"
    for value in (1, 2):
        tree = archives.open_tree(write_zip(path, {"cat/a.png": picture(value)}))
        assert pickle.loads(pickle.dumps(tree)).read("cat/a.png") == picture(value)  # noqa: S301


def test_what_is_refused_while_it_is_read_is_not_left_out_as_corrupt(tmp_path, monkeypatch) -> None:
    root = write_folder(tmp_path / "images", dataset())
    blocks = settings(root, on_corrupt="skip").open(workers=1).blocks()
    monkeypatch.setattr(file_tree, "MAX_MEMBER_BYTES", 10)
    with pytest.raises(Refusal, match=r"has \d+ bytes, more than 10: remove or shrink it$"):
        list(blocks)


def test_a_zip_is_closed_when_all_of_it_was_read(tmp_path) -> None:
    path = write_zip(tmp_path / "all.zip", dataset())
    assert values(path)
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


@pytest.mark.parametrize("prefix", ["./", "./pets/"])
def test_one_enclosing_folder_does_no_harm(tmp_path, prefix):
    contents = {prefix + name: data for name, data in dataset().items()}
    assert values(write_tar(tmp_path / "all.tar", contents))[TRAIN] == EXPECTED[TRAIN]
    flat = {f"{prefix}{name.partition('/')[2]}": data for name, data in dataset().items()}
    assert set(values(write_zip(tmp_path / "flat.zip", flat))) == {TRAIN}


def test_folders_without_splits_are_all_train(tmp_path):
    names = {"cat/1.png": 10, "dog/1.png": 200, "train/1.png": 90}
    assert values(write_folder(tmp_path, dataset(names))) == {TRAIN: [("cat", 10), ("dog", 200), ("train", 90)]}


def test_validation_has_several_names(tmp_path):
    for name in ("valid", "val", "validation", "Val"):
        root = write_folder(tmp_path / name, dataset({**FILES, f"{name}/cat/1.png": 1}))
        assert set(values(root)) == {TRAIN, VALID, TEST}


READ = {
    "subfolders": (["cat/tabby/1.png", "cat/siamese/1.png", "dog/1.png", "dog/pug/a/1.png"], {TRAIN: ["cat", "cat", "dog", "dog"]}),
    "one subfolder each": (["cat/images/1.png", "dog/images/1.png"], {TRAIN: ["cat", "dog"]}),
    "several enclosing folders": (["a/b/c/cat/1.png", "a/b/c/dog/1.png"], {TRAIN: ["cat", "dog"]}),
    "other names of splits": (
        ["Training/a/1.png", "Training/b/1.png", "Testing/b/x/1.png", "dev/a/1.png"],
        {TRAIN: ["a", "b"], TEST: ["b"], VALID: ["a"]},
    ),
    "numbers": ([f"{number}/1.png" for number in (10, 9, 1)], {TRAIN: ["1", "9", "10"]}),
    "spellings": (
        ["Cafe\u0301/1.png", "Caf\u00e9/2.png", "Tea/1.png", "1.0/1.png", "1/1.png"],
        {TRAIN: ["1", "1", "Caf\u00e9", "Caf\u00e9", "Tea"]},
    ),
    "cases": (["Cat/1.png", "cat/2.png", "dog/1.png"], {TRAIN: ["cat", "cat", "dog"]}),
    "letters": (["a/1.png", "A/1.png", "b/1.png"], {TRAIN: ["A", "a", "b"]}),
}


@pytest.mark.parametrize("case", READ)
def test_layouts_of_published_data_are_read(tmp_path, case):
    names, expected = READ[case]
    dataset = settings(write_zip(tmp_path / "data.zip", {name: picture(number) for number, name in enumerate(names)})).open(workers=1)
    assert {split: [dataset.task.classes[number] for number in sorted(numbers)] for split, numbers in dataset.targets.items()} == expected
    assert dataset.task.classes == tuple(dict.fromkeys(expected[TRAIN])), "the order of the classes"
    assert len(gathered(dataset)[TRAIN]) == len(expected[TRAIN])
    assert len(dataset.notes) == (case == "cases")


def test_names_in_a_zip_are_utf8_without_the_flag_or_else_cp437(tmp_path):
    for encoding in ("utf-8", "cp437"):
        path = write_zip(tmp_path / f"{encoding}.zip", dict.fromkeys(["K__tzlen/1.png", "Hund/1.png"], picture(1)))
        name = "Kätzlen".encode(encoding)
        path.write_bytes(path.read_bytes().replace(b"K__tzlen", name.ljust(8, b"n")))
        assert settings(path).open(workers=1).task.classes == ("Hund", "Kätzlen" if encoding == "utf-8" else "Kätzlenn")


def test_clutter_is_no_image(tmp_path):
    clutter = ["README.md", "train/.DS_Store", "train/cat/.hidden.png", "train/dog/Thumbs.db", "__MACOSX/train/cat/._a.png", "labels.txt"]
    write_folder(tmp_path, dataset() | dict.fromkeys(clutter, b"clutter"))
    (tmp_path / ".ipynb_checkpoints").mkdir()
    assert values(tmp_path) == EXPECTED


def test_classes_are_sorted_by_bytes_and_an_empty_folder_is_none(tmp_path):
    write_folder(tmp_path, dataset({"train/é/1.png": 1, "train/B/1.png": 1, "train/a/1.png": 1, "train/a-b/1.png": 1}))
    (tmp_path / "train/empty").mkdir()
    assert settings(tmp_path).open(workers=1).task.classes == ("B", "a", "a-b", "é")


LAYOUTS = {
    "no folders": (["a.png"], "has no files arranged as SPLIT/CLASS/file"),
    "nothing": (["README"], "has no files"),
    "versions of one set": (
        [*(f"v{number}/data/{name}/1.png" for number in (1, 2) for name in ("cat", "dog")), "v2/logo/1.png"],
        "the folders v1, v2 have folders of the same names (cat, dog), so it is not clear",
    ),
    "splits in classes": (["cat/train/1.png", "dog/train/1.png"], "have folders of the same names (train), so it is not clear"),
    "a split without classes": (["train/cat/1.png", "train/dog/1.png", "valid/1.png"], "valid/1.png: is not in a class folder"),
    "a stray image": (["train/cat/1.png", "test/cat/1.png", "train/1.png"], "train/1.png: is not in a class folder"),
    "splits without classes": (["train/1.png", "test/1.png"], "has splits (test, train) without class folders"),
    "something beside the splits": (["train/cat/1.png", "extra/cat/1.png"], "extra/ contains folders but is not a split"),
    "one split twice": (["train/cat/1.png", "val/cat/1.png", "valid/cat/1.png"], "two folders for one split (val, valid)"),
    "no train": (["test/cat/1.png", "valid/cat/1.png"], "no train folder"),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_layout_that_is_not_clear_is_refused(tmp_path, case):
    names, message = LAYOUTS[case]
    assert message in refusal(write_folder(tmp_path / "data", dict.fromkeys(names, picture(1))))


def test_a_split_without_an_image_is_refused(tmp_path):
    write_folder(tmp_path, dataset())
    (tmp_path / "valid/cat").mkdir(parents=True)
    assert "valid/ contains no class folder with files" in refusal(tmp_path)


BROKEN = {
    "text.png": b"no image at all",
    "cut.jpg": picture(50, "JPEG", side=64)[:-200],
    "float.tif": encoded(Image.new("F", (9, 9)), "TIFF"),
    "deep.tif": encoded(Image.new("I", (9, 9), 70_000), "TIFF"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_corrupt_image_stops_or_is_left_out_by_name(tmp_path, capsys, name):
    root = write_tar(tmp_path / "all.tar", dataset() | {f"train/cat/{name}": BROKEN[name]})
    message = refusal(root)
    assert f"all.tar: 1 of 8 images cannot be used: train/cat/{name}: cannot be decoded (" in message
    assert "source.on_corrupt: skip" in message
    assert "0x" not in message
    assert values_without_corrupt(root) == EXPECTED[TRAIN]
    assert f"prepare: skipped train/cat/{name} in {root}: cannot be decoded" in capsys.readouterr().out


def values_without_corrupt(root: Path) -> list[tuple[str, int]]:
    raw_dataset = settings(root, on_corrupt="skip").open(workers=2)
    return [
        (raw_dataset.task.classes[raw_dataset.targets[TRAIN][position]], int(pixels[4, 4, 0]))
        for block in raw_dataset.blocks()
        if block.split == TRAIN
        for position, pixels in zip(block.positions, block.inputs, strict=True)
    ]


def test_the_bound_is_ours_and_not_that_of_pillow(tmp_path, recwarn):
    write_folder(tmp_path, dataset() | {"train/cat/large.png": encoded(Image.new("1", (9_500, 9_500)))})
    assert len(gathered(settings(tmp_path, max_pixels=9500**2, channels=1).open(workers=1))[TRAIN]) == 6
    assert not recwarn.list
    for on_corrupt in ("fail", "skip"):
        message = refusal(tmp_path, on_corrupt=on_corrupt, max_pixels=9500**2 - 1)
        assert "train/cat/large.png: declares more than 90249999 pixels: remove it, or raise source.max_pixels" in message


@pytest.mark.parametrize(("write", "name"), [(write_tar, "./train/cat/a.png"), (write_zip, "train//cat/a.png")])
def test_a_file_under_two_spellings_of_its_name_is_refused(tmp_path, write, name):
    root = write(tmp_path / "images", {**dataset(), name: picture(99)})
    assert "cat/a.png: occurs twice: create the archive again" in refusal(root)


def test_a_tar_that_ends_or_breaks_between_two_members_is_refused(tmp_path):
    path = write_tar(tmp_path / "all.tar", dataset())
    whole = path.read_bytes()
    header = whole.index(b"train/dog/c.png")
    path.write_bytes(whole[:header])
    assert "the end is missing" in refusal(path)
    for damaged in (whole[:header] + b"?" + whole[header + 1 :], whole[: header + 100]):
        path.write_bytes(damaged)
        assert f"a damaged header or a second archive at byte {header}" in refusal(path)


def test_a_tar_that_changes_while_it_is_read_is_noticed(tmp_path):
    root = write_tar(tmp_path / "all.tar", dataset())
    raw_dataset = settings(root).open(workers=1)
    write_tar(root, {"train/cat/a.png": picture(1)})
    with pytest.raises(Refusal, match="the archive was changed while it was read"):
        gathered(raw_dataset)


def test_links_in_a_folder_are_followed(tmp_path):
    write_folder(tmp_path / "elsewhere", dataset({"1.png": 77}))
    root = write_folder(tmp_path / "data", dataset())
    (root / "train/eel").symlink_to(tmp_path / "elsewhere")
    assert ("eel", 77) in values(root)[TRAIN]


def test_memory_is_bounded_by_the_blocks_in_flight(tmp_path):
    """100 MB decoded pass through, while a few blocks are in memory."""
    pictures = [picture(value, "JPEG", side=32) for value in (1, 2, 3)]
    root = write_tar(tmp_path / "all.tar", {f"{'ab'[i % 2]}/{i}.jpg": pictures[i % 3] for i in range(512)})
    raw_dataset = settings(root, image_size=256).open(workers=2)
    tracemalloc.start()
    decoded_bytes = sum(block.inputs.nbytes for block in raw_dataset.blocks())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoded_bytes == 512 * 256 * 256 * 3
    assert peak_bytes < decoded_bytes * 0.7
