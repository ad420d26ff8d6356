"""The house: who may import whom."""

import ast
from pathlib import Path

import pytest

from tests.imports import TOP, closure, imported, names

ROOMS = [
    ["__main__"],
    ["commands"],
    ["verification"],
    ["stages"],
    ["training"],
    ["inspection"],
    ["engine", "models", "sources", "data", "tracking", "reports"],
    ["params"],
    ["reading"],
]
FLOOR = len(ROOMS)
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
FILES = sorted(path.relative_to(TOP) for path in (TOP / "pipeline").rglob("*.py"))


def room(path: Path) -> str:
    return path.parts[1].removesuffix(".py")


def rank(path: Path) -> int:
    """The floor is every module that lies in no room: small nouns on which all rooms stand."""
    return RANK.get(room(path), FLOOR)


def test_imports_point_down() -> None:
    inside = [path for path in FILES if len(path.parts) > 2 or room(path) in RANK]
    wrong = [
        f"{path} imports {other}" for path in inside for other in imported(path) if room(path) != room(other) and rank(path) >= rank(other)
    ]
    assert wrong == []


def test_the_floor_stands_on_itself_and_has_no_cycle() -> None:
    floor = [path for path in FILES if rank(path) == FLOOR]
    for path in floor:
        assert {other for other in imported(path) if rank(other) != FLOOR} == set(), path
        assert path not in set().union(*(closure(other) for other in imported(path)), set()), f"{path} comes to import itself"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_opens_with_its_purpose(path: Path) -> None:
    assert ast.get_docstring(ast.parse((TOP / path).read_text(encoding="utf-8")))


def test_parameters_and_commands_load_without_torch() -> None:
    for path in FILES:
        if room(path) in ("params", "__main__", "environment", "family", "refusal", "inputs"):
            tree = ast.parse((TOP / path).read_text(encoding="utf-8"))
            at_the_top = {name for node in tree.body for name in names(node) if isinstance(node, ast.Import | ast.ImportFrom)}
            assert not {name for name in at_the_top if name.split(".")[0] in ("torch", "torchvision", "mlflow")}, path


def test_nothing_unpickles_evaluates_or_runs_a_shell() -> None:
    forbidden = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    for path in FILES:
        tree = ast.parse((TOP / path).read_text(encoding="utf-8"))
        assert not {name.split(".")[0] for name in names(tree)} & forbidden, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "os.system", "torch.load", "yaml.load", "yaml.unsafe_load"), f"{path}:{node.lineno}"
                shell = [keyword for keyword in node.keywords if keyword.arg == "shell"]
                assert not shell, f"{path}:{node.lineno}"
