"""What a model knows of the data."""

from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.core.spec import Spec
from pipeline.inputs.image.description import ImageInputs
from pipeline.inputs.table.description import TableInputs
from pipeline.tasks.classification.targets import ClassTargets

INPUTS: dict[str, Any] = {"kind": "image", "height": 4, "width": 6, "channels": 3, "mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 1.0)}
TARGETS: dict[str, Any] = {"kind": "classification", "classes": ("a", "b")}


def test_a_spec_is_read_by_the_kinds_of_its_parts_and_survives_json() -> None:
    spec = Spec.model_validate({"inputs": INPUTS, "targets": TARGETS})
    assert spec.inputs == ImageInputs(**INPUTS)
    assert spec.targets == ClassTargets(**TARGETS)
    assert (spec.inputs.row_shape, spec.num_outputs, spec.targets.output_names) == ((4, 6, 3), 2, ("a", "b"))
    assert Spec.model_validate_json(spec.model_dump_json()) == spec
    assert "white" not in spec.model_dump_json(), "digests of earlier files stay"
    scaled = Spec.model_validate({"inputs": {**INPUTS, "white": 4095}, "targets": TARGETS})
    assert Spec.model_validate_json(scaled.model_dump_json()) == scaled != spec


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("inputs", "kind", "sound"),
        ("inputs", "height", 0),
        ("inputs", "width", 70_000),
        ("inputs", "std", (1.0, 0.0, 1.0)),
        ("inputs", "mean", (0.1, 1000.0, 0.3)),
        ("inputs", "mean", (0.1,)),
        ("inputs", "mean", (0.1, float("nan"), 0.3)),
        ("inputs", "extra", 1),
        ("targets", "classes", ("a",)),
        ("targets", "classes", ("a", "a")),
    ],
)
def test_impossible_descriptions_are_refused(part: str, key: str, value: Any) -> None:
    parts = {"inputs": INPUTS, "targets": TARGETS}
    with pytest.raises(ValidationError):
        Spec.model_validate(parts | {part: parts[part] | {key: value}})


def test_a_spec_without_a_part_or_with_another_is_refused() -> None:
    for value in ({"inputs": INPUTS}, {"inputs": INPUTS, "targets": None}, {"inputs": INPUTS, "targets": TARGETS, "more": 1}):
        with pytest.raises(ValidationError):
            Spec.model_validate(value)


def test_a_model_reads_other_tables_with_the_same_columns_and_categories() -> None:
    number = {"kind": "number", "name": "size", "missing": False, "mean": 1.0, "std": 2.0}
    category = {"kind": "category", "name": "city", "missing": False, "values": ("Oslo", "Lima"), "others": False}

    def table(**changes: Any) -> TableInputs:
        return TableInputs.model_validate(
            {"columns": [{**number, **changes.get("number", {})}, {**category, **changes.get("category", {})}]}
        )

    model = table()
    assert Spec.model_validate_json(Spec(inputs=model, targets=ClassTargets(**TARGETS)).model_dump_json()).inputs == model
    for same in ({}, {"number": {"mean": 7.0, "missing": True}}, {"category": {"others": True}}):
        assert model.reads_samples_of(table(**same))
    for other in ({"number": {"name": "weight"}}, {"number": {"kind": "date"}}, {"category": {"values": ("Lima", "Oslo")}}):
        assert not model.reads_samples_of(table(**other))
        assert model.enlarged_if_other(table(**other))
    assert model.enlarged_if_other(table(number={"mean": 7.0})) is None
    more = model.enlarged_if_other(table(category={"others": True}))
    assert more is not None
    assert (model.num_features, more.num_features) == (3, 4), "a layer of another size shows that it belongs to the columns"
