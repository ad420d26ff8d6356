"""The stage prepare from real files to prepared data, and what it says of datasets that nothing can be learned from."""

import errno
import io
import json
import re
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import Prepared
from pipeline.core.raw_dataset import SPLITS, TEST, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.spec import MOST_BYTES, Spec
from pipeline.inference import tensor_file
from pipeline.inference.model_file import HEADER_BYTES
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.inputs import image_files
from pipeline.prepare.inputs.image import Statistics
from pipeline.prepare.inputs.text import TextSettings
from pipeline.prepare.params import PrepareParams
from pipeline.prepare.stage import prepare
from pipeline.sources import arrays, digits, image_folder
from pipeline.tasks.classification.targets import ClassTargets
from tests.pretrained_tokenizers import FITTED

WORDS = {"tokenizer": "word", **FITTED, "vocabulary": 65_536, "min_count": 1, "normalization": (), "max_length": 8}
SETTINGS = TextSettings(name="text", root=Path("x"), valid=0.0, test=0.1, seed=1, folds=None, fold=0, **WORDS)


def picture(value):
    stream = io.BytesIO()
    Image.new("RGB", (6, 6), (value, value, value)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def root(tmp_path):
    """Two classes of ten images each, without splits."""
    for index, name in enumerate(("cat", "dog")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "images" / name / f"{number}.png").write_bytes(picture(100 * index + number))
    return tmp_path / "images"


def broken(*_):
    raise RuntimeError("the disk broke")


def run(root, top, *, workers=None, **changes):
    fields = (
        {"image_size": 6, "channels": 1, "on_corrupt": "fail", "max_pixels": 100, "white": None, "valid": 0.1, "test": 0.2}
        | {"seed": 1, "folds": None, "fold": 0, "duplicates": "keep"}
        | changes
    )
    source = image_folder.Settings(name="image_folder", root=root, **fields)
    # constructed, as the choice of the source by its name is the loader's affair
    prepare(PrepareParams.model_construct(source=source), Paths(top), Environment(PIPELINE_WORKERS=workers))
    return Prepared.open(Paths(top).prepared)


def keys(top, split):
    return [json.loads(line) for line in (Paths(top).prepared / f"{split}-keys.jsonl").read_text().splitlines()]


def refusal(root, top, **changes):
    with pytest.raises(Refusal) as caught:
        run(root, top, **changes)
    return str(caught.value)


def test_images_are_split_and_stored(root, tmp_path, capsys):
    prepared = run(root, tmp_path)
    assert {name: len(split) for name, split in prepared.splits.items()} == {"train": 14, "valid": 2, "test": 4}
    everything = np.concatenate([split.inputs[:, 0, 0, 0] for split in prepared.splits.values()])
    assert sorted(everything.tolist()) == [*range(10), *range(100, 110)]
    for split in prepared.splits.values():
        assert np.array_equal(split.inputs[:, 0, 0, 0] >= 100, split.targets == 1)
    single, *splits, result = capsys.readouterr().out.splitlines()
    assert single.startswith(
        "prepare: 20 of 20 images have only one colour: cat/0.png (value 0), cat/1.png (value 1), cat/2.png (value 2) and 17"
    )
    assert splits == [
        "prepare: train: 14 samples, from 7 of class cat to 7 of class dog",
        "prepare: valid: 2 samples",
        "prepare: test: 4 samples",
    ]
    assert result == "prepare: 20 samples of image inputs (6, 6, 1), 2 outputs"


def deep(folder, factor):
    """Write 20 images of 16 bits with values from 1000 to 4095, times `factor`. Most have a narrow contrast."""
    for number in range(20):
        noise = np.random.default_rng(number).integers(0, 90 if number % 4 else 3095, (6, 6))
        path = folder / "ab"[number // 10] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((factor * (1000 + noise)).astype(np.uint16)).save(path)
    return folder


def test_deep_images_are_stored_by_white_and_refused_where_nothing_is_left_of_them(tmp_path):
    root = deep(tmp_path / "deep", 1)
    message = refusal(root, tmp_path)
    assert "15 of 20 images have one grey level as they are stored, but more in their files: a/1.png (values 10" in message
    assert message.endswith("set source.white to the value that means white, such as source.white=4095")
    prepared = run(root, tmp_path, white=4095)
    assert prepared.spec.inputs.white == 4095
    control = run(deep(tmp_path / "control", 16), tmp_path / "other")
    assert control.spec.inputs.white is None
    assert np.abs(prepared.train.inputs.astype(int) - control.train.inputs).max() <= 1
    Image.fromarray(np.full((6, 6), 5000, np.uint16)).save(root / "a/bright.png")
    assert "1 of 21 images cannot be used: a/bright.png: cannot be decoded (has values up to 5000, but white is 4095" in refusal(
        root, tmp_path, white=4095
    )


def test_images_of_one_colour_are_named_and_refused_if_most_are_equal(root, tmp_path, capsys):
    run(deep(tmp_path / "deep", 1), tmp_path, white=4095)
    assert "one colour" not in capsys.readouterr().out
    for number in range(12):
        (tmp_path / f"deep/a/black{number}.png").write_bytes(picture(0))
    run(tmp_path / "deep", tmp_path, white=4095)
    assert "prepare: 12 of 32 images have only one colour: a/black0.png (value 0)," in capsys.readouterr().out
    for number in range(10):
        (tmp_path / f"deep/b/black{number}.png").write_bytes(picture(0))
    assert "22 of 42 images have only one colour: a/black0.png (value 0)," in refusal(tmp_path / "deep", tmp_path, white=4095)


@pytest.mark.parametrize("duplicates", ["keep", "together"])
def test_a_folder_and_an_archive_have_the_same_splits(root, tmp_path, duplicates):
    with tarfile.open(tmp_path / "images.tar.gz", "w:gz") as archive:
        for name in ("dog", "cat"):
            archive.add(root / name, f"./enclosing/{name}")
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as file:
        for path in root.glob("*/*"):
            file.write(path, path.relative_to(root))
    found = []
    for number, source in enumerate((root, tmp_path / "images.tar.gz", tmp_path / "images.zip")):
        run(source, tmp_path / str(number), duplicates=duplicates)
        found.append([{key.removeprefix("./enclosing/") for key in keys(tmp_path / str(number), split)} for split in SPLITS])
    assert found[0] == found[1] == found[2]
    assert [len(split) for split in found[0]] == [14, 2, 4]


def test_equal_images_are_counted_and_together_go_to_one_split(root, tmp_path, capsys):
    for number in range(10):
        (root / "cat" / f"copy{number}.png").write_bytes(picture(number))
    run(root, tmp_path)
    assert re.search(
        r"prepare: samples with equal inputs are in two splits \(.*[1-9] of 6 samples of test in train.*\): "
        r"`source.duplicates: together` draws equal samples for one split\n",
        capsys.readouterr().out,
    )
    prepared = run(root, tmp_path, duplicates="together")
    assert "equal inputs" not in capsys.readouterr().out
    assert [len(prepared.split(name)) for name in (VALID, TEST)] == [3, 6]
    content = json.loads((Paths(tmp_path).prepared / "spec.json").read_text())
    assert content["splits"]["test"]["also_in"] == {"train": 0, "valid": 0}


def test_a_source_that_no_worker_decodes_says_that_it_uses_no_cluster(tmp_path, capsys):
    source = digits.Settings(name="digits", root=Path("data/README.md"), valid=0.1, test=0.1, seed=1, folds=None, fold=0)
    prepare(PrepareParams.model_construct(source=source), Paths(tmp_path), Environment(PIPELINE_CLUSTER="tcp://127.0.0.1:9"))
    assert (
        "prepare: PIPELINE_CLUSTER is not used: this source has no images to decode and no texts to tokenize\n" in capsys.readouterr().out
    )


def images_in_a_tar(path):
    """Write 120 images to an archive that mixes train and test. Three in a row, the first, the last and one in between are corrupt."""
    corrupt = {0, 40, 41, 42, 77, 119}
    with tarfile.open(path, "w") as archive:
        for number in range(120):
            data = b"broken" if number in corrupt else picture(number)
            member = tarfile.TarInfo(f"{'test' if number % 5 == 1 else 'train'}/{'cat' if number % 2 else 'dog'}/{number}.png")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_processes_write_the_bytes_of_one_thread_and_leave_out_the_same_corrupt_images(tmp_path, monkeypatch, capsys):
    """The expected rows are found without `prepare`: the order of the archive, without the corrupt images."""
    root, found = images_in_a_tar(tmp_path / "all.tar"), []
    monkeypatch.setattr(image_files, "CHUNK_SAMPLES", 8)
    for many, workers in ((10**9, 1), (10**9, 4), (1, 3)):
        monkeypatch.setattr(image_files, "MANY", many)
        top = tmp_path / f"{many}-{workers}"
        prepared = run(root, top, workers=workers, on_corrupt="skip")
        found.append((files.digest(Paths(top).prepared), capsys.readouterr()))
        assert [path.name for path in Paths(top).prepared.iterdir() if path.name.startswith(".")] == []
    assert found[0] == found[1] == found[2]
    values = {name: split.inputs[:, 0, 0, 0].tolist() for name, split in prepared.splits.items()}
    good = [number for number in range(120) if number not in {0, 40, 41, 42, 77, 119}]
    assert values["test"] == [number for number in good if number % 5 == 1]
    assert all(numbers == sorted(numbers) for numbers in values.values())
    assert sorted(values["train"] + values["valid"]) == [number for number in good if number % 5 != 1]
    assert all(np.array_equal(split.targets, split.inputs[:, 0, 0, 0] % 2 == 0) for split in prepared.splits.values())


def decoding_processes():
    alive = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return [child for child in alive if "spawn_main" in " ".join(child.cmdline())]


def kill_processes(*_):
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended already
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()


def test_processes_that_are_killed_in_the_middle_end_the_stage_in_words_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "MANY", 1)
    monkeypatch.setattr(image_files, "CHUNK_SAMPLES", 8)
    monkeypatch.setattr(Statistics, "add", kill_processes)
    message = refusal(images_in_a_tar(tmp_path / "all.tar"), tmp_path, workers=2, on_corrupt="skip")
    assert "PIPELINE_WORKERS: a decoding process was killed" in message
    assert list(Paths(tmp_path).prepared.iterdir()) == []


def test_a_full_disk_is_freed_of_the_drafts(root, tmp_path, monkeypatch):
    monkeypatch.setattr(Statistics, "add", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        run(root, tmp_path)
    assert list(Paths(tmp_path).prepared.iterdir()) == []


def test_processes_end_when_the_stage_fails_however_long_its_error_is_kept(root, tmp_path, monkeypatch):
    """As where the disk breaks: a traceback holds what was going on, and so would hold the processes, which Python waits for at its end."""
    monkeypatch.setattr(image_files, "MANY", 1)
    monkeypatch.setattr(Statistics, "add", broken)
    with pytest.raises(RuntimeError, match="the disk broke") as kept:
        run(root, tmp_path, workers=2)
    assert kept.value.__traceback__
    assert decoding_processes() == []


def test_an_empty_class_folder_is_named(root, tmp_path, capsys):
    (root / "eel").mkdir()
    run(root, tmp_path)
    assert "not classes, because without files: eel" in capsys.readouterr().out


def test_a_needless_share_is_said(tmp_path, capsys):
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "split" / split / name).mkdir(parents=True)
            for number in range(4):
                (tmp_path / "split" / split / name / f"{number}.png").write_bytes(picture(number))
    prepared = run(tmp_path / "split", tmp_path)
    assert {name: len(split) for name, split in prepared.splits.items()} == {"train": 6, "valid": 2, "test": 8}
    said = capsys.readouterr().out
    assert "prepare: test: the dataset has its own test split, so source.test is not used\n" in said
    assert "source.valid" not in said
    assert prepared.digest == run(tmp_path / "split", tmp_path / "again", test=0.0).digest


def test_a_corrupt_image_stops_the_stage_or_is_counted(root, tmp_path, capsys):
    (root / "cat/broken.png").write_bytes(b"broken")
    assert "cat/broken.png: cannot be decoded (is not an image that Pillow can read)" in refusal(root, tmp_path)
    prepared = run(root, tmp_path, on_corrupt="skip")
    assert sum(len(split) for split in prepared.splits.values()) == 20
    said = capsys.readouterr().out
    assert f"prepare: skipped cat/broken.png in {root}: cannot be decoded" in said
    assert ", 1 skipped as corrupt" in said


def arrays_of(folder, names):
    folder.mkdir()
    np.savez(
        folder / "x.npz", inputs=np.zeros((2 * len(names), 1, 1), np.uint8), targets=np.arange(2 * len(names)) % len(names), classes=names
    )
    return arrays.Settings(name="arrays", root=folder / "x.npz", valid=0.0, test=0.5, seed=1, folds=None, fold=0, duplicates="keep")


@pytest.mark.parametrize("name", ["\N{GREEK SMALL LETTER ALPHA}" * 120, '"' * 60], ids=["greek", "quotes"])
def test_class_names_that_no_stage_could_read_back_are_refused_before_anything_is_written(tmp_path, name):
    few, many = ([f"{name}{number}" for number in range(count)] for count in (5_000, 10_000))
    with pytest.raises(Refusal, match=r"has 10000 classes whose names have \d+ bytes in total, more than \d+: shorten the names"):
        prepare(PrepareParams.model_construct(source=arrays_of(tmp_path / "many", many)), Paths(tmp_path), Environment())
    assert not Paths(tmp_path).prepared.exists()
    prepare(PrepareParams.model_construct(source=arrays_of(tmp_path / "few", few)), Paths(tmp_path), Environment())
    assert Prepared.open(Paths(tmp_path).prepared).spec.num_outputs == 5_000


def test_the_largest_tokenizer_and_class_names_fit_the_model_file_together(tmp_path):
    words = [f"{'w' * 100}{number:05d}" for number in range(8_600)]
    tokenizer = SETTINGS.fit_tokenizer([" ".join(words)]).description
    names = tuple(f"{'n' * 240}{number:04d}" for number in range(6_140))
    ClassTargets(classes=names).refuse_unlearnable(np.arange(len(names)), "place")
    spec = Spec(inputs=TextInputs(length=8, tokenizer=tokenizer), targets=ClassTargets(classes=names)).model_dump(mode="json")
    assert len(json.dumps({"spec": spec}, indent=2)) < MOST_BYTES
    tensor_file.save(tmp_path / "model.safetensors", {f"layer.{n}.weight": torch.zeros(1) for n in range(4_000)}, {"spec": spec})
    _, metadata = tensor_file.load(tmp_path / "model.safetensors", header_bytes=HEADER_BYTES)
    assert Spec.model_validate(metadata["spec"]).inputs == TextInputs(length=8, tokenizer=tokenizer)
