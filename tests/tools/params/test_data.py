"""`set data=PATH`: what it takes data for, what it asks, and that it loses nothing."""

import json
import random
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.yaml_document import Document
from pipeline.tools import training_time
from pipeline.tools.params import command, data, recommending
from pipeline.tools.training_time import StepTime
from tests.imports import TOP
from tests.sources.pictures import picture, write_folder, write_zip

Refused = Callable[..., list[str]]
PICTURES = {f"{name}/{number}.png": picture(20 * number + 7) for name in ("cat", "dog") for number in range(6)}
COUNTED = training_time.counted
WORDS = ("red", "blue", "green", "round", "long", "old", "new")


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untimed: None) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TOP / "presets", "presets")
    shutil.copy(TOP / "params.yaml", "params.yaml")
    Path("data").mkdir()


def text(number: int) -> str:
    return f'the {WORDS[number % 7]} "thing", number {number}'


def rows(count: int = 12, *, label: str = "label") -> list[dict[str, Any]]:
    """Return rows with a number, one label of two, and a text."""
    return [{"id": f"r{number}", label: ("fruit", "metal")[number % 4 == 0], "about": text(number)} for number in range(count)]


def unspaced(letters: str, size: int) -> list[str]:
    """Return 60 different texts of `size` to `size + 2` letters without white space."""
    draw = random.Random(1)
    return ["".join(draw.choices(letters, k=size + number % 3)) for number in range(60)]


def csv(path: str, found: list[dict[str, Any]], *, names: bool = True) -> Path:
    def line(values: Any) -> str:
        return ",".join('"' + str(value).replace('"', '""') + '"' for value in values) + "\n"

    Path(path).write_text("".join([line(found[0])] * names + [line(row.values()) for row in found]), encoding="utf-8")
    return Path(path)


def source(*words: str) -> dict[str, Any]:
    """Run `set`, and return the section `source` that it has written."""
    assert main(["set", *words]) == 0
    found: dict[str, Any] = Document.of(Path("params.yaml").read_text(encoding="utf-8"), Path("params.yaml")).data["source"]
    return found


def test_a_table_that_lists_images_and_a_parquet_file_of_images_are_found_alone() -> None:
    write_folder(Path("data/folder"), PICTURES)
    csv("data/folder/list.csv", [{"file": name, "kind": name[:3]} for name in PICTURES])
    found = source("data=data/folder/list.csv")
    assert (found["root"], found["table"], found["image_column"], found["label_column"]) == ("data/folder", "list.csv", "file", "kind")
    pq.write_table(pa.table({"picture": list(PICTURES.values()), "kind": [name[:3] for name in PICTURES]}), "data/a.parquet")
    found = source("data=data/a.parquet")
    assert (found["root"], found["table"], found["image_column"], found["label_column"]) == ("data/a.parquet", None, "picture", "kind")


def test_a_column_without_a_name_and_labels_that_are_truth_values_are_no_obstacle() -> None:
    csv("data/a.csv", [{"": number, **row} for number, row in enumerate(rows())])
    assert source("data=data/a.csv")["label_column"] == "label"
    Path("data/a.jsonl").write_text("".join(json.dumps({"text": text(n), "spam": n % 3 == 0}) + "\n" for n in range(90)))
    found = source("data=data/a.jsonl")
    assert (found["text_column"], found["label_column"]) == ("text", "spam")


def test_images_outside_of_the_folder_data_are_not_searched(refused: Refused) -> None:
    write_folder(Path("elsewhere"), {f"{number}.png": picture(number) for number in range(12)})
    csv("data/a.csv", [{"file": f"{number}.png", "label": "ab"[number % 2]} for number in range(12)])
    [said] = refused("set", "data=data/a.csv")
    assert said.endswith("there are none of them in data: put them there, or write as data=PATH the folder that has both")


