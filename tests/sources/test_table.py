"""Rows of tables as a source: what a column is, cells without a value, splits and mistakes."""

import json
import re
from datetime import datetime, timedelta
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import norm, rankdata

from pipeline.core.cells import read
from pipeline.core.raw_dataset import TRAIN, VALID, RawDataset
from pipeline.core.refusal import Refusal
from pipeline.inputs.table.description import CategoryColumn, NumberColumn, TableInputs
from pipeline.inputs.table.first_layer import Preprocessing
from pipeline.inputs.table.predict import Reader
from pipeline.prepare import columns
from pipeline.prepare.inputs import table as inputs_of
from pipeline.sources import scikit_learn, table

from . import rows as rows_of
from .settings import source


def settings(root: Path, **changes: object) -> table.Settings:
    return source(table.Settings, root, **{"label_column": "label", **changes})  # type: ignore[no-any-return]


def kind_of(name: str, *cells: str) -> inputs_of.Kind | columns.LeftOut:
    survey = columns.Survey(name)
    survey.add(pa.array(cells), None)
    assert survey.doubt() is None
    return survey.kind("a.csv", None)


def test_a_column_with_a_format_is_not_refused_for_a_mistake_that_prepare_names_with_its_line() -> None:
    survey = columns.Survey("c", "%d/%m/%Y")
    survey.add(pa.array([f"{1 + day % 28:02}/01/2024" for day in range(99)] + ["?!"]), None)
    assert survey.kind("a.csv", None) == "date"


def opened(source: table.Settings) -> tuple[RawDataset, TableInputs]:
    dataset = source.open(workers=1)
    dataset.fit({split: np.full(len(targets), split) for split, targets in dataset.targets.items()})
    inputs = dataset.statistics.inputs()
    assert isinstance(inputs, TableInputs)
    return dataset, inputs


def gathered(dataset: RawDataset) -> dict[str, np.ndarray]:
    return {block.split: block.inputs for block in dataset.blocks()}


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_numbers_by_rank_are_normal_and_between_their_neighbours(tmp_path: Path) -> None:
    numbers = np.random.default_rng(2).lognormal(3, 2, 5000).round(2)
    path = write(tmp_path / "a.csv", "size,label", *(f"{number},{at % 2}" for at, number in enumerate(numbers)), ",1")
    dataset, inputs = opened(settings(path, numbers="ranks"))
    inputs = TableInputs.model_validate_json(inputs.model_dump_json())
    few = Preprocessing(inputs, channels_last=False)
    features = few(torch.from_numpy(gathered(dataset)[TRAIN]))[:, 0].double().numpy()
    expected = norm.ppf((rankdata(numbers) - 0.5) / len(numbers))
    assert np.abs(features[:-1] - expected).max() < 0.05
    assert np.abs(features[:-1] - expected).mean() < 5e-3
    assert features[-1] == 0
    far = few(torch.tensor([[-1e100], [1e100], [numbers.min()], [numbers.max()]], dtype=torch.float64))[:, 0]
    assert far[:2].tolist() == far[2:].tolist() == pytest.approx([expected.min(), expected.max()])


def test_what_a_column_holds_is_found_from_its_values(tmp_path: Path) -> None:
    rows = (
        ("1.5", "Oslo", "2024-01-02", "007", "x", "", "yes"),
        ("NA", "Lima", "1970-01-01T12:00:00", "007", "x", "", "no"),
        ("4.5", "", "2024-01-02T00:00:00+00:00", "012", "x", "?", "yes"),
        ("3", "Oslo", "?", "007", "x", "", "no"),
    )
    lines = [",".join((str(number), str(900 + number * number), f"name {number}", *row)) for number, row in enumerate(rows * 3)]
    path = write(tmp_path / "a.csv", "n,customerId,name,size,city,when,code,same,empty,label", *lines)
    dataset, inputs = opened(settings(path, category_columns=("code",)))
    size, city, when, code = inputs.columns
    assert size == NumberColumn(
        kind="number", name="size", missing=True, mean=3.0, std=float(np.std([1.5, 4.5, 3] * 3)), extremes=(1.5, 4.5)
    )
    assert city == CategoryColumn(name="city", missing=True, values=("Oslo", "Lima"), others=False)
    assert (when.kind, when.missing) == ("date", True)
    assert code == CategoryColumn(name="code", missing=False, values=("007", "012"), others=False)
    expected = [[1.5, 0, 19724, 0], [np.nan, 1, 0.5, 0], [4.5, np.nan, 19724, 1], [3, 0, np.nan, 0]]
    np.testing.assert_array_equal(gathered(dataset)[TRAIN], expected * 3)
    (said,) = [note for note in dataset.notes if "not used" in note]
    for column in (
        "n (it numbers the rows)",
        "customerId (another number in each row, and called an id)",
        "name (12 different texts in 12 rows)",
        "same (the same value in all rows)",
        "empty (no value in any row)",
    ):
        assert column in said


