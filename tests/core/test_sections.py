"""Laws of the sections of `params.yaml`, and a changed file that loads or is refused by the place and the key."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from dvc.stage.cache import _get_cache_hash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from pipeline.core.params import MISSING, adding_lines, from_data, load, shown, validate
from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES, MODELS, SOURCES
from pipeline.core.section import COMMON_KEYS, IGNORED_BY_DVC, Section, flatten, formatted, leaves
from pipeline.core.yaml_document import Document
from pipeline.prepare.params import PrepareParams
from pipeline.tools.params.reference import STAGE_PARAMS
from pipeline.train.params import LoopSettings, TrainParams
from tests.imports import TOP


def sections() -> Iterator[type[Section]]:
    """Yield every section of params.yaml, those of the registries included."""
    for family in (MODELS, LOSSES, SOURCES):
        for name in family.names:
            family.settings(name)
    waiting = [Section]
    while waiting:
        current = waiting.pop()
        waiting += current.__subclasses__()
        module = current.__module__
        # those of `core.params` are made of the others for one file; those of `search` describe a search file
        if (
            current is not Section
            and module.startswith("pipeline.")
            and module != "pipeline.core.params"
            and not module.startswith("pipeline.tools.search.")
        ):
            yield current


def test_every_field_that_decides_a_result_stands_in_the_file() -> None:
    found = [
        f"{section.__module__}.{section.__name__}.{name}"
        for section in sections()
        for name, field in section.model_fields.items()
        if not field.is_required()
    ]
    assert found == [], "a default would change results behind DVC's back"


def test_the_values_that_keep_results_are_those_of_existing_keys() -> None:
    for section in sections():
        assert {*section.inherited("ADDED")} <= {*section.model_fields}, section


def test_no_key_is_one_that_dvc_ignores() -> None:
    """DVC's run cache then gives the result of another value: it leaves these keys out of its own key, those of parameters included."""
    assert _get_cache_hash({"params": dict.fromkeys(IGNORED_BY_DVC, 1)}) == _get_cache_hash({"params": dict.fromkeys(IGNORED_BY_DVC, 2)})
    free = []
    for section in sections():
        assert not IGNORED_BY_DVC & section.model_fields.keys(), section
        free += [(section, field) for field in section.model_fields.values() if "dict[" in str(field.annotation)]
    assert free
    for _, field in free:
        mapping = TypeAdapter(Annotated[field.annotation, *field.metadata])
        assert mapping.validate_python({"sizes": [{"width": 1}]}) == {"sizes": [{"width": 1}]}
        for key in IGNORED_BY_DVC:
            with pytest.raises(ValueError, match=f"has the key `{key}`, which DVC ignores"):
                mapping.validate_python({"sizes": [{key: 1}]})


def test_sections_are_frozen_closed_and_strict() -> None:
    for section in sections():
        assert section.model_config["frozen"], section
        assert section.model_config["extra"] == "forbid", section
        assert section.model_config["strict"], section
        assert not section.model_config["allow_inf_nan"], section


def test_every_field_is_described() -> None:
    for section in sections():
        for name, field in section.model_fields.items():
            inherited = [
                parent.model_fields[name].description
                for parent in section.__mro__
                if issubclass(parent, Section) and name in parent.model_fields
            ]
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
            union = field.discriminator is not None
            assert any(inherited) or nested or union, f"{section.__module__}.{section.__name__}.{name}"


@pytest.mark.parametrize(("epochs", "batch_size", "samples", "steps"), [(1, 10, 100, 10), (3, 64, 100, 5)])
def test_the_length_in_steps_covers_every_epoch(epochs: int, batch_size: int, samples: int, steps: int) -> None:
    data = {**Document.read(TOP / "presets/digits.yaml").data["train"], "freeze": (), "metrics": ()}
    settings = LoopSettings.model_validate({**data, "epochs": epochs, "steps": None, "batch_size": batch_size, "micro_batch_size": 1})
    assert settings.num_steps(samples) == steps
    settings = LoopSettings.model_validate({**data, "epochs": None, "steps": 7, "batch_size": batch_size, "micro_batch_size": 1})
    assert settings.num_steps(samples) == 7


def test_sections_become_dotted_names() -> None:
    params = {"seed": 1, "model": {"name": "mlp", "stem": {"width": None}}, "sizes": [1, 2], "empty": {}}
    assert flatten(params) == {"seed": 1, "model.name": "mlp", "model.stem.width": None, "sizes": "[1, 2]", "empty": "{}"}
    assert flatten({"test": {"accuracy_interval": {"low": 0.5}}}, "/") == {"test/accuracy_interval/low": 0.5}
    assert dict(leaves({"a": {"b": [1], "c": "[1]"}, "empty": {}})) == {"a.b": [1], "a.c": "[1]", "empty": {}}


def test_values_are_formatted_as_in_yaml() -> None:
    assert [formatted(value) for value in (True, None, 0.1, "adam")] == ["true", "null", "0.1", "adam"]


def test_the_remedies_for_keys_of_other_libraries_name_keys_that_exist() -> None:
    schema = (TOP / "params.schema.json").read_text(encoding="utf-8")
    named = {key for remedy in COMMON_KEYS.values() for key in re.findall(r"`\w+\.(\w+)", remedy)}
    assert {"clip_norm", "category_columns", "label_column"} <= named
    assert [key for key in named if f'"{key}": {{' not in schema] == []
    assert COMMON_KEYS["cat_names"] != COMMON_KEYS["cont_names"]


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