def test_texts_by_class_are_measured_whatever_is_done_with_equal_ones() -> None:
    for number in range(24):
        path = Path(f"data/files/{'ab'[number % 2]}/{number}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("other word " * 20)
    found = source("data=data/files", "source.duplicates=keep")
    assert (found["duplicates"], found["max_length"], found["text_column"]) == ("keep", 40, None)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (unspaced("\u7535\u5f71\u5f88\u597d\u6211\u4eec", 12), ("character", 14, 2)),
        (unspaced("\u0e01\u0e02\u0e04\u0e07\u0e08", 30), ("character", 32, 4)),
        (unspaced("ACGT", 40), ("character", 42, 4)),
        ([text(number) for number in range(60)], ("word", 8, 2)),
        ([f"{text(number)} \U0001f600" for number in range(60)], ("word", 9, 2)),
        ([f"{each} {text(number)}" for number, each in enumerate(unspaced("\u7535\u5f71\u5f88\u597d", 12))], ("character", 43, 4)),
    ],
    ids=["Chinese", "Thai", "DNA", "English", "emoji", "mixed"],
)
def test_the_tokenizer_suits_the_texts_and_their_length_is_in_its_tokens(texts: list[str], expected: tuple[str, int, int]) -> None:
    csv("data/a.csv", [{"text": each, "label": "ab"[number % 2]} for number, each in enumerate(texts)])
    found = source("data=data/a.csv", "source.text_column=text")
    model = Document.of(Path("params.yaml").read_text(encoding="utf-8"), Path("params.yaml")).data["model"]
    assert (found["tokenizer"], found["max_length"], model["max_n"]) == expected
    assert source("data=data/a.csv", "source.text_column=text", "source.tokenizer=byte")["vocabulary"] is None


def test_a_corpus_of_many_characters_gets_a_vocabulary_for_them() -> None:
    Path("data/a.txt").write_text("".join(chr(0x4E00 + number * number % 997) for number in range(5000)), encoding="utf-8")
    assert source("data=data/a.txt")["vocabulary"] == 502
    Path("data/a.txt").write_text("once upon a time " * 99, encoding="utf-8")
    assert source("data=data/a.txt")["vocabulary"] == 200


def test_pairs_without_names_are_taken_by_the_numbers_of_their_columns(refused: Refused) -> None:
    csv("data/pairs.csv", [{"a": text(number), "b": text(number)[::-1]} for number in range(12)], names=False)
    assert "write the number of the column, such as source.target_column=2" in refused("set", "data=data/pairs.csv")[0]
    found = source("data=data/pairs.csv", "source.target_column=2", "source.tokenizer=byte")
    assert (found["text_column"], found["target_column"], found["vocabulary"]) == (1, 2, None)


def test_the_command_that_names_an_encoding_works_when_pasted(refused: Refused) -> None:
    content = "label,text\n" + "".join(f"{'ab'[number % 2]},\u5f88\u597d {number} \u7684 film\n" for number in range(12))
    Path("data/a.csv").write_bytes(content.encode("gbk"))
    [message] = refused("set", "data=data/a.csv", "train.epochs=3")
    [command] = re.findall("`python -m pipeline (.*?)`", message)
    [name] = re.findall(r'(\w+)` for "\u5f88', message)
    assert main(shlex.split(command.partition("encoding=")[0] + f"encoding={name}")) == 0
    written = Document.of(Path("params.yaml").read_text(encoding="utf-8"), Path("params.yaml")).data
    assert (written["source"]["encoding"], written["train"]["epochs"]) == ("gbk", 3)
    assert "is no encoding that Python knows" in refused("set", "data=data/a.csv", "source.encoding=gbkk")[0]


def test_a_table_in_an_archive_is_named_by_the_key_table_so_that_the_root_exists() -> None:
    numbers = [{"size": number * 7 % 12 / 2, "label": "ab"[number % 2]} for number in range(12)]
    for found in (rows(), numbers):
        write_zip(Path("data/all.zip"), {"notes/a.csv": csv("a.csv", found).read_bytes()})
        written = source("data=data/all.zip")
        assert (written["root"], written["table"]) == ("data/all.zip", "notes/a.csv")


