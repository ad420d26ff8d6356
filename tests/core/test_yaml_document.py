"""The YAML loader agrees with DVC's and knows the line of every key."""

from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import parse_yaml

from pipeline.core.yaml_document import Document

VALUES = """  # the loader that keeps comments fails at the first value: two comments at one place
- a:  # one
    two

- !!str 5
- [1e-3, 1E5, 3., .5, +1, -0, 010, 0o17, 0x1F, 1_000, 1:30, 1e-3x, 1.2.3, .inf, -.INF]
- [off, yes, No, y, true, FALSE, ~, Null, '1', "1e-3", grün]
- {b: 1e-2, c: }
- |
  two
  lines
- >-
  one
  line
"""
MEANT: list[Any] = [
    {"a": "two"},
    "5",
    [0.001, 1e5, 3.0, 0.5, 1, 0, 10, 15, 31, 1000, "1:30", "1e-3x", "1.2.3", float("inf"), float("-inf")],
    ["off", "yes", "No", "y", True, False, None, None, "1", "1e-3", "grün"],
    {"b": 0.01, "c": None},
    "two\nlines\n",
    "one line",
]


def read(folder: Path, text: str) -> Document:
    path = folder / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return Document.read(path)


def test_values_are_what_dvc_takes_them_for(tmp_path: Path) -> None:
    text = "a:" + VALUES
    found, theirs = read(tmp_path, text).data["a"], parse_yaml(text, "params.yaml")["a"]
    assert repr(found) == repr(MEANT) == repr(theirs)  # 1, 1.0 and True are equal, but not their texts


def test_aliases_and_merged_sections_are_what_dvc_takes_them_for(tmp_path: Path) -> None:
    text = "a: &a\n  x: 1\n  y: 2\nb:\n  <<: *a\n  y: 3\nc: *a\n"
    document = read(tmp_path, text)
    assert document.data == parse_yaml(text, "params.yaml") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}
    assert document.line(("b", "y")) == 6
    assert document.line(("b", "x")) == 2


def test_what_yaml_knows_and_parameters_do_not_becomes_text(tmp_path: Path) -> None:
    assert read(tmp_path, "a: 2020-01-02\n1: b\nnull: c\n").data == {"a": "2020-01-02", "1": "b", "null": "c"}


@pytest.mark.parametrize("key", ["~", "[a, b]"])
def test_a_key_that_is_no_text_has_the_words_and_the_line_of_the_file(tmp_path: Path, key: str) -> None:
    document = read(tmp_path, f"seed: 1\ntrain:\n  steps: 3\n  {key}: x\nlast: &shared\n  {key}: y\nagain: *shared\n")
    assert document.data["train"] == {"steps": 3, key: "x"}
    assert document.data["last"] == document.data["again"] == {key: "y"}
    assert document.line(("train", key)) == 4


def test_every_key_knows_its_line_and_a_missing_one_that_of_its_section(tmp_path: Path) -> None:
    document = read(tmp_path, "# comment\nseed: 1\n\nmodel:\n  name: mlp\n  sizes:\n    - 3\n    - deep: 1\n5: x\n")
    lines = {
        ("seed",): 2,
        ("model",): 4,
        ("model", "name"): 5,
        ("model", "missing"): 4,
        ("model", "sizes", 0): 7,
        ("model", "sizes", 1, "deep"): 8,
        ("model", "sizes", 9): 6,
        ("model", "name", "deeper"): 5,
        ("missing", "x"): 1,
        ("5",): 9,
        (): 1,
    }
    assert {location: document.line(location) for location in lines} == lines


def test_a_reference_of_dvc_is_no_bracket(tmp_path: Path) -> None:
    path = tmp_path / "dvc.yaml"
    path.write_text("plots:\n" + "".join(f"- a/${{name{number}}}\n" for number in range(300)))
    assert len(Document.read(path).data["plots"]) == 300


def test_a_text_that_is_read_again_has_its_own_values(tmp_path: Path) -> None:
    read(tmp_path, "train: {epochs: 3}\n").data["train"]["epochs"] = 5
    assert read(tmp_path, "train: {epochs: 3}\n").data == {"train": {"epochs": 3}}
