"""`predict` gives every image that can be read the answer of the evaluation, and names every other."""

import csv
import io
import math
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet
from scipy.special import softmax

from pipeline.__main__ import main
from pipeline.core.prepared import Split
from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports.metrics import Predictions
from pipeline.inference import model_file, networks, tensor_file
from pipeline.inference.batches import loader
from pipeline.inputs.image.predict import Reader
from pipeline.prepare.reading import archives
from pipeline.prepare.reading.file_tree import Member
from pipeline.prepare.reading.images import Decoder
from pipeline.tasks.classification.predict import Prediction
from pipeline.tools.predict import command
from pipeline.tools.predict.command import TABLE_ROWS, print_table, tables_of
from pipeline.tools.predict.model import load_model
from pipeline.tools.predict.protocols import Chunk
from tests.tools.predict.conftest import CLASSES, Predict, Shape

WriteModel = Callable[..., Path]


def random_images(count: int, shape: Shape) -> NDArray[np.uint8]:
    random = np.random.default_rng(0)
    brightness = np.linspace(20, 255, count).reshape(-1, 1, 1, 1)
    return (random.random((count, *shape)) * brightness).astype(np.uint8)


def save(images: NDArray[np.uint8], folder: str = "images") -> list[Path]:
    Path(folder).mkdir(exist_ok=True)
    paths = [Path(folder, f"{number:03}.png") for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image.squeeze()).save(path)
    return paths


def archived(name: str, members: dict[str, bytes]) -> Path:
    path = Path(name)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for member, data in members.items():
                packed.writestr(member, data)
        return path
    with tarfile.open(path, "w:gz") as packed:
        for member, data in members.items():
            header = tarfile.TarInfo(member)
            header.size = len(data)
            packed.addfile(header, io.BytesIO(data))
    return path


def test_a_list_of_images_in_another_encoding_is_refused_with_the_option_that_names_it(write_model: WriteModel, predict: Predict) -> None:
    write_model()
    Path("list.csv").write_text("image\nKöln.png\nBonn.png\n", encoding="cp1252")
    (error,) = predict("list.csv", "--column", "image").errors
    assert "error: list.csv:2: is not UTF-8 (byte 0xF6): name its encoding by `--encoding cp1252`" in error


def test_predictions_are_written_to_a_file_whole_or_not_at_all(write_model: WriteModel, predict: Predict, monkeypatch) -> None:
    write_model()
    names = ["a,b.png", 'a"b.png', "a\nb.png", "数\udcff.png"]
    for name, path in zip(names, save(random_images(4, (8, 8, 1))), strict=True):
        path.rename(path.parent / name)
    records = {record["input"]: record for record in predict("images").records}
    monkeypatch.setattr(command, "FILE_ROWS", 3)
    for name in ("x.csv", "x.parquet"):
        assert main(["predict", "model.safetensors", "images", "--output", name]) == 0
    rows = parquet.read_table("x.parquet").to_pylist()
    with Path("x.csv").open(encoding="utf-8", newline="") as file:
        assert [{**row, **{name: float(row[name]) for name in row if "prob" in name}} for row in csv.DictReader(file)] == rows
    assert [row["input"] for row in rows] == [name.encode("utf-8", "backslashreplace").decode() for name in records]
    for row, record in zip(rows, records.values(), strict=True):
        assert [row["class"], row["class_2"], row["class_3"]] == [each["class"] for each in record["top"]]
        assert [row["probability"], row["probability_2"], row["probability_3"]] == [each["probability"] for each in record["top"]]
    before = Path("x.csv").read_bytes()
    Path("images/labels.csv").write_text("of the user", encoding="utf-8")
    replaced = "is one of the inputs, or in a folder of them, and would be replaced: write another path"
    for arguments, message in (
        (["images", "--output", "x.txt"], "--output: x.txt: should be a file whose name ends in .csv or .parquet"),
        (["x.csv", "--output", "./x.csv"], f"--output: x.csv: {replaced}"),
        (["images", "--output", "images/labels.csv"], f"--output: images/labels.csv: {replaced}"),
        (["missing.png", "--output", "x.csv"], "--output: x.csv: is not written, because there is no prediction"),
    ):
        found = predict(*arguments)
        assert (found.code, found.errors[-1]) == (2, f"error: {message}")
    assert Path("x.csv").read_bytes() == before