def test_it_says_what_it_saw_and_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    table = csv("data/a.csv", [*rows(), rows()[0] | {"id": "again"}])
    source(f"data={table}", "train.epochs=3")
    printed = capsys.readouterr().out
    for line in (
        "set: data/a.csv: labelled texts: 13 samples of train",
        "set: label_column: label",
        "set: 2 classes: fruit 9 (69.2%), metal 4 (30.8%)",
        "set: 1 samples of train equal an earlier one",
        "set: train.epochs: 30 -> 3\n",
    ):
        assert line in printed


def test_where_two_readings_are_possible_it_asks_for_the_key_that_decides(refused: Refused) -> None:
    write_folder(Path("data/both"), PICTURES)
    listed = [{"file": name, "kind": name[:3]} for name in PICTURES]
    csv("data/both/list.csv", listed)
    csv("data/both/more.csv", [row | {"size": "abc"[number % 3]} for number, row in enumerate(listed)])
    [message] = refused("set", "data=data/both")
    assert "add source.table=list.csv or source.table=more.csv; and in more.csv, 2 columns may hold the labels" in message
    assert message.endswith("to read images in folders by class instead, which leaves unused: list.csv, more.csv, add source=image_folder")
    assert source("data=data/both", "source=image_folder")["root"] == "data/both"
    Path("data/both/more.csv").unlink()
    csv("data/both/list.csv", listed[1:-1])
    [message] = refused("set", "data=data/both")
    assert "add source=image_folder (images in folders by class, which leaves unused: list.csv) or source=image_table (images" in message


def test_two_columns_of_texts_beside_labels_may_be_pairs(refused: Refused) -> None:
    csv("data/two.csv", [row | {"title": row["about"][::-1]} for row in rows()])
    [message] = refused("set", "data=data/two.csv")
    assert (
        "or 3 columns have texts: to train a model that reads the text of one column and writes that of another, add source.text_column="
        in message
    )
    found = source("data=data/two.csv", "source.target_column=title", "source.text_column=about")
    assert (found["name"], found["text_column"]) == ("text_pairs", "about")


def write_numbers() -> None:
    Path("data/numbers.txt").write_text("".join(f"{n % 2} {n} {n * 7 % 9} {n * 5 % 8}\n" for n in range(30)))


def test_labels_before_numbers_are_labelled_texts_if_the_user_says_so() -> None:
    write_numbers()
    found = source("data=data/numbers.txt", "source=text_classification", "source.text_column=2")
    assert (found["name"], found["label_column"], found["text_column"]) == ("text_classification", 1, 2)


