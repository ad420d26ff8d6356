"""Labelled texts from tables and files by class: what is read, and what is refused with its line."""

import json
import re

import numpy as np
import pytest

from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer import Tokenizer
from pipeline.prepare.stage import prepare, survey
from pipeline.sources import text_classification
from tests.pretrained_tokenizers import FITTED

from . import settings

WORD = {"tokenizer": "word", **FITTED, "vocabulary": 50, "min_count": 1, "normalization": ["lowercase"], "max_length": 4}
BYTE = {"tokenizer": "byte", **FITTED, "vocabulary": None, "min_count": None, "normalization": [], "max_length": 8}
NUMBERED = {"text_column": 2, "label_column": 1}
NAMED = {"text_column": "text", "label_column": "label"}
FILES = {"text_column": None, "label_column": None}
LINES = ["good\ta fine day", "bad\tThe rain", "good\tsun and sun and sun", "bad\tcold", "good\twarm", "bad\tgrey"]


def params(root, **changes):
    return settings.params(text_classification.Settings, root, **{"test": 0.4, "duplicates": "keep"} | WORD | NUMBERED | changes)


def run(root, top, **changes):
    prepare(params(root, **changes), Paths(top), Environment())
    return Prepared.open(Paths(top).prepared)


def refusal(root, **changes):
    with pytest.raises(Refusal) as caught:
        survey(params(root, **changes), workers=1)
    return str(caught.value)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts_of(prepared, split):
    tokenizer = Tokenizer(prepared.spec.inputs.tokenizer)
    classes = prepared.spec.targets.classes
    rows = prepared.splits[split]
    return [(classes[target], tokenizer.decode(row)) for target, row in zip(rows.targets, rows.inputs, strict=True)]


def test_a_table_is_split_tokenized_and_stored(tmp_path, capsys):
    prepared = run(write(tmp_path / "a.tsv", "\n".join(LINES) + "\n"), tmp_path)
    assert {name: len(split) for name, split in prepared.splits.items()} == {"train": 4, "test": 2}
    found = texts_of(prepared, "train") + texts_of(prepared, "test")
    assert prepared.spec.inputs.length == 4
    assert prepared.train.inputs.dtype == np.int32
    assert ("good", "sun and sun and") in found or "sun" not in prepared.spec.inputs.tokenizer.vocabulary
    assert sorted(label for label, _ in found) == ["bad"] * 3 + ["good"] * 3
    output = capsys.readouterr().out
    assert "prepare: 1 of 6 texts have more than 4 tokens (source.max_length) and were truncated\n" in output
    assert f"prepare: the tokenizer `word` has {prepared.spec.inputs.num_tokens} tokens\n" in output


@pytest.mark.parametrize("form", ["table", "files"])
def test_equal_texts_go_to_one_split_together_and_have_their_places_as_keys(tmp_path, form):
    lines = [("ab"[number % 2], f"text {number // 4}") for number in range(80)]
    if form == "table":
        root, columns = write(tmp_path / "texts.tsv", "".join(f"{label}\t{text}\n" for label, text in lines)), NUMBERED
    else:
        root, columns = tmp_path / "texts", FILES
        for number, (label, text) in enumerate(lines):
            write(root / label / f"{number}.txt", text)
    prepared = run(root, tmp_path / "top", duplicates="together", valid=0.2, test=0.2, **columns)
    places = {}
    for split in prepared.splits:
        for key in map(json.loads, (Paths(tmp_path / "top").prepared / f"{split}-keys.jsonl").read_text().splitlines()):
            number = int(key.partition(":")[2]) - 1 if form == "table" else int(key.partition("/")[2].removesuffix(".txt"))
            places.setdefault(lines[number][1], set()).add(split)
    assert len(places) == 20
    assert all(len(splits) == 1 for splits in places.values())
    assert [len(prepared.split(name)) for name in ("valid", "test")] == [12, 16]


def test_the_split_of_a_table_is_that_of_its_texts_in_any_order(tmp_path):
    lines = [f"{'ab'[number % 2]}\ttext{number}\n" for number in range(40)]
    found = []
    for number, order in enumerate((lines, lines[::-1])):
        run(write(tmp_path / f"{number}.tsv", "".join(order)), tmp_path / str(number))
        keys = (Paths(tmp_path / str(number)).prepared / "test-keys.jsonl").read_text().splitlines()
        found.append({order[int(json.loads(key).partition(":")[2]) - 1] for key in keys})
    assert found[0] == found[1]