def test_a_parquet_file_with_splits_gives_the_rows_of_the_csv(tmp_path: Path) -> None:
    rows = [{"when": f"2024-0{1 + number % 9}-01", "count": number * number, "label": "ab"[number % 2]} for number in range(12)]
    lines = [",".join(map(str, row.values())) for row in rows]
    write(tmp_path / "csv/train.csv", "when,count,label", *lines)
    write(tmp_path / "csv/test.csv", "count,label,when", "7.0,a,2024-02-01", "8.0,b,2024-02-02")
    tests = [{"when": f"2024-02-0{number - 6}", "count": number, "label": "ab"[number % 2 - 1], "part": "PublicTest"} for number in (7, 8)]
    frame = pa.Table.from_pylist(
        [tests[0], *({**row, "part": "train"} for row in rows[:7]), tests[1], *({**row, "part": "train"} for row in rows[7:])]
    )
    dates = pa.compute.cast(frame["when"], pa.timestamp("ms"))
    pq.write_table(frame.set_column(0, "when", dates), tmp_path / "a.parquet")
    (by_file, inputs), (by_column, others) = (
        opened(settings(tmp_path / "csv")),
        opened(settings(tmp_path / "a.parquet", split_column="part")),
    )
    assert inputs == others
    for split, found in gathered(by_file).items():
        np.testing.assert_array_equal(gathered(by_column)[split], found)
        np.testing.assert_array_equal(by_column.targets[split], by_file.targets[split])


def test_rare_values_and_those_of_other_splits_are_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_of, "MOST_VALUES", 2)
    described = inputs_of.described(inputs_of.Part("c", "category"), ["a", "b", "c"], np.array([0.0, 1, 0, 2, 1, 0]))
    assert described == CategoryColumn(name="c", missing=False, values=("a", "b"), others=True)
    assert [described.stored(value) for value in ("a", "c", "never seen")] == [0, 2, 2]
    assert described.cell(described.stored("c")) == "another value"


@pytest.mark.parametrize("drawn", [False, True])
def test_values_are_counted_in_the_rows_of_train_alone(tmp_path: Path, drawn: bool) -> None:
    """The splits are in a column, or drawn from one table."""
    rows = [("b", 2, TRAIN), ("b", 4, TRAIN), ("a", 3, TRAIN), ("", 3, TRAIN)]
    others = [("a", 9, VALID), ("c", 9, VALID), ("a", 9, VALID)]
    every = [each for pair in zip_longest(others, rows) for each in pair if each]
    path = write(tmp_path / "a.csv", "kind,size,label,part", *(f"{kind},{size},{at},{part}" for at, (kind, size, part) in enumerate(every)))
    columns = {"ignored_columns": ["part"]} if drawn else {"split_column": "part"}
    dataset = settings(path, task="regression", category_columns=["kind"], **columns).open(workers=1)
    parts = np.array([part for _, _, part in every])
    dataset.fit({TRAIN: parts} if drawn else {split: parts[parts == split] for split in dataset.targets})
    kind, size = dataset.statistics.inputs().columns  # type: ignore[attr-defined]
    assert kind == CategoryColumn(name="kind", missing=True, values=("b", "a"), others=False)
    assert (size.mean, size.extremes) == (3, (2, 4))
    inputs = {split: rows[:, 0].tolist() for split, rows in gathered(dataset).items()}
    stored = {"b": 0, "a": 1, "": None, "c": 2}
    expected = {split: [stored[kind] for kind, _, part in every if drawn or part == split] for split in inputs}
    assert {split: [None if np.isnan(number) else number for number in found] for split, found in inputs.items()} == expected
    assert kind.cell(2.0) == "another value"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1e3", 1000.0),
        (True, "true"),
        ("TRUE", "true"),
        (np.False_, "false"),
        (3.0, "3"),
        ("2024-06-30T12:00:00+02:00", 19904 + 10 / 24),
        (" ? ", None),
    ],
)
def test_a_cell_is_read_in_the_same_way_from_any_format(cell: object, value: object) -> None:
    kind = "number" if isinstance(value, float) and value == 1000 else "date" if isinstance(value, float) else "category"
    assert read(kind, cell, "c") == pytest.approx(value) if isinstance(value, float) else read(kind, cell, "c") == value  # type: ignore[arg-type]
    assert read("date", 20240105, "c") == read("date", "20240105", "c") == 19727
    for wrong in ("abc", True, "2_3", "inf", "1e200", [1]):
        with pytest.raises(Refusal, match="in the column c: write a number, or leave the cell empty"):
            read("number", wrong, "c")