def test_predictions_for_saved_images_equal_the_evaluation(write_model: WriteModel, predict: Predict, cpu) -> None:
    path, images = write_model((9, 5, 3)), random_images(50, (9, 5, 3))
    model, _ = model_file.load(path)
    split = Split(images, np.zeros(len(images), np.int64))
    batches = loader.scoring(loader.SplitTensors(split, cpu), batch_size=20)
    logits = np.concatenate([outputs.numpy() for outputs, _ in networks.predict(model, batches, precision="fp32", device=cpu)])
    evaluated = Predictions.of(logits, split.targets)
    assert len(set(evaluated.predicted.tolist())) == 3, "each class is predicted"

    save(images)
    done = predict("images", "--batch-size", 7)
    assert (done.code, done.errors) == (0, [])
    assert [record["input"] for record in done.records] == [f"images/{number:03}.png" for number in range(50)]
    assert [record["class"] for record in done.records] == [CLASSES[number] for number in evaluated.predicted]
    assert np.allclose([record["probability"] for record in done.records], evaluated.confidence, rtol=1e-5, atol=0)
    for record, probabilities in zip(done.records, softmax(logits.astype(np.float64), axis=1), strict=True):
        assert [each["class"] for each in record["top"]] == [CLASSES[number] for number in np.argsort(-probabilities)]
        assert np.allclose([each["probability"] for each in record["top"]], np.sort(probabilities)[::-1], rtol=1e-5)


def are_close(found: list[list[dict]], expected: list[list[dict]]) -> bool:
    """Return True if the answers have equal classes and close probabilities: for another batch size, a kernel may sum in another order."""
    pairs = [pair for one, other in zip(found, expected, strict=True) for pair in zip(one, other, strict=True)]
    return all(
        one["class"] == other["class"] and np.isclose(one["probability"], other["probability"], rtol=1e-5, atol=0) for one, other in pairs
    )


def test_folders_archives_arrays_files_and_standard_input_give_equal_answers(write_model, predict: Predict, monkeypatch) -> None:
    write_model()
    images = random_images(6, (8, 8, 1))
    paths = save(images)
    members = {f"deep/{path.name}": path.read_bytes() for path in paths}
    np.save("images.npy", images)
    np.save("flat.npy", images[..., 0])
    expected = [record["top"] for record in predict(*paths).records]
    given = [["images"], [archived("a.zip", members)], [archived("a.tar.gz", members)], ["images.npy"], ["flat.npy"]]
    for names in given:
        done = predict(*names)
        assert (done.code, [record["top"] for record in done.records]) == (0, expected), names
        assert done.records[5]["input"] in ("images/005.png", "a.zip/deep/005.png", "a.tar.gz/deep/005.png", "images.npy[5]", "flat.npy[5]")
    for path, names in ((paths[2], ["-"]), (Path("a.tar.gz"), [f"-/deep/{number:03}.png" for number in range(6)])):
        with path.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            done = predict("-")
        assert [record["input"] for record in done.records] == names
        assert are_close([record["top"] for record in done.records], expected if len(names) > 1 else expected[2:3])


def test_images_of_another_size_are_prepared_as_in_training(write_model: WriteModel, predict: Predict) -> None:
    write_model((8, 8, 3))
    Image.fromarray(random_images(1, (40, 30, 3))[0]).save("photograph.png")
    trained = Decoder("", 8, 3, 10**6, None).decode([Member("photograph.png", Path("photograph.png").read_bytes())])
    np.save("trained.npy", trained[0])
    first, second = predict("photograph.png", "trained.npy", "--batch-size", 1).records
    assert first["top"] == second["top"]


