"""Tables are found, trained on, scored, compared, predicted and exported: texts with labels, with numbers and with other texts, and columns with cells
that have no value.
"""

import csv
import itertools
import json
import random
import shutil
from collections.abc import Iterable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

import pipeline
from pipeline.__main__ import main
from pipeline.core.environment import Paths
from pipeline.core.prepared import Prepared, Split
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference import model_file
from pipeline.inference.networks import postprocessing
from pipeline.prepare.inputs.table import Part, Statistics
from pipeline.tasks.regression.targets import NumberTargets
from tests import project
from tests.imports import TOP
from tests.laws.test_resuming import ADAM, COMMON, refuse_another_end
from tests.train.engine.building import begin, run, steps

MODEL = "models/model.safetensors"
CITIES = ("Oslo", "Lima", "Pune")
TAGS = {"urgent": 0.4, "billing": 0.3, "login": 0.15}
PRICES = {"good": 450, "bad": 100, "fine": 300, "awful": 50, "great": 500, "poor": 150, "nice": 400, "ugly": 120, "lovely": 480, "sad": 200}
WORDS = ("red", "blue", "old", "new", "big", "small", "cat", "dog")


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untimed: None) -> None:
    """Make a checkout with the presets the working directory."""
    project.make(tmp_path)
    shutil.copytree(TOP / "presets", tmp_path / "presets")
    shutil.copy(TOP / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")


def write(name: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with Path(f"data/{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """Run a verb, which must end with `code`, and return its errors."""
    capsys.readouterr()
    assert main(words) == code
    return capsys.readouterr().err


def trained(capsys: pytest.CaptureFixture[str], said: str, metric: str, *chosen: str) -> dict[str, float]:
    """Choose the data, about which `set` prints `said`, run the stages, compare and report. Return the scores of test. `metric` is printed with its interval."""
    assert main(["set", *chosen]) == 0
    assert said in capsys.readouterr().out
    for stage in ("prepare", "train", "evaluate"):
        assert main([stage]) == 0
    scores: dict[str, float] = json.loads((Paths().metrics / "evaluate.json").read_bytes())["test"]
    assert f"test {metric} {scores[metric]:.4f} (between " in capsys.readouterr().out
    assert main(["compare", MODEL, MODEL]) == main(["report"]) == 0
    return scores


def test_the_way_from_a_table_to_labels(capsys: pytest.CaptureFixture[str]) -> None:
    """The same tickets are in two tables: tags with a delimiter, and a column of 0 and 1 for each tag."""
    generator, rows = np.random.default_rng(0), []
    for _ in range(400):
        tags = [tag for tag, share in TAGS.items() if generator.random() < share]
        words = [f"word{number}" for number in generator.integers(0, 6, 3)] + [f"{tag}{generator.integers(2)}" for tag in tags]
        rows.append((" ".join(generator.permutation(words)), tags))
    write("tickets", ("text", "tags"), ((text, ";".join(tags)) for text, tags in rows))
    write("marks", ("text", *TAGS), ((text, *(int(tag in tags) for tag in TAGS)) for text, tags in rows))
    asked = "3 columns of 0 and 1 may be labels, of which a sample may have several: add source.task=multi_label; "
    assert asked in refused(capsys, "set", "data=data/marks.csv")
    assert main(["set", "data=data/marks.csv", "source.task=multi_label"]) == 0
    assert "3 labels, 0.8" in capsys.readouterr().out
    assert main(["prepare"]) == 0
    targets = np.load(Paths().prepared / "train-targets.npy")
    asked = "in the column tags: add source.task=multi_label source.label_column=tags; for one class a sample, add source.task=class"
    assert asked in refused(capsys, "set", "data=data/tickets.csv")
    answer = ("source.task=multi_label", "source.label_column=tags", "train.epochs=12")
    scores = trained(capsys, "3 labels, 0.8", "average_precision", "data=data/tickets.csv", *answer)
    order = [sorted(TAGS).index(tag) for tag in TAGS]
    assert np.array_equal(np.load(Paths().prepared / "train-targets.npy")[:, order], targets)  # both tables say the same
    assert scores["average_precision"] > 0.9 > 2 * scores["random_average_precision"]
    capsys.readouterr()
    assert main(["export", "--format", "pt2"]) == 0
    assert "in probability" in capsys.readouterr().out
    test = Prepared.open(Paths().prepared).split("test")
    program = torch.export.load(Paths().model.with_suffix(".pt2")).module()
    found = program(torch.from_numpy(np.array(test.inputs))).detach().numpy()
    assert scores["average_precision"] == pytest.approx(average_precision_score(test.targets, found), rel=1e-6)
    thresholds = np.array(model_file.load(Paths().model)[1].spec.targets.thresholds)  # type: ignore[attr-defined]
    assert set(thresholds) != {0.5}  # tuned on valid
    assert scores["macro_f1"] == pytest.approx(f1_score(test.targets, found > thresholds, average="macro"), rel=1e-9)

    loaded = pipeline.load_model(Paths().model)
    both, none = loaded.predict(["urgent0 billing1 word2 login1", "word1 word2"])
    assert set(both.labels) == {*TAGS}
    assert none.labels == ()


def test_the_way_from_a_table_to_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Each text has the mean price of its words."""
    generator, names, prices = np.random.default_rng(0), list(PRICES), np.array([*PRICES.values()])
    drawn = [generator.integers(0, 10, 6) for _ in range(400)]
    rows = [(" ".join(names[word] for word in words), round(float(prices[words].mean()), 2)) for words in drawn]
    write("offers", ("number", "offer", "price", "weight"), ((at, *row, f"{at / 7:.3f}") for at, row in enumerate(rows)))
    asked = refused(capsys, "set", "data=data/offers.csv")
    assert "no column has classes, but price, weight have numbers: to train a regression, add source.task=regression" in asked
    answer = ["source.task=regression", "source.label_column=price"]
    assert all(word in asked for word in answer)
    scores = trained(capsys, "price: numbers from ", "rmse", "data=data/offers.csv", *answer, "train.epochs=12")
    assert scores["rmse"] < 0.4 * scores["mean_guess_rmse"]
    prediction, other = pipeline.load_model(Paths().model).predict(["great lovely great", "awful awful bad"])
    assert prediction.numbers["price"] > 300 > other.numbers["price"]
    assert main(["predict", MODEL, "data/offers.csv", "--output", "data/predicted.csv"]) == 0
    assert Path("data/predicted.csv").read_text(encoding="utf-8").startswith('"input","price"\n')


def test_a_cell_without_a_number_is_named_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    write("broken", ("offer", "price"), [("good fine good", 1.5), ("bad bad bad", ""), ("sad sad ugly", "cheap"), ("nice nice one", "inf")])
    keys = ["source.root=data/broken.csv", "source.text_column=offer", "source.label_column=price", "source.task=regression"]
    assert main(["set", "preset=trec-ngrams", *keys, "loss=mse", "evaluate=regression", "train.metric=valid/rmse"]) == 0
    error = refused(capsys, "prepare")
    assert "3 of 4 rows cannot be used" in error
    assert 'line 3: has no label but "" in the column price: write one, remove the row' in error
    for line, cell in ((4, '"cheap"'), (5, '"inf"')):
        assert f"line {line}: has {cell} in the column price: write a number such as 3.5, or remove the row" in error


def test_the_way_from_a_table_to_texts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text of three words has the text with these words backwards."""
    every = list(itertools.product(WORDS, repeat=3))
    random.Random(1).shuffle(every)
    rows = [(number, " ".join(words), " ".join(reversed(words))) for number, words in enumerate(every)]
    write("words", ("number", "words", "backwards"), rows)
    asked = "add source.target_column=words or source.target_column=backwards for the column to write"
    assert asked in refused(capsys, "set", "data=data/words.csv")
    small = ["source.tokenizer=word", "model.width=32", "model.dropout=0.0", "train.epochs=20", "optimizer.learning_rate=5e-3"]
    scores = trained(capsys, "text_column: words", "exact_match", "data=data/words.csv", "source.target_column=backwards", *small)
    assert scores["exact_match"] > 0.9
    table = pq.read_table(Paths().predictions).to_pylist()
    assert sum(row["written"] == row["target"] for row in table) == round(scores["exact_match"] * len(table))
    assert main(["predict", MODEL, "data/words.csv", "--beam", "2", "--output", "written.csv"]) == 0
    with Path("written.csv").open(encoding="utf-8", newline="") as written:
        equal = [row["text"] == backwards for row, (*_, backwards) in zip(csv.DictReader(written), rows, strict=True)]
    assert sum(equal) > 0.9 * len(equal)
    model = pipeline.load_model(Paths().model)
    monkeypatch.setattr(model, "task", spy := Mock(wraps=model.task))
    assert [each.text for each in model.predict("cat big old", beam=3)] == ["old big cat"]
    assert spy.write.call_args.kwargs == {"beam": 3}
    assert "writes texts token by token" in refused(capsys, "export", "--format", "pt2")


def test_a_pair_without_a_text_is_named_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    good = "".join(f"red {word}\t{word} red\n" for word in WORDS)
    Path("data/broken.tsv").write_text("a\tb\n" + good + "old dog\t\nnew dog\t \n\tnew\nbig cat\tcat big\n", encoding="utf-8")
    keys = ["source.root=data/broken.tsv", "source.text_column=a", "source.target_column=b"]
    assert main(["set", "preset=dates-transformer", "source=text_pairs", *keys]) == 0
    error = refused(capsys, "prepare")
    assert "3 of 12 rows cannot be used" in error
    assert "line 10, 11: has an empty text in the column b: write one, remove the row, or leave out" in error
    assert main(["set", "source.on_corrupt=skip"]) == 0
    assert main(["prepare"]) == 0
    assert "3 rows without a text or a label left out" in capsys.readouterr().out


def test_the_way_from_a_table_of_columns_to_numbers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The price of a home is the sum of what its columns add."""
    generator, rows = np.random.default_rng(0), []
    for number in range(400):
        area, city, year = generator.integers(30, 200), int(generator.integers(0, 3)), int(generator.integers(1950, 2020))
        cells = ("" if number % 9 == 0 else area, CITIES[city] if number % 7 else "NA", f"{year}-05-0{1 + number % 9}", f"p{number * 37}")
        rows.append((number, *cells, f"{number % 4:02}", 1000 * area + 20_000 * city + 500 * (year - 1950)))
    write("homes", ("home", "area", "city", "built", "owner", "code", "price"), rows)
    answer = "source.label_column=price"
    assert f"4 columns may be the one to predict: add {answer} (" in refused(capsys, "set", "data=data/homes.csv")
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
    (alone,) = loaded.predict(pandas.DataFrame(rows).iloc[:1])
    assert alone.numbers["price"] == pytest.approx(large)
    with pytest.raises(Refusal, match="inputs: has several columns called area: remove or rename all but one"):
        list(loaded.predict(pandas.DataFrame([["9", "8"]], columns=["area", "area"])))
    inputs = loaded.spec.inputs
    numbered = tuple(column.model_copy(update={"name": at}) for at, column in enumerate(inputs.columns, 1))
    with pytest.raises(Refusal, match="has a column 0, but the columns of this model are numbered from 1"):
        type(loaded.reader)(inputs.model_copy(update={"columns": numbered})).row(dict(enumerate(rows[0].values())))
    for names in ("area,city", "area,city,code,built,built"):
        Path("few.csv").write_text(f"{names}\n{names}\n", encoding="utf-8")
        message = "few.csv: has no column built, or several, but the model reads area, city, built, code: write it once"
        assert message in refused(capsys, "predict", MODEL, "few.csv", code=1)
    content = "area,city,built,code\n3,Orl\u00e9ans,,\n".encode("cp1252")
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(content)))
    assert "-:2: is not UTF-8 (byte 0xE9): name its encoding by `--encoding cp1252`" in refused(capsys, "predict", MODEL, "-", code=1)
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(Path("rows.jsonl").read_bytes())))
    assert main(["predict", MODEL, "-"]) == 0
    assert [json.loads(line)["input"] for line in capsys.readouterr().out.splitlines()] == ["-:1", "-:2", "-:3"]
    Path("rows").write_bytes(content)
    assert "error: rows: is no table, which" in refused(capsys, "predict", MODEL, "rows", code=1)
    columns_to_keep_stand_beside_the_predictions(capsys, [large, small])
    assert main(["report"]) == 0


