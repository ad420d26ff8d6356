"""`predict` and `load_model` for texts: each line gets the answer of the evaluation, and a line that is no text is named."""

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import PIL.Image
import pytest
import torch

from pipeline import load_model
from pipeline.__main__ import main
from pipeline.core.prepared import Split
from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.tokenizer_description import TokenizerDescription
from pipeline.evaluate.reports.metrics import Predictions
from pipeline.inference import model_file, networks
from pipeline.inference.batches import loader
from pipeline.inference.model_file import Manifest
from pipeline.inputs.text import predict as text
from pipeline.inputs.text.description import TextInputs
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tools.predict import command, raw_inputs
from tests.models.text_models import CLASSIFIERS, build
from tests.tools.predict.conftest import CLASSES, Predict

LENGTH = 12
WORDS = ("the", "cat", "dog", "street", "when", "café", "?", "a")  # as many as `build` expects
SPEC = Spec(
    inputs=TextInputs(length=LENGTH, tokenizer=TokenizerDescription(kind="word", vocabulary=WORDS, normalization=("lowercase",))),
    targets=ClassTargets(classes=CLASSES),
)


@pytest.fixture
def text_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write(tmp_path, monkeypatch, CLASSIFIERS[1])


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> Path:
    """Write `model.safetensors` with large random weights to the folder, which becomes the working folder."""
    monkeypatch.chdir(folder)
    network = build(settings, length=LENGTH)
    weights = {name: tensor * (0 if name == "head.bias" else 4) for name, tensor in network.state_dict().items()}
    params = {"model": settings, "train": {"deterministic": True, "channels_last": False}}
    path = folder / "model.safetensors"
    model_file.export(path, weights, Manifest(params=params, spec=SPEC, precision="fp32", step=1, inputs={}, fingerprint={}))
    return Path(path.name)


def random_texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice((*WORDS, "zebra", "Cat"), random.integers(1, LENGTH + 4))) for _ in range(count)]


def test_predictions_for_the_texts_of_a_split_equal_the_evaluation(tmp_path, monkeypatch, predict: Predict, cpu: torch.device) -> None:
    path, texts = write(tmp_path, monkeypatch, CLASSIFIERS[5]), random_texts(60)
    model, _ = model_file.load(path)
    rows, lengths = Tokenizer(SPEC.inputs.tokenizer).rows(texts, LENGTH)
    assert (lengths > LENGTH).any()
    split = Split(rows, np.zeros(len(rows), np.int64), SPEC.inputs.lengths(rows))
    batches = loader.scoring(loader.SplitTensors(split, cpu), batch_size=25)
    logits = np.concatenate([outputs.numpy() for outputs, _ in networks.predict(model, batches, precision="fp32", device=cpu)])
    evaluated = Predictions.of(logits, split.targets)
    assert len(set(evaluated.predicted.tolist())) > 1, "the text matters"

    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    done = predict("texts.txt", "--batch-size", 7)
    assert (done.code, len(done.errors)) == (0, 1)
    assert [record["input"] for record in done.records] == [f"texts.txt:{number}" for number in range(1, 61)]
    assert [record["class"] for record in done.records] == [CLASSES[number] for number in evaluated.predicted]
    assert np.allclose([record["probability"] for record in done.records], evaluated.confidence, rtol=1e-5, atol=0)


def test_a_line_that_is_no_text_is_named_and_the_others_are_predicted(text_model: Path, predict: Predict, monkeypatch) -> None:
    monkeypatch.setattr(text, "LONGEST_FIELD", 100)
    lines = [b"\xef\xbb\xbfthe cat", b"", b"caf\xe9", b"   ", b"the cat\r", b"the cat " * 12, b"x" * 100, b"y" * 101, b"the cat"]
    Path("mixed.txt").write_bytes(b"\n".join(lines))
    done = predict("mixed.txt", "absent.txt")
    assert done.code == 1
    assert [record["input"] for record in done.records] == ["mixed.txt:1", "mixed.txt:5", "mixed.txt:6", "mixed.txt:7"]
    assert done.records[0]["top"] == done.records[1]["top"]
    assert done.errors == [
        "error: mixed.txt:2: has an empty text: write a text, or remove the row or file",
        (
            'error: mixed.txt:3: is not UTF-8 (byte 0xE9): name its encoding by `--encoding cp1252` for "\u00e9", `cp1250` for "\u00e9", '
            '`cp1251` for "\u0439", or another one that Python knows'
        ),
        "error: mixed.txt:4: has an empty text: write a text, or remove the row or file",
        "error: mixed.txt: line 8 has more than 100 characters: divide the line",
        "error: absent.txt: there is no such file; a text itself is piped to the input `-`, or in Python passed as a str",
        "note: 1 text has more than the 12 tokens that the model reads, and the rest was left out: first mixed.txt:6",
    ]
    [of_text] = predict("the cat " * 40).errors
    assert of_text.endswith(": there is no such file; a text itself is piped to the input `-`, or in Python passed as a str")