def test_images_of_more_than_eight_bits_are_scaled_as_in_training(write_model: WriteModel, predict: Predict) -> None:
    path = write_model((8, 8, 1), white=4095)
    grey = random_images(2, (8, 8, 1))[1, ..., 0]
    deep = np.rint(grey / 255 * 4095).astype(np.uint16)
    Image.fromarray(grey).save("eight.png")
    Image.fromarray(deep).save("twelve.png")
    Image.fromarray(deep * 2).save("thirteen.png")
    done = predict("eight.png", "thirteen.png", "twelve.png")
    first, second = done.records
    assert first["top"] == second["top"]
    assert any("thirteen.png: cannot be decoded: has values up to" in line and "but white is 4095" in line for line in done.errors)
    opened = next(iter(load_model(path).predict([Image.open("twelve.png")], top_k=1)))
    assert opened.record()["class"] == first["class"]


def test_what_cannot_be_read_is_named_and_the_rest_is_predicted(write_model: WriteModel, predict: Predict) -> None:
    write_model()
    (whole,) = save(random_images(1, (8, 8, 1)))
    jpeg = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(jpeg, "JPEG")
    Path("truncated.jpg").write_bytes(jpeg.getvalue()[:-400])
    Path("red\x1b[31m\n.png").write_bytes(b"no image")
    os.mkfifo("pipe.png")
    Path("empty").mkdir()
    Path("loop/inner").mkdir(parents=True)
    Path("loop/inner/again").symlink_to("..")
    archived("cut.tar.gz", {"a.png": whole.read_bytes()})
    Path("cut.tar.gz").write_bytes(Path("cut.tar.gz").read_bytes()[:-20])
    np.save("floats.npy", np.zeros((2, 8, 8, 1)))
    expected = {
        "absent.png": "cannot be read: No such file or directory",
        "truncated.jpg": "cannot be decoded: image file is truncated",
        "red\\x1b[31m\\n.png": "cannot be decoded: is not an image that Pillow can read",
        "pipe.png": "cannot be read: Is a device, a pipe or a socket",
        "empty": "has no files",
        "loop": "loop/inner/again: is reached twice through links, perhaps one to a parent folder: remove the link",
        "cut.tar.gz": "cannot be read as a complete tar or zip archive",
        "floats.npy": "is an array float64 of shape (8, 8, 1), but the model takes uint8 of shape (8, 8, 1)",
    }
    given = [name.replace("\\x1b", "\x1b").replace("\\n", "\n") for name in expected]
    done = predict(*given, whole)
    assert (done.code, [record["input"] for record in done.records]) == (1, [str(whole)])
    assert len(done.errors) == len(expected)
    for name, reason in expected.items():
        start = f"error: {reason}" if reason.startswith(f"{name}/") else f"error: {name}: {reason}"
        assert [line for line in done.errors if line.startswith(start)], (name, done.errors)


def test_a_damaged_image_in_a_folder_or_archive_is_named_and_hidden_files_are_left_out(write_model: WriteModel, predict: Predict) -> None:
    write_model()
    (path,) = save(random_images(1, (8, 8, 1)))
    Path("images/.DS_Store").write_bytes(b"x")
    Path("images/notes.txt").write_bytes(b"no image")
    archived("a.zip", {"a.png": path.read_bytes(), "b.png": b"no image"})
    done = predict("images", "a.zip")
    assert (done.code, [record["input"] for record in done.records]) == (1, ["images/000.png", "a.zip/a.png"])
    reason = "cannot be decoded: is not an image that Pillow can read"
    assert done.errors == [f"error: images/notes.txt: {reason}", f"error: a.zip/b.png: {reason}"]


def test_tables_between_the_images_of_an_archive_do_not_make_it_be_read_more_than_once(
    write_model: WriteModel, predict: Predict, monkeypatch
) -> None:
    write_model()
    (path,) = save(random_images(1, (8, 8, 1)))
    archived("a.tar.gz", {"a.png": path.read_bytes(), "b.csv": b"image", "c.png": path.read_bytes()})
    passes, contents = list[object](), archives.Tar.contents
    monkeypatch.setattr(archives.Tar, "contents", lambda self, names: passes.append(names) or contents(self, names))
    done = predict("a.tar.gz")
    assert [record["input"] for record in done.records] == ["a.tar.gz/a.png", "a.tar.gz/c.png"]
    assert passes == [["a.png", "c.png"]]


