"""What a model knows of the data."""

from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.core.inputs.image import ImageInputs
from pipeline.core.spec import Spec
from pipeline.core.tasks.classification import ClassTargets

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
        ("inputs", "kind", ["image"]),
        ("inputs", "height", 0),
        ("inputs", "width", 70_000),
        ("inputs", "std", (1.0, 0.0, 1.0)),
        ("inputs", "std", (1.0, 1.0, 1.1)),
        ("inputs", "mean", (0.1, 1000.0, 0.3)),
        ("inputs", "mean", (0.1, -0.1, 0.3)),
        ("inputs", "mean", (0.1,)),
        ("inputs", "mean", (0.1, float("nan"), 0.3)),
        ("inputs", "extra", 1),
        ("targets", "kind", "image"),
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