def test_the_rows_of_a_table_are_texts_and_its_header_and_labels_are_not(text_model: Path, predict: Predict) -> None:
    Path("a.csv").write_text('id,text,label\n1,"the cat, the\nmat",a\n2,,b\n3,when is the cat ?,a\n', encoding="utf-8")
    Path("a.jsonl").write_text('{"text": "the cat, the\\nmat"}\n{"text": "when is the cat ?"}\n', encoding="utf-8")
    Path("a.tsv").write_text("a\tthe cat on the mat\na\twhen is the cat ?\nb\tthe mat is\nb\tis the mat\n", encoding="utf-8")
    Path("two.csv").write_text("title,text\nthe cat,on the mat\nwhen is,the cat ?\n", encoding="utf-8")
    done = predict("a.csv", "a.jsonl", "two.csv", "--column", "text")
    assert [record["input"] for record in done.records] == ["a.csv:2", "a.csv:5", "a.jsonl:1", "a.jsonl:2", "two.csv:2", "two.csv:3"]
    assert [record["top"] for record in done.records[:2]] == [record["top"] for record in done.records[2:4]]
    assert done.errors == ["error: a.csv:4: has an empty text: write a text, or remove the row or file"]
    done = predict("a.tsv", "--column", 2)
    assert [record["input"] for record in done.records] == [f"a.tsv:{line}" for line in (1, 2, 3, 4)]
    done = predict("two.csv")
    assert (done.code, done.records) == (1, [])
    assert done.errors == [
        "error: two.csv: is a table, and the model file does not say from which column its inputs are: add --column NAME with one of its columns, title, text"
    ]


def test_lines_with_tabs_are_texts_unless_a_column_is_named(text_model: Path, predict: Predict) -> None:
    Path("rows.txt").write_text("".join(f"{number}\tthe cat\ta {WORDS[number % 8]}\n" for number in range(20)), encoding="utf-8")
    lines, rows = predict("rows.txt").records, predict("rows.txt", "--column", 2).records
    assert [record["input"] for record in lines] == [record["input"] for record in rows]
    assert len({json.dumps(record["top"]) for record in rows}) == 1 < len({json.dumps(record["top"]) for record in lines})


def test_texts_in_another_encoding_are_read_by_its_name_or_their_byte_order_mark(text_model: Path, predict: Predict) -> None:
    content = "the caf\u00e9 cat\nwhen is the cat ?\n"
    Path("a.txt").write_text(content, encoding="utf-8")
    Path("a.csv").write_text("id,text\n1," + content.replace("\n", "\n2,", 1), encoding="cp1252")
    Path("marked.txt").write_text(content, encoding="utf-16")
    Path("b.txt").write_text(content, encoding="cp1252")
    Path("wide.txt").write_text(content, encoding="utf-16-be")
    Path("unmarked.txt").write_text(content, encoding="utf-16-le")
    [expected, *others] = [
        [record["top"] for record in predict(*words).records]
        for words in (
            ["a.txt"],
            ["marked.txt"],
            ["--encoding", "cp1252", "b.txt"],
            ["--encoding", "utf-16-be", "wide.txt"],
            ["--encoding", "utf-16", "unmarked.txt"],
            ["--encoding", "cp1252", "--column", "text", "a.csv"],
        )
    ]
    assert others == [expected] * 5
    assert "name its encoding by `--encoding cp1252` for" in predict("--column", "text", "a.csv").errors[0]
    assert "is no encoding that Python knows: write utf-8" in predict("--encoding", "cp", "a.txt").errors[0]