def test_of_one_table_only_the_texts_that_are_assigned_to_train_are_known(tmp_path):
    prepared = run(write(tmp_path / "a.tsv", "".join(f"{label}\tword{n}{label}\n" for n in range(5) for label in "ab")), tmp_path)
    assert len(prepared.spec.inputs.tokenizer.vocabulary) == len(prepared.train) == 6
    assert {text for _, text in texts_of(prepared, "test")} == {""}


def test_files_by_class_are_read(tmp_path):
    for split, name, content in [("train", "a", "one two"), ("train", "b", "three"), ("test", "a", "two"), ("test", "b", "one\nthree")]:
        write(tmp_path / f"data/{split}/{name}/1.txt", content)
    prepared = run(tmp_path / "data", tmp_path, **FILES)
    assert texts_of(prepared, "train") == [("a", "one two"), ("b", "three")]
    assert texts_of(prepared, "test") == [("a", "two"), ("b", "one three")]


def test_a_file_with_the_texts_of_a_class_belongs_to_the_split_of_its_folder(tmp_path):
    for name, content in {"train/good": "a day\n\nwarm", "train/bad": "cold", "test/good": "day"}.items():
        write(tmp_path / f"texts/{name}.txt", content)
    prepared = run(tmp_path / "texts", tmp_path, **FILES)
    assert texts_of(prepared, "train") == [("bad", "cold"), ("good", "a day"), ("good", "warm")]
    assert texts_of(prepared, "test") == [("good", "day")]


def test_equal_inputs_give_equal_bytes(tmp_path):
    path = write(tmp_path / "a.tsv", "\n".join(LINES))
    for tokenizer in (BYTE, {**WORD, "tokenizer": "bpe", "vocabulary": 280}):
        digests = {run(path, tmp_path / str(number), **tokenizer).digest for number in range(2)}
        assert len(digests) == 1


def unspaced(number):
    """Return 20 to 22 Chinese characters without white space, which differ from those of other numbers."""
    return "".join(chr(0x4E00 + (number * 7919 + 31 * at * at) % 60) for at in range(20 + number % 3))


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (WORD, "makes one token of 4 of 4 texts with 20 characters or more"),
        (WORD | {"tokenizer": "character", "vocabulary": 9}, "does not know "),
    ],
)
def test_a_tokenizer_that_does_not_suit_the_texts_is_named_and_the_advice_works(tmp_path, capsys, tokenizer, words):
    path = write(tmp_path / "a.tsv", "".join(f"{'ab'[number % 2]}\t{unspaced(number)}\n" for number in range(30)))
    run(path, tmp_path / "before", valid=0.2, test=0.2, **tokenizer)
    [warning] = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert words in warning
    [command] = re.findall("`python -m pipeline set (.*?)`", warning)
    advised = {
        key.removeprefix("source."): json.loads(value) if value.isdigit() else value
        for key, value in (word.split("=") for word in command.split())
    }
    prepared = run(path, tmp_path / "after", valid=0.2, test=0.2, **tokenizer | advised)
    assert "warning" not in capsys.readouterr().out
    assert (prepared.spec.inputs.tokenizer.kind, prepared.spec.inputs.length) == ("character", 22)


def test_files_in_another_encoding_are_read_by_its_name(tmp_path):
    for name, content in {
        "train_text.txt": "caf\xe9 a\nth\xe9 b\n" * 3,
        "train_labels.txt": "0\n1\n" * 3,
        "mapping.txt": "0\tn\xe9\n1\tb\n",
    }.items():
        write(tmp_path / "lines" / name, content.encode("cp1252"))
    for number in range(6):
        write(tmp_path / "files" / "ab"[number % 2] / f"{number}.txt", f"caf\xe9 {number}".encode("cp1252"))
    lines = run(tmp_path / "lines", tmp_path / "1", text_column="text", label_column="labels", encoding="cp1252")
    files = run(tmp_path / "files", tmp_path / "2", encoding="cp1252", **FILES)
    assert lines.spec.targets.classes == ("b", "n\xe9")
    assert all("caf\xe9" in prepared.spec.inputs.tokenizer.vocabulary for prepared in (lines, files))