def columns_to_keep_stand_beside_the_predictions(capsys: pytest.CaptureFixture[str], predicted: list[float]) -> None:
    """Those of Parquet keep their type, one that is called like the prediction its name, and a row that cannot be read is named and left out."""
    table = {"area": ["190", "wide", "35"], "city": ["Pune", "Oslo", "Rome"], "built": ["1990-01-01"] * 3, "code": ["01"] * 3}
    pq.write_table(pa.table({**table, "home": [7, 8, 9], "price": ["n", "o", "p"]}), "given.parquet")
    pacsv.write_csv(pq.read_table("given.parquet"), "given.csv")
    for name, homes in (("given.parquet", [7, 9]), ("given.csv", ["7", "9"])):
        assert main(["predict", MODEL, name, "--output", "scored.parquet", "--keep", "home", "--keep", "price"]) == 1
        line = "given.csv:3" if name == "given.csv" else "given.parquet:2"
        assert f"{line}: has wide in the column area" in capsys.readouterr().err
        scored = pq.read_table("scored.parquet").to_pydict()
        assert list(scored) == ["input", "predicted price", "home", "price"]
        assert (scored["home"], scored["price"]) == (homes, ["n", "p"])
        assert scored["predicted price"] == pytest.approx(predicted)
    given = ("predict", MODEL, "given.csv")
    wrong = refused(capsys, *given, "--output", "scored.csv", "--keep", "key")
    assert "--keep: is key, but given.csv:1 has the columns area, city," in wrong
    wrong = refused(capsys, *given, "data/prepared/test-inputs.npy", "--output", "x.csv", "--keep", "city", code=1)
    assert "error: data/prepared/test-inputs.npy: is no table, which --keep and a model of rows need" in wrong
    Path("other.csv").write_text(Path("given.csv").read_text(encoding="utf-8").replace("7", "x"), encoding="utf-8")
    wrong = refused(capsys, "predict", MODEL, "given.parquet", "other.csv", "--output", "x.csv", "--keep", "home")
    assert "columns are of another type than those before: predict these files apart" in wrong
    assert "--keep: is for a file: add --output FILE" in refused(capsys, *given, "--keep", "home")


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
