"""dvc.yaml lists exactly what decides each stage's result: its parameters, and the code that it imports, except tracking, which returns nothing."""

import re
import shutil
from pathlib import Path

from ruamel.yaml import YAML

from pipeline.core import identity
from pipeline.core.identity import REFERENCE
from pipeline.core.yaml_document import Document
from pipeline.tools.params.reference import STAGE_PARAMS
from tests.imports import TOP, closure, module_of, path_of
from tests.repository import GIT, call

STAGES = YAML(typ="safe").load((TOP / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
TARGETS = "pipeline/tasks/${evaluate.name}/targets.py"
MEMBERS = {
    "prepare": ["pipeline/sources/${source.name}.py", TARGETS],
    "train": ["pipeline/models/${model.name}.py", "pipeline/losses/${loss.name}.py", TARGETS, "pipeline/tasks/${evaluate.name}/train.py"],
    "evaluate": ["pipeline/models/${model.name}.py", TARGETS, "pipeline/tasks/${evaluate.name}/evaluate.py"],
}
PLACEHOLDER = re.compile(r"\$\{[\w.]+\}")
BY_KIND = {
    "prepare": ("inputs/*", "prepare/inputs"),
    "train": (
        "inputs/*",
        "inference/metrics",
        "train/augment/transforms",
    ),
    "evaluate": (
        "inputs/*",
        "inference/metrics",
    ),
}
"""Folders with a module for each kind of inputs in `spec.json`, or for each name in a list: a stage imports any of them."""
IGNORED = "predict.py"
"""How `predict` reads inputs of a kind and writes predictions of a task, which decides no result of a stage: `.dvcignore` names it."""
TRACKING = ("pipeline/runs/",)
"""Code that receives results and returns nothing to a stage."""


def needed(stage: str) -> set[str]:
    """Return what the stage and every choice of its registries import, with the placeholders for the choices themselves."""
    members = {path.relative_to(TOP) for name in MEMBERS[stage] for path in TOP.glob(PLACEHOLDER.sub("[!_]*", name))}
    by_kind = [
        path.relative_to(TOP) for folder in BY_KIND[stage] for path in (TOP / "pipeline").glob(f"{folder}/*.py") if path.name != IGNORED
    ]
    begin = (Path(f"pipeline/{stage}/{name}.py") for name in ("stage", "params"))
    reached = set().union(*(closure(path, without=TRACKING) for path in (*begin, *members, *by_kind)))
    return {path.as_posix() for path in reached - members} | {*MEMBERS[stage], "pipeline/__init__.py"}


def modules(folder: Path) -> set[str]:
    """The modules below a folder, without packages that are a docstring alone."""
    paths = (path.relative_to(TOP) for path in (TOP / folder).rglob("*.py") if path.name != IGNORED)
    return {path.as_posix() for path in paths if path_of(module_of(path)) == path}


def listed(stage: str) -> list[set[str]]:
    """The modules that each dependency of a stage stands for."""
    code = [dep for dep in STAGES[stage]["deps"] if dep.startswith("pipeline/")]
    return [{dep} if dep.endswith(".py") else modules(Path(dep)) for dep in code]


def test_deps_are_the_import_closure() -> None:
    wrong = {}
    for stage in STAGES:
        found = set().union(*listed(stage))
        wrong[f"{stage} imports from another folder"] = sorted(needed(stage) - found)
        wrong[f"in a folder of {stage}, which does not import it"] = sorted(found - needed(stage))
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_a_stage_lists_its_sections_the_lock_and_nine_entries_of_code_at_most() -> None:
    for name, stage in STAGES.items():
        assert len([dep for dep in stage["deps"] if dep.startswith("pipeline/")]) <= 9
        assert sorted(stage["params"]) == sorted(STAGE_PARAMS[name].model_fields)
        assert "requirements.lock" in stage["deps"]
        assert stage["desc"]
        assert stage["cmd"] == f"python -m pipeline {name}"


def test_data_and_model_flow_from_stage_to_stage() -> None:
    assert "${source.root}" in STAGES["prepare"]["deps"]
    assert "data/prepared" in STAGES["prepare"]["outs"]
    assert "data/prepared" in STAGES["train"]["deps"]
    assert "models/model.safetensors" in STAGES["train"]["outs"]
    assert {"data/prepared", "models/model.safetensors"} <= set(STAGES["evaluate"]["deps"])


def test_every_placeholder_is_a_parameter_of_its_own_stage_or_the_chosen_model_or_task() -> None:
    found = {REFERENCE.findall(dep)[0] for stage in STAGES.values() for dep in stage["deps"] if "$" in dep}
    assert found == {"source.root", "source.name", "model.name", "model.weights", "loss.name", "evaluate.name"}


def test_an_edit_runs_the_stages_whose_result_it_may_change_and_no_other() -> None:
    stages_by_path = {
        "prepare/inputs/image.py": {"prepare"},
        "train/engine/fit.py": {"train"},
        "evaluate/reports/figures/mistakes.py": {"evaluate"},
        "inference/precision.py": {"train", "evaluate"},
        "core/spec.py": {"prepare", "train", "evaluate"},
        "inputs/table/predict.py": set(),
        "tasks/classification/targets.py": {"prepare", "train", "evaluate"},
        "tasks/classification/train.py": {"train"},
        "tasks/classification/evaluate.py": {"evaluate"},
        "tasks/classification/predict.py": set(),
        "tasks/regression/targets.py": set(),
        "tasks/regression/evaluate.py": set(),
        "runs/journal.py": set(),
        "tools/predict/model.py": set(),
    }
    params = Document.read(TOP / "params.yaml").data
    code = {stage: identity.modules(identity.dependencies(stage, params, TOP), TOP) for stage in STAGES}
    for path, stages in stages_by_path.items():
        assert (TOP / "pipeline" / path).is_file()
        assert {stage for stage in STAGES if f"pipeline/{path}" in code[stage]} == stages, path


def test_a_checkout_has_the_same_bytes_whatever_git_does_to_line_endings(tmp_path: Path) -> None:
    """DVC compares code by its bytes, and `core.autocrlf` would write CRLF. The attributes are those of the working tree."""
    for name in (".gitattributes", "dvc.yaml", "deploy/slurm/train.sbatch"):
        (tmp_path / "origin" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, tmp_path / "origin" / name)
    call(tmp_path / "origin", "git", "init", "-q")
    call(tmp_path / "origin", "git", "add", ".")
    call(tmp_path / "origin", *GIT, "commit", "-q", "-m", "all")
    call(tmp_path, "git", "-c", "core.autocrlf=true", "clone", "-q", "origin", "clone")
    assert [path for path in (tmp_path / "clone").glob("*.*") if path.is_file() and b"\r" in path.read_bytes()] == []
    call(tmp_path / "clone", "bash", "-n", "deploy/slurm/train.sbatch")