GOOD = "good\tfine\nbad\train\n"
REFUSED = {
    "several bad rows": ("a.csv", "good,fine\n,fine\nbad,awful\n,bad\ngood,\n", {}, '3 of 5 rows cannot be used: line 2, 4: has no label but "" in the column 1: write one, remove the row, or leave out all such rows with source.on_corrupt=skip; line 5: has an empty text: write a text, remove the row, or leave out'),
    "a list as the label": ("a.jsonl", '{"text": "a", "label": ["b"]}\n', NAMED, "at most 255 characters; a list is read by source.task=multi_label"),
    "an object as the label": ("a.jsonl", '{"text": "a", "label": {"b": 1}}\n', NAMED, 'a.jsonl:1: has the label "{'),
    "half a character": ("a.jsonl", '\n{"text": "a", "label": "\\ud800"}\n', NAMED, "a.jsonl:2: has a half of a character"),
    "a label of 256 characters": ("a.tsv", GOOD + "g" * 256 + "\tfine\n", {}, "at most 255 characters"),
    "a ragged row": ("a.tsv", GOOD + "good\tfine\tmore\n", {}, "a.tsv:3: has 3 columns, but line 1 has 2"),
    "latin-1": ("a.tsv", GOOD.encode() + b"good\tcaf\xe9\n", {}, 'a.tsv:3: is not UTF-8 (byte 0xE9): name its encoding by `python -m pipeline set source.encoding=cp1252` for "\u00e9",'),
    "a NUL": ("a.tsv", GOOD + "good\tfi\0ne\n", {}, "a.tsv:3: has a NUL character"),
    "a missing column": ("a.tsv", GOOD, {"text_column": 3}, "a.tsv:1 has the columns 1, 2: write one"),
    "a name twice": ("a.csv", "text,label,text\n", NAMED, "a.csv:1 has the columns text, label, text"),
    "a field of megabytes": ("a.csv", "text,label\n" + "x" * (2**20 + 1) + ",a\n", NAMED, "a.csv:2: is not valid CSV (field larger than"),
    "an overlong text": ("a.tsv", "good\t" + "x" * (2**20 + 1), {}, "a.tsv:1: has a text of more than 1048576 characters: shorten or divide it"),
    "an open quote": ("a.csv", 'text,label\nx,a\n"y,b\nz,c\n', NAMED, "a.csv:3: is not valid CSV"),
    "no JSON": ("a.jsonl", '{"text": "a", "label": "b"}\n{"text"\n', NAMED, "a.jsonl:2: is not valid JSON"),
    "a JSON list": ("a.jsonl", "[1, 2]\n", NAMED, "a.jsonl:1: has [1, 2] where an object is expected: write one object per line"),
    "deep JSON": ("a.jsonl", "[" * 100_000 + "\n", NAMED, "a.jsonl:1: is not valid JSON"),
    "no key": ("a.jsonl", '{"label": "b"}\n', NAMED, "a.jsonl:1: has no key text: write one object per line with the keys text and label"),
    "no key later": ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": "c"}\n', NAMED, "a.jsonl:2: has no key label: write one object per line"),
    "names as a row": ("a.csv", "label,text\na,x\nb,y\na,y\nb,x\n", {}, "a.csv:1: no other row has the label label: if this line has the names"),
    "names in the middle": ("a.csv", "text,label\nx,a\ntext,label\n", NAMED, "a.csv:3: has the names of the columns in place of values: remove the row"),
    "names alone": ("a.csv", "text,label\n", NAMED, "a.csv: has no rows"),
    "no columns given": ("a.tsv", GOOD, FILES, "holds its texts in a table: write the name or number of its column of texts here"),
    "columns of files": ("x/1.txt", "text", {}, "give your table one of the suffixes .tsv, .csv, .jsonl, .ndjson"),
    "an empty file": ("x/1.txt", " \n", FILES, "x/1.txt: has an empty text"),
    "files of empty lines": ("a.txt", "\n", FILES, "data: has no row that can be used: add some"),
    "no train": ("test.tsv", GOOD, {}, "has test.tsv, but no table of train: add a table called train with one of the suffixes .tsv, .csv, .jsonl"),
    "a missing label": ("train.tsv", GOOD, {"label_column": 4}, "source.label_column: is 4, but "),
    "two tables of train": ("train.csv", GOOD, {}, "has 2 tables of train: keep one, or add source.table=train.csv or source.table=train.tsv"),
    "a label that train lacks": ("test.tsv", GOOD + "fair\tmild\npoor\tgrim\nfair\tcool\n", {}, "test.tsv:3: has the label fair, which no row of train has (3 rows have such labels, also poor): correct"),
}  # fmt: skip
BESIDE = {
    "x/1.txt": dict.fromkeys(("x/2.txt", "x/3.txt", "y/1.txt", "y/2.txt", "y/3.txt"), "fine rain"),
    "a.txt": {"b.txt": ""},
    "train.csv": {"train.tsv": GOOD},
}