def write_bad() -> dict[str, str]:
    """Write data that cannot be used, and return the words of each refusal by the arguments of `set`."""
    csv("data/a.csv", rows())
    csv("data/blank.csv", [row | {"label": ""} for row in rows()])
    csv("data/prices.csv", [row | {"label": f"{number}.5"} for number, row in enumerate(rows())])
    lines = [f"{'ab'[number % 2]},{text(number).split(',')[0]}\n" for number in range(10)]
    Path("data/ragged.csv").write_text("".join(["label,text\n", *lines, "a,b,c d\n"]).replace('"', ""), encoding="utf-8")
    pq.write_table(pa.table({"text": [["a b"]] * 9, "label": [0, 1, 0] * 3}), "data/nested.parquet")
    csv("data/ratings.csv", [row | {"about": "good", "stars": number % 3} for number, row in enumerate(rows())])
    keyed = [{"text": text(number), "label": "ab"[number % 2]} for number in range(12)]
    Path("data/keys.jsonl").write_text("".join(json.dumps(row if number else {"text": "one"}) + "\n" for number, row in enumerate(keyed)))
    csv("data/words.csv", [{"name": f"Ann{number}", "kind": "ab"[number % 2]} for number in range(12)])
    csv("data/faces.csv", [{"emotion": number % 2, "pixels": " ".join(map(str, range(number, number + 64)))} for number in range(12)])
    Path("data/list.json").write_text("[]")
    Path("data/mushrooms.codes").write_text("p,x,s,n\ne,x,s,y\n")
    Path("data/objects.json").write_text(json.dumps([{"title": text(n), "questions": [{"q": text(n)}]} for n in range(9)]))
    marked = "".join(f"caf\xe9 {n},{'ab'[n % 2]},{'xy'[n % 3 == 0]}\n" for n in range(12))
    Path("data/latin.csv").write_bytes(f"text,a,b\n{marked}".encode("cp1252"))
    h5, zipped = {"train.h5": b"\x89HDF"}, {"labels.txt": b"0 cat\n1 dog\n", "images.zip": b"PK"}
    write_folder(
        Path("data"),
        {f"{folder}/{name}": content for folder, files in {"h5": h5, "zipped": zipped}.items() for name, content in files.items()},
    )
    for folder in ("one/poems", "untrained/dev", "untrained/test"):
        write_folder(
            Path("data", folder),
            {f"a.{suffix}": b"a verse\n" * 9 for suffix in ("src", "ref") if "one" not in folder}
            or {"a.txt": b"a verse\n", "b.txt": b"a line\n"},
        )
    write_numbers()
    books = {f"{folder}/{n}.txt": f"a {folder} of {n}\n".encode() for folder in ("psalm", "song") for n in range(4)}
    write_folder(Path("data/books"), {**books, "song/scrape.py": b"import re\n"})
    Path("data/svm.txt").write_text("1 1:0.5 7:1\n0 2:0.25\n")
    rows_alone = {"labels.csv": "".join(f"{n / 7:.3f},{n / 3:.3f}\n" for n in range(12)).encode()}
    write_folder(Path("data/spots"), {**rows_alone, **{f"photos/{n}.png": picture(n) for n in range(3)}})
    return {
        "data=data/numbers.txt": "has rows of whole numbers: if it is a table, call it numbers.csv; if these are labels and texts, add source=text_classification",
        "data=data/books": "1 of the 9 files in its folders are no texts by their names, such as song/scrape.py: move them away, or, if they are texts of",
        "data=data/svm.txt": "has rows of libsvm, INDEX:VALUE, which no source reads: write a .csv with a column for each index; if it is a text, add source=text",
        "data=data/spots": "; its images are then unused: data=data/spots: no column of labels.csv lists the images",
        "data=data/objects.json source.text_column=title": "the column questions has objects, which no source reads: write a row for each of them",
        "data=data/latin.csv": "; then, with cp1252: 2 columns may hold the labels: add source.label_column=a",
        "data=data/h5": "save the arrays of train.h5 as .npy; else arrange",
        "data=data/zipped": "to read an archive, write its path, data=data/zipped/images.zip",
        "data=data/one source=text_classification": "has texts in one folder only, poems: if that folder is the dataset, write data=data/one/poems",
        "data=data/untrained": "it has a split test and valid, but none for train: add one",
        "data=data/mushrooms.codes": "looks like none of",
        "data=data/mushrooms.codes source=table": "if it is a table, rename it to data/mushrooms.csv; else arrange it",
        "data=data/list.json": "data/list.json: has no rows: add some",
        "data=data/a.csv source=image_foldr": "did you mean `image_folder`?",
        "data=data/none": "there is no such file or folder",
        "data=data/a.csv source.label_column=kind": "data/a.csv has no such column: choose one of id, label, about",
        "data=data/prices.csv": "no column has classes, but label has numbers: to train a regression, add source.task=regression",
        "data=data/prices.csv source.label_column=label": "store classes as names or whole numbers",
        "data=data/ragged.csv": "data/ragged.csv:12: has 3 columns, but line 1 has 2",
        "data=data/ratings.csv source=text_classification": " or source.text_column=label (2 different values); and 2 columns may hold the labels: add source.label_column=label (2 different",
        "data=data/nested.parquet": "has no column that can be an input: columns not used: text (nested values)",
        "data=data/faces.csv": "columns not used: pixels (lists of numbers: if they are pixels, write them as arrays or images",
        "data=data/keys.jsonl": "data/keys.jsonl:1: has no key label: write one object per line with the keys text and label",
        "data=data/words.csv": "texts are read by source=text_classification",
        "data=data/blank.csv": "no column has classes (label has no values), but 2 have texts",
        "data=": "data=: names no data: write data=PATH",
        "data=data/a.csv source=[x]": "source=[x]: should be the name of a source: write source=NAME",
        "data=data/a.csv source.table=5": "source.table=5: should be text, not 5",
        "data=data/a.csv source.image_column=[x]": 'source.image_column=[x]: should be text or a whole number, not ["x"]',
        "data=data/a.csv source=arrays": "looks like no NumPy arrays: arrange it as docs/data.md shows, or leave out source=arrays",
        "data=data/a.csv preset=digits": "data=PATH chooses all parameters",
    }


