"""Laws of the sections: what decides a result stands in `params.yaml`, bounded and described."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.core.params import load
from pipeline.core.registry import MODELS, SOURCES
from pipeline.core.section import Section
from pipeline.core.yaml_document import Document
from pipeline.tools.params.reference import STAGE_PARAMS
from pipeline.train.optimizer_params import CommonOptimizerSettings
from pipeline.train.params import LoopSettings
from tests.imports import TOP

PRESETS = sorted((TOP / "presets").glob("*.yaml"))


def sections() -> Iterator[type[Section]]:
    """Yield every section of params.yaml, those of the registries included."""
    for family in (MODELS, SOURCES):
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


def test_what_takes_memory_is_bounded_on_both_sides() -> None:
    for name in ("batch_size", "micro_batch_size"):
        schema = LoopSettings.model_json_schema()["properties"][name]
        assert (schema["exclusiveMinimum"], schema["maximum"]) == (0, 1_000_000)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_loads(preset: Path) -> None:
    document = Document.read(preset)
    for params in STAGE_PARAMS.values():
        value = load(document, params)
        with pytest.raises(ValidationError, match="frozen"):
            value.seed = 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(("epochs", "batch_size", "samples", "steps"), [(1, 10, 100, 10), (1, 10, 101, 11), (3, 64, 100, 5), (2, 7, 1, 1)])
def test_the_length_in_steps_covers_every_epoch(epochs: int, batch_size: int, samples: int, steps: int) -> None:
    data = {**Document.read(TOP / "presets/digits.yaml").data["train"], "freeze": ()}
    settings = LoopSettings.model_validate({**data, "epochs": epochs, "steps": None, "batch_size": batch_size, "micro_batch_size": 1})
    assert settings.num_steps(samples) == steps
    settings = LoopSettings.model_validate({**data, "epochs": None, "steps": 7, "batch_size": batch_size, "micro_batch_size": 1})
    assert settings.num_steps(samples) == 7


@pytest.mark.parametrize("key", ["learning_rate", "weight_decay", "bias_lr_scale"])
def test_what_all_optimizers_share_is_bounded(key: str) -> None:
    shared = {"learning_rate": 0.1, "weight_decay": 0.0, "bias_lr_scale": 1.0, "layer_decay": None, "groups": (), "name": "any"}
    assert CommonOptimizerSettings(**shared)
    with pytest.raises(ValidationError, match=key):
        CommonOptimizerSettings(**{**shared, key: -0.1})