@pytest.mark.parametrize(("name", "content", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_file_line_and_remedy(tmp_path, name, content, changes, message):
    path, others = write(tmp_path / "data" / name, content), BESIDE.get(name, {})
    if "which no row of train has" in message:
        others = {"train.tsv": GOOD}
    for other, beside in others.items():
        write(tmp_path / "data" / other, beside)
    if others or name.startswith("test"):
        path = tmp_path / "data"
    with pytest.raises(Refusal) as caught:
        run(path, tmp_path, **changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith("source.")
    assert "\n" not in str(caught.value)


def test_lines_without_a_text_are_left_out_and_counted(tmp_path, capsys):
    rows = [("good", ""), ("x", " "), *[("good", "a b"), ("bad", "c d")] * 4]
    for name, fields in zip(("train_labels.txt", "train_text.txt"), zip(*rows, strict=True), strict=True):
        path = write(tmp_path / "raw" / name, "".join(f"{field}\n" for field in fields))
    prepared = run(tmp_path / "raw", tmp_path, text_column="text", label_column="labels", on_corrupt="skip")
    assert sum(len(rows.targets) for rows in prepared.splits.values()) == 8
    assert prepared.spec.targets.classes == ("bad", "good")
    assert f"2 rows without a text or a label left out (source.on_corrupt): {path}:1, {path}:2" in capsys.readouterr().out


def test_lines_with_the_names_of_the_columns_again_are_left_out(tmp_path):
    content = "\n".join(["label\ttext", *LINES, "label\ttext", ""])
    dataset, _ = survey(params(write(tmp_path / "a.tsv", content), on_corrupt="skip", **NAMED), workers=1)
    assert (dataset.task.output_names, len(dataset.targets["train"])) == (("bad", "good"), len(LINES))


def test_the_one_of_several_columns_that_has_a_1_is_the_label(tmp_path):
    columns = {"text_column": "text", "label_column": ["b", "a"]}
    path = write(tmp_path / "a.csv", "text,a,b,c\n" + "x y,1,0.0,0\nz y,0,1.0,0\n" * 4)
    prepared = run(path, tmp_path, **columns)
    assert prepared.spec.targets.classes == ("a", "b")
    assert sorted(np.concatenate([rows.targets for rows in prepared.splits.values()]).tolist()) == [0] * 4 + [1] * 4
    for row, message in {
        "x,1,1,0": r"has a 1 in 2 columns of source.label_column \(b, a\): write one 1",
        "x,0,0,1": r"has a 1 in 0 columns of source.label_column \(only 0\): write one 1",
        "x,1,2,0": 'has "2" in the column b: write 1 if',
    }.items():
        write(path, f"text,a,b,c\nx y,1,0,0\nz y,0,1,0\n{row}\n")
        with pytest.raises(Refusal, match=f"a.csv:4: {message}"):
            run(path, tmp_path, **columns)


def test_a_tokenizer_that_would_not_fit_into_the_model_file_is_refused(tmp_path):
    words = [f"{'w' * 240}{number}" for number in range(60_000)]
    path = write(tmp_path / "a.tsv", "".join(f"{'ab'[number % 2]}\t{word}\n" for number, word in enumerate(words)))
    with pytest.raises(
        Refusal, match=r"^source\.vocabulary: the tokenizer of \d+ tokens has \d+ bytes as JSON, but at most 8388608 are allowed"
    ):
        run(path, tmp_path, vocabulary=65_536)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": None}, "source.vocabulary: must be a number for the tokenizer `word`"),
        ({**BYTE, "min_count": 2}, "source.min_count: must be null for the tokenizer `byte`"),
        ({"tokenizer": "bpe", "vocabulary": 259}, "source.vocabulary: must be at least 260 for the tokenizer `bpe`"),
        ({"max_length": 0}, "source.max_length: should be"),
        ({"label_column": "label"}, "source.text_column: must be of the same kind as label_column"),
        ({"label_column": 2}, "source.text_column: must be another column than label_column"),
        ({"split_column": "split"}, "source.split_column: must be of the same kind as label_column: both a name, or both a number"),
        ({"text_column": 0}, "source.text_column"),
    ],
)
def test_wrong_parameters_are_refused_with_their_key(tmp_path, changes, message):
    with pytest.raises(Refusal) as caught:
        params(tmp_path, **changes)
    assert message in str(caught.value)


def test_a_draw_that_leaves_equal_numbers_in_train_is_refused_with_its_seed(tmp_path):
    root = write(tmp_path / "a.tsv", "1\ta\n1\tb\n2\tc\n")
    assert "train as drawn by source.seed 4 (another may do): all train samples have the same" in refusal(root, task="regression", seed=4)
    survey(params(root, task="regression", seed=3), workers=1)