def test_data_that_cannot_be_used_are_refused_in_one_sentence_and_nothing_is_written(refused: Refused) -> None:
    before = Path("params.yaml").read_bytes()
    for words, expected in write_bad().items():
        [message] = refused("set", *words.split())
        assert expected in message, words
    assert Path("params.yaml").read_bytes() == before


def test_a_value_that_one_source_can_read_is_not_wrong_unless_another_is_named() -> None:
    assert not data.wrong_values({"label_column": None})
    [problem] = data.wrong_values({"label_column": None, "name": "image_table"})
    assert problem.location == ("label_column",)


@pytest.mark.parametrize("inputs", ["texts", "rows"])
def test_a_list_of_columns_is_one_class_several_labels_or_numbers_by_its_values(capsys: pytest.CaptureFixture[str], inputs: str) -> None:
    marks = {
        "one class": ((1, 0), (0, 1)),
        "several labels": ((1, 0), (0, 1), (1, 1), (0, 0)),
        "numbers": ((0.5, 120), (0.25, 80), (0.75, 95)),
    }
    for name, cells in marks.items():
        path = csv(
            f"data/{name}.csv",
            [{"about": text(n) if inputs == "texts" else n / 7, **dict(zip("ab", cells[n % len(cells)], strict=True))} for n in range(60)],
        )
        given = ["source.task=regression"] * (name == "numbers" and inputs == "texts")
        assert main(["set", f"data={path}", "source.label_column=[a, b]", *given]) == 0, capsys.readouterr().err
        chosen = Document.of(Path("params.yaml").read_text(encoding="utf-8"), Path("params.yaml")).data
        of_classes = "valid/accuracy" if inputs == "texts" else "valid/loss"
        expected = {"one class": ("classification", of_classes), "numbers": ("regression", "valid/r2")}
        found = (chosen["source"]["task"], chosen["train"]["metric"])
        assert found == expected.get(name, ("multi_label", "valid/average_precision"))


def test_a_table_that_is_read_as_a_text_is_not_listed_as_unused(capsys: pytest.CaptureFixture[str]) -> None:
    csv("data/a.csv", rows())
    for root in ("data", "data/a.csv"):
        source(f"data={root}", "source=text")
        assert "not used" not in capsys.readouterr().out


def test_a_text_that_begins_with_a_verse_is_no_file_of_libsvm() -> None:
    Path("data/verses.txt").write_text("Genesis 1:1\n" + "".join(f"And there was day {n}\n" for n in range(30)))
    assert source("data=data/verses.txt")["name"] == "text"


