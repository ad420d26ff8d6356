"""A changed parameter file loads, or the refusal names the place and the key."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.core.params import MISSING, adding_lines, from_data, load, shown, validate
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.prepare.params import PrepareParams
from pipeline.tools.params.reference import STAGE_PARAMS
from pipeline.train.params import TrainParams
from tests.imports import TOP

DIGITS = Document.read(TOP / "presets/digits.yaml").data
KEYS = [(section, key) for section, content in DIGITS.items() for key in ([None, *content] if isinstance(content, dict) else [None])]
STRANGE = [None, True, "word", "", -1, 0, 3, 3.5, 10**40, float("inf"), float("nan"), [1], [], {"name": "mlp"}, {}, "a" * 500]


def mutate(kind: str, section: str, key: str | None, value: Any) -> tuple[dict[str, Any], str]:
    """Return the preset with one key deleted, renamed or set to `value`, and the name that the refusal must mention."""
    data = {name: dict(content) if isinstance(content, dict) else content for name, content in DIGITS.items()}
    place, name = (data, section) if key is None else (data[section], key)
    old = place.pop(name)
    if kind == "delete":
        return data, name
    renamed = f"{name}_" if kind == "rename" else name
    place[renamed] = old if kind == "rename" else value
    return data, renamed


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(st.sampled_from(["delete", "rename", "retype"]), st.sampled_from(KEYS), st.sampled_from(STRANGE))
def test_a_spoiled_file_loads_or_is_refused_by_the_name_of_the_key(tmp_path, kind: str, place: tuple[str, str | None], value: Any) -> None:
    data, name = mutate(kind, *place, value)
    path = tmp_path / "params.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(data, file)
    document, refusals = Document.read(path), []
    for params in STAGE_PARAMS.values():
        try:
            load(document, params)
        except Refusal as refusal:
            refusals.append(str(refusal))
    for line in "\n".join(refusals).splitlines():
        assert re.match(rf"{re.escape(str(path))}:[1-9]\d*: \w+(\.\w+)*: .", line), line
    assert all(re.search(rf"\b{name}\b", refusal) for refusal in refusals)
    assert refusals or kind == "retype"


def test_data_from_elsewhere_is_named_by_its_origin() -> None:
    data = {**DIGITS, "model": {"name": "mlp", "weights": None, "width": "wide", "depth": 1}}
    with pytest.raises(Refusal) as caught:
        from_data(data, TrainParams, "the model file")
    assert str(caught.value).splitlines()[0] == 'the model file: model.width: should be a whole number, not "wide"'
    assert from_data(DIGITS, PrepareParams, "here").source.name == "digits"


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("table", "label_column", True, "source.label_column: should be text, a whole number or a list, such as [a, b], not true"),
        ("table", "label_column", ["a", None], "source.label_column.1: should be text or a whole number, not null"),
        ("table", "label_column", 0, "source.label_column: should be greater than or equal to 1, not 0"),
        ("table", "label_column", "", 'source.label_column: should have at least 1 character, not ""'),
        ("table", "label_column", [], "source.label_column: should have at least 1 item, not []"),
        ("text", "tokenizer", 5, "source.tokenizer: should be 'character', 'byte', 'word', 'bpe' or 'pretrained', not 5"),
    ],
)
def test_a_value_that_has_no_form_of_a_union_is_refused_once(name: str, key: str, value: Any, message: str) -> None:
    problems = validate({"source": {"name": name, key: value}}, PrepareParams)[1]
    assert [str(problem) for problem in problems if problem.text != MISSING] == [message]


def test_a_later_refusal_gets_the_line_of_the_key_that_it_begins_with() -> None:
    document = Document.read(TOP / "presets/digits.yaml")
    line = document.line(("source", "root"))
    text = "source.root: a: b\ndata/x: source.root: no\nsource.nothing: c\nPIPELINE_DEVICE=cuda: d"
    with pytest.raises(Refusal) as caught, adding_lines(document):
        raise Refusal(text)
    assert str(caught.value).splitlines() == [
        f"{document.path}:{line}: source.root: a: b",
        "data/x: source.root: no",
        f"{document.path}:{document.line(('source',))}: source.nothing: c",
        "PIPELINE_DEVICE=cuda: d",
    ]


def test_a_long_value_is_shown_by_its_beginning() -> None:
    assert shown("a" * 500) == '"' + "a" * 56 + "..."
