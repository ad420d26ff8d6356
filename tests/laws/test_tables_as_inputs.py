"""A table of numbers, categories and dates is found, trained on, scored and predicted, with cells that have no value."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch

import pipeline
from pipeline.__main__ import main
from pipeline.core.environment import Paths
from pipeline.core.prepared import Prepared, Split
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference.networks import postprocessing
from pipeline.prepare.inputs.table import Part, Statistics
from pipeline.tasks.regression.targets import NumberTargets
from tests import project
from tests.imports import TOP
from tests.laws.test_resuming import ADAM, COMMON, refuse_another_end
from tests.train.engine.building import begin, run, steps

CITIES = ("Oslo", "Lima", "Pune")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkout with a table of homes, whose price is the sum of what their columns add."""
    folder, generator = project.make(tmp_path), np.random.default_rng(0)
    shutil.copytree(TOP / "presets", folder / "presets")
    shutil.copy(TOP / "params.yaml", folder)
    with (folder / "data/homes.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("home", "area", "city", "built", "owner", "code", "price"))
        for number in range(400):
            area, city, year = generator.integers(30, 200), int(generator.integers(0, 3)), int(generator.integers(1950, 2020))
            price = 1000 * area + 20_000 * city + 500 * (year - 1950)
            cells = (
                "" if number % 9 == 0 else area,
                CITIES[city] if number % 7 else "NA",
                f"{year}-05-0{1 + number % 9}",
                f"p{number * 37}",
            )
            table.writerow((number, *cells, f"{number % 4:02}", price))
    return folder


@pytest.mark.usefixtures("untimed")
def test_the_way_from_a_table_to_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    assert main(["set", "data=data/homes.csv"]) == 2
    answer = "source.label_column=price"
    assert f"4 columns may be the one to predict: add {answer} (" in capsys.readouterr().err
    assert main(["set", "data=data/homes.csv", answer, "source.category_columns=[code]", "train.epochs=10"]) == 0
    said = capsys.readouterr().out
    for sentence in (
        "columns of the kind number: area (30 to 199)\n",
        "columns of the kind date: built (1950-05-0",
        "columns of the kind category: city, code\n",
        "columns not used: home (it numbers the rows), owner (400 different texts in 400 rows); ",
    ):
        assert sentence in said
    for stage in ("prepare", "train", "evaluate"):
        assert main([stage]) == 0
    scores = json.loads((Paths().metrics / "evaluate.json").read_bytes())["test"]
    assert scores["linear_rmse"] < scores["rmse"] < 0.7 * scores["mean_guess_rmse"]
    with (Paths().evaluation_plots / "columns.csv").open(encoding="utf-8") as file:
        assert next(row["column"] for row in csv.DictReader(file)) == "area"

    rows = [{"area": area, "city": city, "built": "1990-01-01", "code": "01"} for area, city in ((190, "Pune"), ("?", None), (35, "Rome"))]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    loaded = pipeline.load_model(Paths().model)
    with pytest.warns(UserWarning, match="1 cell with a category that train does not have"):
        large, unknown, small = (prediction.numbers["price"] for prediction in loaded.predict(rows))
    assert large > unknown > small
    with pytest.warns(UserWarning, match="2 cells with a category that train does not have"):
        assert [prediction.numbers["price"] for prediction in loaded.predict(Path("rows.jsonl"))] == [large, unknown, small]
    with pytest.warns(
        UserWarning, match=r"numbers far outside of those of train.*: 9e5 in the column area of this row \(\d+\.0 to \d+\.0 in train\)"
    ):
        list(loaded.predict({**rows[0], "area": "9e5"}))
    (alone,) = loaded.predict(pandas.DataFrame(rows).iloc[0])
    assert alone.numbers["price"] == pytest.approx(large)
    with pytest.raises(Refusal, match="inputs: has several columns called area: remove or rename all but one"):
        list(loaded.predict(pandas.DataFrame([["9", "8"]], columns=["area", "area"])))
    inputs = loaded.spec.inputs
    numbered = tuple(column.model_copy(update={"name": at}) for at, column in enumerate(inputs.columns, 1))
    with pytest.raises(Refusal, match="has a column 0, but the columns of this model are numbered from 1"):
        type(loaded.reader)(inputs.model_copy(update={"columns": numbered})).row(dict(enumerate(rows[0].values())))
    for names in ("area,city", "area,city,code,built,built"):
        Path("few.csv").write_text(f"{names}\n{names}\n", encoding="utf-8")
        assert main(["predict", str(Paths().model), "few.csv"]) == 1
        message = "few.csv: has no column built, or several, but the model reads area, city, built, code: write it once"
        assert message in capsys.readouterr().err
    Path("rows").write_text("area,city,built,code\n3,Orl\u00e9ans,,\n", encoding="cp1252")  # no suffix, as standard input
    assert main(["predict", str(Paths().model), "rows"]) == 1
    assert "rows:2: is not UTF-8 (byte 0xE9): name its encoding by `--encoding cp1252`" in capsys.readouterr().err
    columns_to_keep_stand_beside_the_predictions(capsys, [large, small])

    assert main(["report"]) == 0


def columns_to_keep_stand_beside_the_predictions(capsys: pytest.CaptureFixture[str], predicted: list[float]) -> None:
    """Those of Parquet keep their type, one that is called like the prediction its name, and a row that cannot be read is named and left out."""
    table = {"area": ["190", "wide", "35"], "city": ["Pune", "Oslo", "Rome"], "built": ["1990-01-01"] * 3, "code": ["01"] * 3}
    pq.write_table(pa.table({**table, "home": [7, 8, 9], "price": ["n", "o", "p"]}), "given.parquet")
    pacsv.write_csv(pq.read_table("given.parquet"), "given.csv")
    for name, homes in (("given.parquet", [7, 9]), ("given.csv", ["7", "9"])):
        assert main(["predict", str(Paths().model), name, "--output", "scored.parquet", "--keep", "home", "--keep", "price"]) == 1
        line = "given.csv:3" if name == "given.csv" else "given.parquet:2"
        assert f"{line}: has wide in the column area" in capsys.readouterr().err
        scored = pq.read_table("scored.parquet").to_pydict()
        assert list(scored) == ["input", "home", "price", "predicted price"]
        assert (scored["home"], scored["price"]) == (homes, ["n", "p"])
        assert scored["predicted price"] == pytest.approx(predicted)
    assert main(["predict", str(Paths().model), "given.csv", "--output", "scored.csv", "--keep", "key"]) == 2
    assert "--keep: is key, but given.csv:1 has the columns area, city," in capsys.readouterr().err
    assert main(["predict", str(Paths().model), "given.csv", "data/prepared/test-inputs.npy", "--output", "x.csv", "--keep", "city"]) == 1
    assert "error: data/prepared/test-inputs.npy: is no table of rows or texts, so it has no column to keep" in capsys.readouterr().err
    Path("other.csv").write_text(Path("given.csv").read_text(encoding="utf-8").replace("7", "x"), encoding="utf-8")
    assert main(["predict", str(Paths().model), "given.parquet", "other.csv", "--output", "x.csv", "--keep", "home"]) == 2
    assert "columns are of another type than those before: predict these files apart" in capsys.readouterr().err
    assert main(["predict", str(Paths().model), "given.csv", "--keep", "home"]) == 2
    assert "--keep: is for a file: add --output FILE" in capsys.readouterr().err


def prepared_rows(count: int = 120) -> Prepared:
    """Return rows whose target is a linear function of their columns, with noise."""
    generator = np.random.default_rng(3)
    area, city = generator.normal(1e9, 20.0, count), generator.integers(0, 3, count)
    targets = 5 * (area - 1e9) + 300 * (city == 1) + generator.normal(0, 30, count)
    absent = generator.random(count) < 0.1
    numbers = [None if missing else number for missing, number in zip(absent, area.tolist(), strict=True)]
    statistics = Statistics([Part("area", "number"), Part("city", "category")], {"train": count})
    statistics.add_rows("train", 0, [pa.array(numbers, pa.float64()), pa.array([CITIES[number] for number in city])])
    assigned = np.where(np.arange(count) < count - 30, "train", "valid")
    statistics.fit({"train": assigned})
    (block,) = statistics.blocks()
    columns = targets[:, None]
    split = {name: Split(block.inputs[assigned == name], columns[assigned == name]) for name in ("train", "valid")}
    spec = Spec(inputs=statistics.inputs(), targets=NumberTargets(columns=("price",)).fitted(split["train"].targets))
    return Prepared(spec, "digest", split)


LINEAR = {"model": {"name": "linear", "weights": None}, "loss": {"name": "mse"}, "augment": None, "train.metric": "valid/rmse"}


def test_a_linear_model_learns_the_closed_form(train_params) -> None:
    prepared, rate = prepared_rows(), {**ADAM, "learning_rate": 0.05, "weight_decay": 0.0}
    length = {**steps(400), "train.batch_size": 90, "train.micro_batch_size": 40, "train.ema_decay": 0.0, "train.clip_norm": 1e9}
    training = begin(train_params({**LINEAR, **length, "optimizer": rate}), prepared)
    run(training)
    area, city = prepared.train.inputs.T
    standardized = (area - np.nanmean(area)) / np.nanstd(area)
    features = np.c_[np.nan_to_num(standardized), np.isnan(area), np.eye(3)[city.astype(int)], np.ones(90)]
    expected = features @ np.linalg.lstsq(features, prepared.train.targets, rcond=None)[0]
    with torch.no_grad():
        model = training.state.model
        found = postprocessing(prepared.spec.targets)(model(torch.from_numpy(prepared.train.inputs))).numpy()  # type: ignore[misc]
    np.testing.assert_allclose(found, expected, atol=1e-4 * prepared.train.targets.std())


def test_a_training_on_a_table_stopped_at_any_step_ends_in_the_same_bytes(train_params, tmp_path: Path) -> None:
    common = {name: value for name, value in COMMON.items() if not name.startswith("augment.")}
    mlp = {"name": "mlp", "weights": None, "width": 8, "depth": 1, "dropout": 0.2}
    refuse_another_end(train_params({**common, **LINEAR, "model": mlp}), prepared_rows(), tmp_path)
