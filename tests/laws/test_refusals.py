"""What distinguishes refusals is in their fields: nothing but `core/refusal.py` reads their text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path("pipeline")


def kinds(trees: list[ast.Module]) -> set[str]:
    """Return the names of Refusal and of its subclasses."""
    found, before = {"Refusal"}, set[str]()
    while found != before:
        before = set(found)
        classes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        found |= {each.name for each in classes if any(isinstance(base, ast.Name) and base.id in found for base in each.bases)}
    return found


def reads(tree: ast.Module, refusals: set[str]) -> Iterator[int]:
    """Yield the line of each place that searches, cuts or compares the text of a caught Refusal."""
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type and node.name):
        assert handler.type
        if not refusals & {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}:
            continue
        texts = {f"str({handler.name})", f"{handler.name}.args", f"{handler.name}.args[0]"}
        for node in (each for statement in handler.body for each in ast.walk(statement)):
            parts: list[ast.expr] = []
            match node:
                case ast.Attribute() | ast.Subscript():
                    parts = [node.value]
                case ast.Compare():
                    parts = [node.left, *node.comparators]
                case ast.Call(func=ast.Attribute(value=ast.Name())):
                    parts = node.args if ast.unparse(node.func) in {"re.match", "re.search", "re.sub", "re.split"} else []
            if any(ast.unparse(part) in texts for part in parts):
                yield node.lineno


def test_nothing_reads_the_text_of_a_refusal() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py") if path.name != "refusal.py"}
    refusals = kinds(list(trees.values()))
    assert [f"{path}:{line}" for path, tree in trees.items() for line in reads(tree, refusals)] == []


@pytest.mark.parametrize("use", ["str(error).splitlines()", "'memory' in str(error)", "error.args[0]", "re.match(x, str(error))"])
def test_the_law_finds_what_reads_a_text(use: str) -> None:
    assert [*reads(ast.parse(f"try:\n    run()\nexcept Refusal as error:\n    print({use})"), {"Refusal"})]
