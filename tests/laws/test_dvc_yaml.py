"""dvc.yaml lists exactly what decides each stage's result: its parameters, and the code that it imports, except tracking, which returns nothing."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.params.stages import STAGE_PARAMS
from pipeline.runtime.run_identity import REFERENCE
from tests.imports import TOP, closure, module_of, path_of

STAGES = YAML(typ="safe").load((TOP / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
MEMBERS = {
    "prepare": "pipeline/sources/${source.name}.py",
    "train": "pipeline/models/${model.name}.py",
    "evaluate": "pipeline/models/${model.name}.py",
}
BY_KIND = {
    "prepare": ("inputs/*/description.py", "tasks/*/targets.py"),
    "train": ("inputs/*/description.py", "inputs/*/preprocessing.py", "tasks/*/targets.py", "tasks/*/objective.py"),
    "evaluate": ("inputs/*/description.py", "inputs/*/preprocessing.py", "tasks/*/targets.py", "tasks/*/evaluation.py"),
}
"""Modules that a stage imports by the kind in `spec.json`, which no parameter names: those of every kind."""
TRACKING = ("pipeline/tracking/", "pipeline/terminal/", "pipeline/stages/run_description.py")
"""Code that receives results and returns nothing to a stage. `run_description` selects what the run of a stage records."""


def needed(stage: str) -> set[str]:
    """Return what the stage and every choice of its registry import, with the placeholder for the choices themselves."""
    family = Path(MEMBERS[stage]).parent
    members = {path.relative_to(TOP) for path in (TOP / family).glob("[!_]*.py")}
    by_kind = [path.relative_to(TOP) for pattern in BY_KIND[stage] for path in (TOP / "pipeline").glob(pattern)]
    begin = (Path("pipeline/commands/stage.py"), Path(f"pipeline/stages/{stage}.py"))
    reached = set().union(*(closure(path, without=TRACKING) for path in (*begin, *members, *by_kind)))
    return {path.as_posix() for path in reached - members} | {MEMBERS[stage]}


def modules(folder: Path) -> set[str]:
    """The modules below a folder, without packages that are a docstring alone."""
    paths = (path.relative_to(TOP) for path in (TOP / folder).rglob("*.py"))
    return {path.as_posix() for path in paths if path_of(module_of(path)) == path}


def listed(stage: str) -> list[set[str]]:
    """The modules that each dependency of a stage stands for."""
    code = [dep for dep in STAGES[stage]["deps"] if dep.startswith("pipeline/")]
    return [{dep} if dep.endswith(".py") else modules(Path(dep)) for dep in code]


@pytest.mark.parametrize("stage", STAGES)
def test_deps_are_the_import_closure(stage: str) -> None:
    found = set().union(*listed(stage))
    assert found == needed(stage), f"to add: {sorted(needed(stage) - found)}; to remove: {sorted(found - needed(stage))}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_folder_whose_modules_are_all_needed_is_listed_as_a_folder(stage: str) -> None:
    folders = {path.parent.relative_to(TOP) for path in (TOP / "pipeline").rglob("*.py")} - {Path("pipeline")}
    whole = {folder.as_posix() for folder in folders if len(modules(folder)) > 1 and modules(folder) <= needed(stage)}
    outermost = {folder for folder in whole if not any(folder.startswith(f"{other}/") for other in whole)}
    assert outermost == {dep for dep in STAGES[stage]["deps"] if dep.startswith("pipeline/") and not dep.endswith(".py")}


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
    assert found == {"source.root", "source.name", "model.name", "model.weights"}


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("pipeline/data/split.py", {"prepare"}),
        ("pipeline/inputs/image/statistics.py", {"prepare"}),
        ("pipeline/engine/muon.py", {"train"}),
        ("pipeline/engine/schedules.py", {"train"}),
        ("pipeline/engine/fit.py", {"train"}),
        ("pipeline/params/optimizer.py", {"train"}),
        ("pipeline/params/loop.py", {"train"}),
        ("pipeline/data/augment/color.py", {"train"}),
        ("pipeline/tasks/classification/objective.py", {"train"}),
        ("pipeline/tasks/classification/evaluation.py", {"evaluate"}),
        ("pipeline/reports/figures/confusion.py", {"evaluate"}),
        ("pipeline/params/evaluate.py", {"evaluate"}),
        ("pipeline/engine/precision.py", {"train", "evaluate"}),
        ("pipeline/tasks/classification/targets.py", {"prepare", "train", "evaluate"}),
        ("pipeline/tracking/journal.py", set()),
        ("pipeline/terminal/live_line.py", set()),
        ("pipeline/stages/run_description.py", set()),
        ("pipeline/provenance/facts.py", set()),
        ("pipeline/prediction/model.py", set()),
        ("pipeline/inputs/image/reading.py", set()),
        ("pipeline/tasks/classification/prediction.py", set()),
    ],
)
def test_an_edit_runs_the_stages_whose_result_it_may_change_and_no_other(path: str, stages: set[str]) -> None:
    assert (TOP / path).is_file()
    assert {stage for stage in STAGES if any(path in modules for modules in listed(stage))} == stages