def test_mistakes_are_named_with_their_lines_and_a_remedy(tmp_path: Path) -> None:
    rows = [f"{number * number / 3},{'ab'[number % 2]}" for number in range(20)]
    path = write(tmp_path / "a.csv", "size,label", *rows, "unknown,a")
    with pytest.raises(Refusal, match="column size, but in 1 of 21 rows something else, such as 3: write dates there"):
        kind_of("size", *["2024-01-02"] * 20, "3")
    for use in (opened, lambda source: source.refuse_damaged(workers=1, within_s=9)):
        with pytest.raises(Refusal, match=r"a\.csv:22: has unknown in the column size: write a number"):
            use(settings(path, number_columns=("size",)))
    with pytest.raises(Refusal, match=r"a\.csv:22: has unknown in the column size: write a number as in \$1,234\.5, or leave"):
        opened(settings(path, formats=[["size", "$1,234.5"]]))
    with pytest.raises(Refusal, match=r"source\.formats: .*a\.csv has no column day"):
        settings(path, formats=[["day", "%d/%m/%Y"]]).open(workers=1)
    for wrong in ("1,234,5", "abc", "%d/%m", "%d/%m/%Y %I:%M"):
        with pytest.raises(Refusal, match=f"{wrong} is no format: write the number 1234.5 as the column writes it"):
            settings(path, formats=[["size", wrong]])
    with pytest.raises(Refusal, match="has size twice, or source"):
        settings(path, category_columns=("size",), formats=[["size", "1,234.5"]])
    twice = write(tmp_path / "b.csv", "size,size,label", "1,2,a", "2,1,b")
    with pytest.raises(Refusal, match="has size as the name of several columns: rename them"):
        settings(twice).open(workers=1)
    with pytest.raises(Refusal, match=r"source\.date_columns: .*a\.csv has no column day: its columns are size, label"):
        settings(path, date_columns=("day",)).open(workers=1)
    with pytest.raises(Refusal, match=r"has no column that can be an input: all are ignored"):
        settings(path, ignored_columns=("size",)).open(workers=1)
    with pytest.raises(Refusal, match="has size, which number_columns has, too"):
        settings(path, number_columns=("size",), category_columns=("size",))


@pytest.mark.parametrize(("name", "columns_and_classes"), [("breast_cancer", (30, 2)), ("diabetes", (10, None))])
def test_the_tables_of_scikit_learn_are_there(name: str, columns_and_classes: tuple[int, int | None]) -> None:
    found = source(scikit_learn.Settings, Path("data/README.md"), dataset=name)
    dataset = found.open(workers=1)
    assert (dataset.statistics.row_shape[0], found.num_classes()) == columns_and_classes
    assert dataset.task.kind == found.targets_kind


SIZES = [str(number * number) for number in range(12)]


def labelled(*cells: str) -> list[str]:
    return [f"{cell},{'ab'[number % 2]}" for number, cell in enumerate(cells)]


WRITTEN = [f"{1.5 * number:,.2f}" for number in range(700, 720)]


