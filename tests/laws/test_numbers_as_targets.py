"""A table of texts with numbers is found, trained on, scored, predicted and exported in the units of its column."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.__main__ import main
from pipeline.core.environment import Paths
from tests import project
from tests.imports import TOP

WORDS = ("good", "bad", "fine", "awful", "great", "poor", "nice", "ugly", "lovely", "sad")
PRICES = np.array([450, 100, 300, 50, 500, 150, 400, 120, 480, 200])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkout with a table of texts, each with the mean price of its words."""
    folder, generator = project.make(tmp_path), np.random.default_rng(0)
    shutil.copytree(TOP / "presets", folder / "presets")
    shutil.copy(TOP / "params.yaml", folder)
    with (folder / "data/offers.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("number", "offer", "price", "weight"))
        for number in range(400):
            words = generator.integers(0, 10, 6)
            table.writerow((number, " ".join(WORDS[word] for word in words), round(float(PRICES[words].mean()), 2), f"{number / 7:.3f}"))
    return folder


@pytest.mark.usefixtures("untimed")
def test_the_way_from_a_table_to_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    assert main(["set", "data=data/offers.csv"]) == 2
    asked = capsys.readouterr().err
    assert "no column has classes, but price, weight have numbers: to train a regression, add source.task=regression" in asked
    answer = ["source.task=regression", "source.label_column=price"]
    assert all(word in asked for word in answer)
    assert main(["set", "data=data/offers.csv", *answer, "train.epochs=12"]) == 0
    assert "price: numbers from " in capsys.readouterr().out
    for stage in ("prepare", "train", "evaluate"):
        assert main([stage]) == 0
    scores = json.loads((Paths().metrics / "evaluate.json").read_bytes())["test"]
    assert scores["rmse"] < 0.4 * scores["mean_guess_rmse"]
    assert f"test rmse {scores['rmse']:.4f} (between " in capsys.readouterr().out

    prediction, other = pipeline.load_model(Paths().model).predict(["great lovely great", "awful awful bad"])
    assert prediction.numbers["price"] > 300 > other.numbers["price"]
    assert main(["predict", str(Paths().model), "data/offers.csv", "--output", "data/predicted.csv"]) == 0
    assert Path("data/predicted.csv").read_text(encoding="utf-8").startswith('"input","price"\n')
    assert main(["compare", str(Paths().model), str(Paths().model)]) == 0
    assert main(["report"]) == 0


def test_a_cell_without_a_number_is_named_with_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    table = Path("data/broken.csv")
    table.write_text("offer,price\ngood fine good,1.5\nbad bad bad,\nsad sad ugly,cheap\nnice nice one,inf\n", encoding="utf-8")
    keys = ["source.root=data/broken.csv", "source.text_column=offer", "source.label_column=price", "source.task=regression"]
    assert main(["set", "preset=trec-ngrams", *keys, "loss=mse", "evaluate=regression", "train.metric=valid/rmse"]) == 0
    assert main(["prepare"]) == 2
    error = capsys.readouterr().err
    assert "3 of 4 rows cannot be used" in error
    assert 'line 3: has no label but "" in the column price: write one, remove the row' in error
    for line, cell in ((4, '"cheap"'), (5, '"inf"')):
        assert f"line {line}: has {cell} in the column price: write a number such as 3.5, or remove the row" in error
