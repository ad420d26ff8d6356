"""No question about a kind of inputs or a task outside its folder: others ask it for an answer, and never which one it is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import TOP, names, tree

KINDS = {path.parent.name for path in TOP.glob("pipeline/*/*/*.py") if path.parts[-3] in ("tasks", "inputs")}
AMBIGUOUS = {"image", "table", "text", "sequence"}
"""Kinds whose names are also words for other things, such as a file that holds an image: only their comparison with a kind counts."""
OWN = ("tasks", "inputs", "prepare/inputs", "core/registry.py")
"""The folders of the kinds, with what only `prepare` computes for them, and the registry."""
FAMILIES = ("sources", "models", "train/augment", "train/transform_params.py")
"""A source names what it makes, and a model or a transform what it reads. They are chosen by their names, so nothing else needs to know."""
FLAGS = {"has_classes", "has_labels", "per_token", "paired"}
"""What was asked before targets gave answers."""


def docstrings(module: ast.Module) -> set[int]:
    """Return the ids of the constants that are docstrings, of whatever."""
    return {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}


def found(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines that name a kind, and what they name."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = {name for name in names(node) if re.match(r"pipeline\.(tasks|inputs)\.", name)}
            yield from ((node.lineno, name) for name in sorted(named)[:1])
        elif isinstance(node, ast.Constant) and node.value in KINDS - AMBIGUOUS and id(node) not in docstrings(module):
            yield node.lineno, node.value
        elif isinstance(node, ast.Compare):
            compared = [ast.unparse(part) for part in (node.left, *node.comparators)]
            if any(re.search(r"(\.|targets_|inputs_)kind\b", part) for part in compared):
                yield from ((node.lineno, name) for part in compared for name in sorted(KINDS) if f"'{name}'" in part)
        elif isinstance(node, ast.Attribute) and node.attr in FLAGS:
            yield node.lineno, node.attr


def files() -> Iterator[Path]:
    outside = [TOP / "pipeline" / path for path in (*OWN, *FAMILIES)]
    for path in sorted((TOP / "pipeline").rglob("*.py")):
        if not any(path.is_relative_to(each) for each in outside):
            yield path.relative_to(TOP)


def test_nothing_outside_its_folder_names_a_kind() -> None:
    assert [f"{path}:{line} names {name}" for path in files() for line, name in found(tree(path))] == []


@pytest.mark.parametrize(
    "code",
    [
        "from pipeline.tasks.regression.targets import NumberTargets",
        "from pipeline.inputs.text import description",
        "if spec.inputs.kind == 'image': pass",
        "if source.targets_kind in ('sequence', 'other'): pass",
        "task = 'multi_label'",
        "return_ = spec.targets.has_classes",
    ],
)
def test_the_law_finds_what_names_a_kind(code: str) -> None:
    assert [*found(ast.parse(code))]


def test_a_task_takes_from_another_only_a_class_to_inherit_from() -> None:
    """DVC and the record of a run see the modules of the chosen task alone, so what two tasks share belongs in `pipeline/core`."""
    for path in TOP.glob("pipeline/tasks/*/[ter]*.py"):
        module = tree(path.relative_to(TOP))
        bases = {ast.unparse(base) for node in ast.walk(module) if isinstance(node, ast.ClassDef) for base in node.bases}
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and re.match(rf"pipeline\.tasks\.(?!{path.parent.name}\b)", node.module or ""):
                assert {name.asname or name.name for name in node.names} <= bases, f"{path.relative_to(TOP)}:{node.lineno}"
