"""What a model knows of the data."""

from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.paths import Paths
from pipeline.spec import Spec

GOOD: dict[str, Any] = {"shape": (4, 6, 3), "classes": ("a", "b"), "mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 1.0)}


def test_a_spec_names_its_parts_and_survives_json() -> None:
    spec = Spec(**GOOD)
    assert (spec.inputs.height, spec.inputs.width, spec.inputs.channels, spec.num_outputs) == (4, 6, 3, 2)
    assert Spec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "sound"),
        ("shape", (0, 6, 3)),
        ("shape", (4, 70_000, 3)),
        ("shape", (4, 6)),
        ("classes", ("a",)),
        ("classes", ("a", "a")),
        ("std", (1.0, 0.0, 1.0)),
        ("std", (1.0, 1.0, 1.1)),
        ("mean", (0.1, 1000.0, 0.3)),
        ("mean", (0.1, -0.1, 0.3)),
        ("mean", (0.1,)),
        ("std", (1.0, 1.0)),
        ("mean", (0.1, float("nan"), 0.3)),
        ("extra", 1),
    ],
)
def test_what_no_prepared_data_can_be_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        Spec(**{**GOOD, key: value})


def test_paths_lie_where_dvc_yaml_says() -> None:
    paths = Paths()
    assert [str(path) for path in (paths.params, paths.prepared, paths.model, paths.metrics, paths.plots, paths.lock, paths.dvc_lock)] == [
        "params.yaml",
        "data/prepared",
        "models/model.safetensors",
        "metrics",
        "plots",
        "requirements.lock",
        "dvc.lock",
    ]