@pytest.mark.parametrize(("labels", "is_said"), [([*range(20)], True), ([1, 2], False)])
def test_a_target_that_is_the_only_one_below_zero_is_named_unless_few_differ(tmp_path: Path, labels: list[int], is_said: bool) -> None:
    rows = [f"{at % 7},{-1 if at % 3 == 0 else labels[at % len(labels)]}" for at in range(60)]
    dataset, _ = opened(settings(write(tmp_path / "a.csv", "size,label", *rows), task="regression"))
    mark = "the column label has -1 in 20 of 60 rows, and no other number below 0: if it means no value, add "
    said = f"""warning: {mark}'source.missing=["-1"]' source.on_corrupt=skip"""
    assert (said in dataset.notes) == is_said


@pytest.mark.parametrize(("step", "changes", "is_said"), [(1, {}, True), (-1, {}, False), (1, {"divide": "position"}, False)])
def test_rows_in_the_order_of_their_dates_are_named(tmp_path: Path, step: int, changes: dict[str, object], is_said: bool) -> None:
    rows = [f"{day % 7},2024-01-{day:02},{'ab'[day % 2]}" for day in range(1, 29)][::step]
    dataset, _ = opened(settings(write(tmp_path / "a.csv", "size,day,label", *rows), **changes))
    sentence = "the rows are in the order of the dates in day: to test on the last rows instead of any, add source.divide=position"
    assert (sentence in dataset.notes) == is_said


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([f"{number}%" for number in range(3, 20)], ("1234.5%", 3.0)),
        ([f"${number}" for number in WRITTEN], ("$1,234.5", 1050.0)),
        ([f"{number.translate({44: 46, 46: 44})} EUR" for number in WRITTEN], ("1.234,5 EUR", 1050.0)),
        ([f"{number:02}/{number - 12:02}/2021" for number in range(13, 25)], ("%d/%m/%Y", 18640.0)),
        (["3 Jan 2021 1:05 p.m.", "14 Feb 2021 12:30 AM"], ("%d %b %Y %I:%M %p", (18630 * 1440 + 785) / 1440)),
        (["31/02/2021", "31/01/2021"], "columns of the kind category: c"),
        ([f"{number % 3 + 1} month{'s' * (number % 3 > 0)}" for number in range(12)], ("1234.5 month", 1.0)),
        (["4,705", "8,583"], 'to read 1,234.5, add \'source.formats=[["c", "1,234.5"]]\'; to read 1234,5, add'),
        (["03/04/2021", "04/05/2021"], 'to read %d/%m/%Y, add \'source.formats=[["c", "%d/%m/%Y"]]\'; to read %m/%d/%Y, add'),
        (["12 kg", "700"], "has numbers with and without kg: to read 1234.5 kg, add"),
        ([*SIZES, "unknown", "n/a"], 'if unknown and n/a means no value, add \'source.missing=["unknown", "n/a"]\''),
        (
            [*(f"${size}" for size in SIZES), "unknown"],
            "has numbers, but in 1 of 13 rows unknown: if unknown means no value, add 'source.missing=[\"unknown\"]'",
        ),
        (["4GB", "512MB"], "c, numbers with the units GB and MB"),
        (["10 mW", "20 MW"], "c, numbers with the units mW and MW"),
        ([f"{number % 3 + 1} hr{'s' * (number % 3 > 0)}" for number in range(12)], ("1234.5 hr", 1.0)),
        (["02134", "10115"], "columns of the kind category: c"),
        (["+49 170 123", "+49 301 456"], "columns of the kind category: c"),
        ([f"\u2212{number * number}" for number in range(3, 20)], ("", -9.0)),
        ([f"0{number}" for number in range(10, 22)], "c (12 different codes with leading zeros, such as 010, in 12 rows)"),
        (["A11", "A40"], "columns of the kind category: c"),
        (["10+ years", "< 1 year"], "columns of the kind category: c"),
        (["12a", "13b"], "columns of the kind category: c"),
        (
            ["-1"] * 10 + SIZES,
            "c has -1 in 10 of 22 rows, and no other number below 0: if it means no value, add 'source.missing=[\"-1\"]'",
        ),
        (["-999"] * 3 + SIZES, "c has -999 in 3 of 15 rows, far from all others: if it means no value, add 'source.missing=[\"-999\"]'"),
    ],
)
def test_a_format_is_found_or_asked_for(tmp_path: Path, cells: list[str], expected: str | tuple[str, float]) -> None:
    """Each answer that a question has is one that reads the column."""
    rows = [{"c": cell, "other": at * at, "label": "ab"[at % 2]} for at, cell in enumerate(cells * (1 + 10 // len(cells)))]
    path = rows_of.write(tmp_path / "a.csv", rows)
    try:
        dataset, inputs = opened(settings(path))
        said = "\n".join(dataset.notes)
    except Refusal as error:
        said = str(error)
        assert [key for key, _ in answers(said)][-1] == "ignored_columns"
        for key, value in answers(said):
            opened(settings(path, **{key: value}))
    if isinstance(expected, str):
        assert expected in said
        return
    assert (getattr(inputs.columns[0], "format", ""), gathered(dataset)[TRAIN][0, 0]) == expected
    again = Reader(TableInputs.model_validate_json(inputs.model_dump_json()))
    moment = datetime(1970, 1, 1) + timedelta(days=expected[1])  # noqa: DTZ001  # as tables have them
    plain = moment.isoformat() if inputs.columns[0].kind == "date" else expected[1]  # a number of Python is one in every format
    assert [again.row({"c": cell, "other": 1})[0] for cell in (cells[0], plain)] == [expected[1]] * 2


def answers(said: str) -> list[tuple[str, object]]:
    return [(key, json.loads(value)) for key, value in re.findall(r"'source\.(\w+)=([^']*)'", said)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_formats_are_the_same_for_blocks_of_any_size(size: int) -> None:
    cells = ["1.234", "900", "1.234.567", "-2.500", "n/a"] * 3 + [str(number) for number in range(20)]
    survey = columns.Survey("c")
    for first in range(0, len(cells), size):
        survey.add(pa.array(cells[first : first + size]), None)
    doubt = survey.doubt()
    assert doubt == columns.Doubt("c", "has numbers, but in 3 of 35 rows n/a", (), ["n/a"])
    assert survey.formats.found() == ["1.234,5"]


def test_targets_are_read_in_their_format(tmp_path: Path) -> None:
    lines = [f'"{at * 150:,} EUR",{at % 4}.5,{at}' for at in range(20)]
    path = write(tmp_path / "a.csv", "price,size,other", *lines)
    dataset, _ = opened(settings(path, label_column="price", task="regression"))
    np.testing.assert_array_equal(dataset.targets[TRAIN][:, 0], np.arange(20) * 150)
    assert '"price" is read as 1,234.5 EUR' in dataset.notes[-1].replace("price is", '"price" is')
    write(path, "price,size,other", *lines[10:])
    with pytest.raises(Refusal, match="can be read in several ways") as caught:
        settings(path, label_column="price", task="regression").open(workers=1)
    for key, value in answers(str(caught.value))[:2]:
        opened(settings(path, label_column="price", task="regression", **{key: value}))


def test_a_label_that_means_no_value_is_no_class(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "size,label", *labelled(*SIZES), "7,?", "8,?")
    with pytest.raises(Refusal, match=r"a\.csv: 2 of 14 rows cannot be used: line 14, 15: has no label but \"\?\" in the column label"):
        settings(path).open(workers=1)
    dataset, _ = opened(settings(path, on_corrupt="skip"))
    assert len(dataset.targets[TRAIN]) == 12
    assert "2 rows without a label left out" in dataset.notes[-1]


def test_equal_rows_are_those_of_the_columns_that_are_used(tmp_path: Path) -> None:
    lines = [f"id{number},{number % 3}{number // 6 * '.0'},{'ab'[number % 2]}" for number in range(12)]
    dataset, _ = opened(settings(write(tmp_path / "a.csv", "id,size,label", *lines), duplicates="together"))
    assert dataset.drawing_keys is not None
    assert set(dataset.drawing_keys()) == {np.float64(size).tobytes() for size in range(3)}  # however they are written


def test_numbers_that_differ_by_rounding_are_equal_and_tiny_ones_are_not() -> None:
    for numbers in ([0.3, 0.1 + 0.2], [0.0, 1e-305]):
        found = kind_of("sensor", *map(str, numbers))
        assert found == columns.LeftOut("the same value in all rows, apart from rounding")
        assert inputs_of.described(inputs_of.Part("sensor", "number"), (), np.array(numbers)).std == 1.0
    tiny = inputs_of.described(inputs_of.Part("tiny", "number"), (), np.array([1e-170, 3e-170]))
    assert (tiny.mean, tiny.std, tiny.extremes) == (pytest.approx(2e-170), pytest.approx(1e-170), (1e-170, 3e-170))
    with pytest.raises(Refusal, match=r"has numbers above 1e\+100 in the column x, such as 3e160: write it in another unit"):
        kind_of("x", "3e160", "1")


def test_equal_numbers_have_the_standard_deviation_1() -> None:
    described = inputs_of.described(inputs_of.Part("c", "number"), (), np.array([0.1, 0.1, 0.1, np.nan]))
    assert (described.mean, described.std) == (0.1, 1.0)  # type: ignore[union-attr]


def test_the_last_date_has_a_cell() -> None:
    column = NumberColumn(kind="date", name="when", missing=False, mean=0.0, std=1.0)
    assert column.cell(column.stored(read("date", "9999-12-31", "when")) + 10) == "9999-12-31"


def test_a_table_that_cannot_be_used_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "two/train.csv", "size,label", *labelled(*SIZES))
    write(tmp_path / "two/valid.csv", "label", "a", "b")
    with pytest.raises(Refusal, match=r"valid\.csv lacks the column size of .*train\.csv"):
        settings(tmp_path / "two").open(workers=1)
    path = write(tmp_path / "a.csv", "size,part,label", *[f"{size},test,{size}" for size in SIZES])
    with pytest.raises(Refusal, match=r"source\.split_column: .*a\.csv: has no row of train in the column part"):
        settings(path, task="regression", split_column="part").open(workers=1)
    pq.write_table(pa.table({"size": [1, 4], "label": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(Refusal, match=r"have names, not numbers: set source\.label_column to names"):
        settings(tmp_path / "a.parquet", label_column=2).open(workers=1)
    monkeypatch.setattr(table, "MOST_COLUMNS", 1)
    path = write(tmp_path / "b.csv", "size,more,label", *labelled(*[f"{size},{size}" for size in SIZES]))
    with pytest.raises(Refusal, match=r"has 2 columns that can be inputs, more than 1: add some to source\.ignored_columns"):
        settings(path, ignored_columns=()).open(workers=1)


def test_a_column_that_tells_the_label_is_named(tmp_path: Path) -> None:
    lines = [f"{'xy'[number % 2]},{number % 2 + 3},{'xyz'[number % 3]},{number}.5,{'ab'[number % 2]}" for number in range(12)]
    dataset, _ = opened(settings(write(tmp_path / "a.csv", "species,code,other,size,label", *lines)))
    said = [note for note in dataset.notes if "warning" in note]
    assert [note.split()[3] for note in said] == ["species", "code"]
    assert said[0].startswith("warning: the column species has one value for each label: ")
    assert said[0].endswith("""add 'source.ignored_columns=["species"]'""")
    path = write(tmp_path / "b.csv", "size,price", *(f"{number}.5,{number * 3}.25" for number in range(12)))
    assert not any("warning" in note for note in opened(settings(path, label_column="price", task="regression"))[0].notes)


def test_columns_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    count = [*range(12)]
    frame = {"size": [number * number for number in count], "label": ["ab"[number % 2] for number in count]}
    pq.write_table(pa.table({**frame, "place": [{"x": 1}] * 12, "image": [b"1"] * 12}), tmp_path / "a.parquet")
    several = [{"size": size, "label": label, **({"late": 1} if size else {})} for size, label in zip(*frame.values(), strict=True)]
    write(tmp_path / "a.jsonl", *map(json.dumps, several))
    for name, unread in {"a.parquet": "place, image", "a.jsonl": "late"}.items():
        dataset, _ = opened(settings(tmp_path / name))
        assert dataset.notes[-1].startswith("columns not read")
        assert dataset.notes[-1].endswith(f"lacks them: {unread}")


def test_an_index_with_gaps_that_pandas_adds_is_left_out() -> None:
    for name in ("Unnamed: 0", "__index_level_0__"):
        assert kind_of(name, "0", "7", "90") == columns.LeftOut("the index that pandas adds")
        assert kind_of(name, "0", "7", "7") == kind_of("size", "0", "7", "90") == "number"


def test_a_code_that_looks_like_a_huge_number_is_a_text() -> None:
    assert kind_of("commit", *["5636e188", "a1b2c3d4"] * 2) == "category"
    with pytest.raises(Refusal, match="write it in another unit"):
        kind_of("energy", *["5636e188", "1.5"] * 2)
