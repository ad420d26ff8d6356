"""Laws of the sections: what decides a result stands in `params.yaml`, bounded and described."""

import re
from collections.abc import Iterator
from typing import Annotated

import pytest
from dvc.stage.cache import _get_cache_hash
from pydantic import TypeAdapter

from pipeline.core.registry import LOSSES, MODELS, SOURCES
from pipeline.core.section import COMMON_KEYS, IGNORED_BY_DVC, Section, flatten, formatted, leaves
from pipeline.core.yaml_document import Document
from pipeline.train.params import LoopSettings
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