def test_options_below_one_and_no_input_are_refused(write_model: WriteModel, predict: Predict) -> None:
    write_model()
    assert predict("x.png", "--top-k", 0).errors == ["error: top_k: is 0: write 1 or more"]
    assert predict("x.png", "--batch-size", -1).errors == ["error: batch_size: is -1: write 1 or more"]
    with pytest.raises(SystemExit):
        main(["predict", "model.safetensors"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_diverged_weights_are_refused(write_model: WriteModel, predict: Predict, value: float) -> None:
    tensors, metadata = tensor_file.load(write_model())
    tensor_file.save(Path("model.safetensors"), tensors | {"3.bias": tensors["3.bias"] + value}, metadata)
    Image.new("L", (8, 8)).save("image.png")
    done = predict("image.png")
    assert (done.code, done.records) == (2, [])
    assert done.errors[0].startswith("error: image.png: the model's outputs are not finite: its training diverged")


def test_a_model_trained_in_bf16_predicts_in_float32_on_a_cpu_without_a_word(write_model: WriteModel, predict: Predict) -> None:
    write_model()
    save(random_images(3, (8, 8, 1)))
    expected = predict("images")
    write_model(precision="bf16")
    assert predict("images") == expected


def test_only_a_batch_is_held_in_memory(write_model: WriteModel, monkeypatch, capsys) -> None:
    write_model()
    paths = save(random_images(60, (8, 8, 1)))
    decoded: list[int] = []
    read = Reader.read
    monkeypatch.setattr(Reader, "read", lambda self, file: decoded.append(0) or read(self, file))
    ahead: list[int] = []

    def count(predictions) -> None:
        ahead.extend(len(decoded) - number for number, _ in enumerate(predictions))

    monkeypatch.setattr(command, "print_lines", count)
    monkeypatch.setenv("PIPELINE_WORKERS", "2")
    assert main(["predict", "model.safetensors", "--batch-size", "5", *map(str, paths)]) == 0
    assert len(ahead) == 60
    assert max(ahead) <= 5 + 2 * 2 + 1


class Terminal(io.StringIO):
    """Looks like a terminal to the command and to rich."""

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        return re.sub("\x1b[^mK]*[mK]", "", self.getvalue())


def test_a_terminal_gets_a_table_with_names_as_they_are(write_model: WriteModel, monkeypatch, capsys) -> None:
    write_model()
    save(random_images(3, (8, 8, 1)), "[bold]images\x1b[31m")
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["predict", "model.safetensors", "[bold]images\x1b[31m", "absent.png"]) == 1
    assert capsys.readouterr().err == "error: absent.png: cannot be read: No such file or directory\n"
    title, *rows = [line for line in terminal.shown.splitlines() if line.strip()]
    assert title.split() == ["input", "class", "probability", "next"]
    assert [row.split()[0] for row in rows] == [f"[bold]images\\x1b[31m/{number:03}.png" for number in range(3)]
    assert all(name in terminal.shown for name in CLASSES)


def test_a_class_that_is_longer_than_those_before_it_is_not_broken(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", terminal)
    names = ["cat"] * TABLE_ROWS + ["a class of a longer name"]
    print_table([Prediction("a.png", name, 1.0, ((name, 1.0),)) for name in names])
    assert "a class of a longer name" in terminal.shown


def test_progress_is_shown_on_a_terminal_while_a_file_is_written(write_model: WriteModel, predict: Predict, monkeypatch) -> None:
    write_model()
    save(random_images(20, (8, 8, 1)))
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["predict", "model.safetensors", "images", "--output", "x.csv"]) == 0
    assert "inputs" in terminal.shown


def test_a_kept_column_replaces_no_prediction() -> None:
    kept = {title: pa.array(["x"]) for title in ("class", "predicted class")}
    predictor: Any = SimpleNamespace(columns=lambda _: {"class": ["y"]})
    chunk = Chunk(["a"], [None], {"class": kept["class"]})
    assert next(tables_of([(chunk, np.zeros(1))], predictor)).to_pydict() == {"input": ["a"], "predicted class": ["y"], "class": ["x"]}
    with pytest.raises(Refusal, match="--keep: predicted class is the title of another column of the output: rename it in the table"):
        next(tables_of([(chunk._replace(kept=kept), np.zeros(1))], predictor))