def test_one_table_beside_prose_leaves_a_corpus() -> None:
    prose = {f"{name}.txt": "".join(f"One fine day she went to {name}{n}.\n" for n in range(40)).encode() for name in ("a", "b")}
    write_folder(Path("data/novels"), {**prose, "toc.txt": "".join(f"{n}\tchapter {n}\t{3 * n}\n" for n in range(20)).encode()})
    assert source("data=data/novels")["name"] == "text"
    write_folder(Path("data/parts"), {"one.txt": prose["a.txt"], "more/two.txt": prose["b.txt"]})  # of equally many lines, by chance
    assert source("data=data/parts")["name"] == "text"


def test_what_one_file_leaves_unused_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x-train-1", "x-dev", "y-dev"):
        csv(f"data/{name}.csv", rows())
    source("data=data/x-train-1.csv")
    printed = capsys.readouterr().out
    assert "set: columns not used: id\n" in printed
    assert "set: beside it, not read: x-dev.csv: data=data reads its folder\n" in printed


def test_what_is_replaced_is_kept() -> None:
    edited = Path("params.yaml").read_text(encoding="utf-8").replace("epochs: 30", "epochs: 31")
    Path("params.yaml").write_text(edited, encoding="utf-8")
    source(f"data={csv('data/a.csv', rows())}")
    [kept] = Path(".pipeline/replaced").iterdir()
    assert kept.read_text(encoding="utf-8") == edited


def test_without_a_gpu_the_training_suits_a_cpu_and_says_how_long_it_takes(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(Path("data/folder"), {f"{name}/{n}.png": picture(n % 250, side=90) for name in ("cat", "dog") for n in range(150)})
    monkeypatch.setattr(training_time, "counted", COUNTED)
    monkeypatch.setattr(training_time, "measured", lambda *given: StepTime(4 * given[2].sample_s, given[2].step_s))

    def chosen(*words: str) -> tuple[str, int]:
        assert main(["set", "data=data/folder", *words]) == 0
        data = Document.of(Path("params.yaml").read_text(encoding="utf-8"), Path("params.yaml")).data
        return data["model"]["name"], data["train"]["epochs"]

    monkeypatch.setattr(recommending, "ENOUGH_S", 1e6)
    assert chosen() == ("resnet", 60)
    assert "the training takes about" in capsys.readouterr().out
    monkeypatch.setattr(recommending, "ENOUGH_S", 400.0)
    name, epochs = chosen()
    assert name == "convnet"
    assert 30 <= epochs < 60
    assert "train.epochs=" in capsys.readouterr().out, "this machine is slower than the nominal one"
    monkeypatch.setattr(recommending, "ENOUGH_S", 1.0)
    assert chosen() == ("convnet", 1)
    assert "not even one epoch ends in ten minutes: leave out samples" in capsys.readouterr().out
    assert chosen("model=resnet", "train.epochs=7") == ("resnet", 7)
    monkeypatch.setattr(recommending.machine, "choose_device", lambda _: torch.device("cuda"))
    assert chosen() == ("resnet", 60)


def test_links_beside_a_table_without_images_are_no_obstacle(refused: Refused) -> None:
    path = csv("data/a.csv", [{"text": f"sun and rain {number}", "label": ""} for number in range(20)])
    Path("data/loop").symlink_to(Path("data").resolve())
    assert "no column looks like the labels (label has no values)" in refused("set", f"data={path}")[0]


def test_the_comments_about_the_data_of_a_preset_are_left_out() -> None:
    for path in sorted((TOP / "presets").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        bare = command.without_comments_of_source(text)
        before, source, after = re.split(r"^(source:\n(?: .*\n)+)", bare, maxsplit=1, flags=re.MULTILINE)
        assert "#" not in source
        assert text.startswith(before)
        assert text.endswith(after)
        assert Document.of(bare, Path("a")).data == Document.of(text, Path("a")).data