def test_a_file_that_begins_with_nul_characters_is_refused_and_a_later_line_is_named(
    text_model: Path, predict: Predict, monkeypatch
) -> None:
    monkeypatch.setattr(raw_inputs, "LOOKED_AT_BYTES", 100)
    Path("folder").mkdir()
    PIL.Image.new("RGB", (9, 9)).save("folder/a.png")
    Path("folder/late").write_bytes(b"the cat\n" * 20 + b"the\0cat\nwhen ?\n")
    Path("wide.txt").write_text("the cat\n", encoding="utf-16-le")
    reason = "has a NUL character, so it is no text in UTF-8: leave it out, or name its encoding, as by `--encoding utf-16-le`"
    done = predict("folder", "wide.txt")
    assert [record["input"] for record in done.records] == [*(f"folder/late:{line}" for line in range(1, 21)), "folder/late:22"]
    assert (done.code, done.errors) == (
        1,
        [
            f"error: folder/a.png: {reason}",
            "error: folder/late:21: has a NUL character, so it is no text: remove it",
            f"error: wide.txt: {reason}",
        ],
    )


def test_folders_archives_and_standard_input_have_the_same_lines(text_model: Path, predict: Predict, monkeypatch) -> None:
    text = "the cat\nwhen ?\n"
    Path("folder").mkdir()
    Path("folder/a.txt").write_text(text, encoding="utf-8")
    with tarfile.open("a.tar", "w") as archive:
        archive.add("folder/a.txt", "a.txt")
    np.save("a.npy", np.zeros((2, LENGTH), np.int32))
    expected = [record["top"] for record in predict("folder/a.txt").records]
    for name in ("folder", "a.tar"):
        done = predict(name)
        assert [record["input"] for record in done.records] == [f"{name}/a.txt:1", f"{name}/a.txt:2"]
        assert [record["top"] for record in done.records] == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode()))))
    done = predict("-")
    assert ([record["input"] for record in done.records], [record["top"] for record in done.records]) == (["-:1", "-:2"], expected)
    assert predict("a.npy").errors == ["error: a.npy: is of type ndarray: give a text (str), or the path of a text file (pathlib.Path)"]


class Lines(io.RawIOBase):
    """A pipe from which 60 lines arrive, one at a time. `given` counts them."""

    given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.given == 60:
            return 0
        self.given += 1
        buffer[:8] = b"the cat\n"
        return 8


def test_standard_input_is_read_a_batch_at_a_time(text_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, ahead = Lines(), list[int]()

    def count(predictions: Iterator[Any]) -> None:
        ahead.extend(pipe.given - number for number, _ in enumerate(predictions))

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(pipe)))
    monkeypatch.setattr(command, "print_lines", count)
    assert main(["predict", "model.safetensors", "-", "--batch-size", "5"]) == 0
    assert len(ahead) == 60
    assert max(ahead) <= 6


def test_in_python_a_string_is_a_text_and_a_path_is_a_file(text_model: Path) -> None:
    model = load_model(text_model)
    Path("file.txt").write_text("the cat\nwhen ?\n", encoding="utf-8")
    (single,) = model.predict("the cat")
    several = list(model.predict(["the cat", Path("file.txt"), "file.txt " * 9]))
    assert [each.input for each in several] == ["[0]", "file.txt:1", "file.txt:2", "[2]"]
    assert single.probability == pytest.approx(several[0].probability)
    assert several[0].probability == pytest.approx(several[1].probability)
    assert len(list(model.predict(Path("file.txt")))) == 2
    assert model.reader.note().startswith("1 text has more than the 12 tokens")  # type: ignore[attr-defined]


def test_a_value_that_is_no_text_is_refused_with_its_position(text_model: Path) -> None:
    model = load_model(text_model)
    for value, message in (
        ("", r"\[0\]: has an empty text"),
        (" ", r"\[0\]: has an empty text"),
        (b"the cat", r"\[0\]: is of type bytes: give a text"),
    ):
        with pytest.raises(ValueError, match=message):
            list(model.predict([value]))
    with pytest.raises(ValueError, match=r"inputs: is a DataFrame, .*: give one of its columns, as by `frame\[NAME\]`"):
        list(model.predict(pandas.DataFrame({"text": ["the cat"]})))


def test_a_byte_order_mark_counts_more_than_the_named_encoding_in_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    monkeypatch.setattr(text.Reader, "line", lambda _, line, place: read.append(f"{place} {line}"))
    reader = text.Reader(SPEC.inputs)
    reader.encoding = "cp1252"
    list(reader.lines("a.txt", io.BufferedReader(io.BytesIO("\ufeffé1\né\r2\r\n".encode()))))
    assert read == ["a.txt:1 é1", "a.txt:2 é\r2"]
