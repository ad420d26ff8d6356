"""dvc.yaml lists exactly what decides each stage's result: its parameters, and the code that it imports, except tracking, which returns nothing."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.params.load import STAGE_PARAMS
from pipeline.runtime.run_identity import REFERENCE
from tests.imports import TOP, closure

STAGES = YAML(typ="safe").load((TOP / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
MEMBERS = {
    "prepare": "pipeline/sources/${source.name}.py",
    "train": "pipeline/models/${model.name}.py",
    "evaluate": "pipeline/models/${model.name}.py",
}
TRACKING = "pipeline/tracking/"


def needed(stage: str) -> set[str]:
    """Return what the stage and every choice of its registry import, with the placeholder for the choices themselves."""
    family = Path(MEMBERS[stage]).parent
    members = {path.relative_to(TOP) for path in (TOP / family).glob("[!_]*.py")}
    begin = (Path("pipeline/commands/stage.py"), Path(f"pipeline/stages/{stage}.py"))
    reached = set().union(*(closure(path, without=TRACKING) for path in (*begin, *members)))
    return {path.as_posix() for path in reached - members} | {MEMBERS[stage]}


@pytest.mark.parametrize("stage", STAGES)
def test_deps_are_the_import_closure(stage: str) -> None:
    listed = {path for path in STAGES[stage]["deps"] if path.endswith(".py")}
    assert listed == needed(stage), f"to add: {sorted(needed(stage) - listed)}; to remove: {sorted(listed - needed(stage))}"


@pytest.mark.parametrize("stage", STAGES)
def test_params_are_the_sections_of_the_stage(stage: str) -> None:
    assert sorted(STAGES[stage]["params"]) == sorted(STAGE_PARAMS[stage].model_fields)


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_depends_on_the_lock_and_is_described(stage: str) -> None:
    assert "requirements.lock" in STAGES[stage]["deps"]
    assert STAGES[stage]["desc"]
    assert STAGES[stage]["cmd"] == f"python -m pipeline {stage}"


def test_data_and_model_flow_from_stage_to_stage() -> None:
    assert "${source.root}" in STAGES["prepare"]["deps"]
    assert "data/prepared" in STAGES["prepare"]["outs"]
    assert "data/prepared" in STAGES["train"]["deps"]
    assert "models/model.safetensors" in STAGES["train"]["outs"]
    assert {"data/prepared", "models/model.safetensors"} <= set(STAGES["evaluate"]["deps"])


def test_every_placeholder_is_a_parameter_of_its_own_stage_or_the_chosen_model() -> None:
    found = {REFERENCE.findall(dep)[0] for stage in STAGES.values() for dep in stage["deps"] if "$" in dep}
    assert found == {"source.root", "source.name", "model.name"}
