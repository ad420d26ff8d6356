"""A table of pairs of texts is found, trained on, scored by the texts that the model writes, and used to write others."""

import csv
import itertools
import json
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.__main__ import main
from pipeline.core.environment import Paths
from tests import project
from tests.imports import TOP

WORDS = ("red", "blue", "old", "new", "big", "small", "cat", "dog")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with a table of texts of three words, each with the text that has these words backwards."""
    folder = project.make(tmp_path)
    shutil.copytree(TOP / "presets", folder / "presets")
    shutil.copy(TOP / "params.yaml", folder)
    every = list(itertools.product(WORDS, repeat=3))
    random.Random(1).shuffle(every)
    with (folder / "data/words.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("number", "words", "backwards"))
        table.writerows((number, " ".join(words), " ".join(reversed(words))) for number, words in enumerate(every))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    return folder


@pytest.mark.usefixtures("untimed")
def test_the_way_from_a_table_to_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["set", "data=data/words.csv"]) == 2
    assert "add source.target_column=words or source.target_column=backwards for the column to write" in capsys.readouterr().err
    small = ["source.tokenizer=word", "model.width=32", "model.dropout=0.0", "train.epochs=20", "optimizer.learning_rate=5e-3"]
    assert main(["set", "data=data/words.csv", "source.target_column=backwards", *small]) == 0
    assert "text_column: words" in capsys.readouterr().out
    for stage in ("prepare", "train", "evaluate"):
        assert main([stage]) == 0
    scores = json.loads((Paths().metrics / "evaluate.json").read_bytes())["test"]
    assert scores["exact_match"] > 0.9
    assert f"test exact_match {scores['exact_match']:.4f} (between " in capsys.readouterr().out
    table = pq.read_table(Paths().predictions).to_pylist()
    assert sum(row["written"] == row["target"] for row in table) == round(scores["exact_match"] * len(table))

    assert main(["predict", str(Paths().model), "data/words.csv", "--beam", "2", "--output", "written.csv"]) == 0
    with Path("written.csv").open(encoding="utf-8", newline="") as written, Path("data/words.csv").open(encoding="utf-8") as given:
        equal = [row["text"] == pair["backwards"] for row, pair in zip(csv.DictReader(written), csv.DictReader(given), strict=True)]
    assert sum(equal) > 0.9 * len(equal)
    assert [each.text for each in pipeline.load_model(Paths().model).predict("cat big old")] == ["old big cat"]
    capsys.readouterr()
    assert main(["export", "--format", "pt2"]) == 2
    assert "writes texts token by token" in capsys.readouterr().err
    assert main(["compare", str(Paths().model), str(Paths().model)]) == 0
    assert main(["report"]) == 0


def test_a_pair_without_a_text_is_named_or_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = "".join(f"red {word}\t{word} red\n" for word in WORDS)
    Path("data/broken.tsv").write_text("a\tb\n" + good + "old dog\t\nnew dog\t \n\tnew\nbig cat\tcat big\n", encoding="utf-8")
    keys = ["source.root=data/broken.tsv", "source.text_column=a", "source.target_column=b"]
    assert main(["set", "preset=dates-transformer", "source=text_pairs", *keys]) == 0
    assert main(["prepare"]) == 2
    error = capsys.readouterr().err
    assert "3 of 12 rows cannot be used" in error
    assert "line 10, 11: has an empty text in the column b: write one, remove the row, or leave out" in error
    assert main(["set", "source.on_corrupt=skip"]) == 0
    assert main(["prepare"]) == 0
    assert "3 rows without a text or a label left out" in capsys.readouterr().out
