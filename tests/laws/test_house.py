"""The house: who may import whom."""

import ast
import re
from pathlib import Path

from tests.imports import TOP, closure, imported, names, tree
from tests.laws import forbidden

FLOORS = [
    ["container"],
    ["__main__", "api"],
    ["tools"],
    ["runs"],
    ["sources", "models", "losses", "tasks/train", "tasks/evaluate", "tasks/predict", "inputs/predict"],
    ["train", "evaluate"],
    ["prepare", "inference"],
    ["tasks/targets", "inputs/first_layer"],
    ["inputs/description"],
    ["core"],
]
"""The entries of `pipeline/`, the highest floor first. An entry imports only entries on lower floors, and those on one floor do not import each other.
The modules of one name in the folders of BY_STAGE are an entry, such as `tasks/train`: `train.py` of each task."""
RANK = {room: rank for rank, rooms in enumerate(FLOORS) for room in rooms}
FAMILIES = ("sources", "models", "losses", "tasks", "inputs")
"""Their members are imported by the name that a parameter or `spec.json` has, also from lower floors."""
BY_STAGE = ("tasks", "inputs")
FILES = sorted(path.relative_to(TOP) for path in (TOP / "pipeline").rglob("*.py"))


def room(path: Path) -> str:
    entry = path.parts[1].removesuffix(".py")
    return f"{entry}/{path.stem}" if entry in BY_STAGE and path.name != "__init__.py" else entry


def named(path: Path) -> set[Path]:
    """Return the files and folders whose module names stand as text in a file, as for `import_module`, except for those of FAMILIES."""
    texts = (node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    modules = {text for text in texts if re.fullmatch(r"pipeline(\.\w+)+\.?", text)}
    return {Path(*module.split(".")) for module in modules if module.split(".")[1] in {*RANK} - {*FAMILIES}}


def test_imports_point_down() -> None:
    wrong = [
        f"{path} imports {other}"
        for path in FILES
        for other in imported(path) | named(path)
        if room(path) != room(other) and RANK.get(room(path), -1) >= RANK.get(room(other), len(FLOORS))
    ]
    assert wrong == []


def test_the_house_has_sixteen_entries_at_most() -> None:
    assert {room(path) for path in FILES} == {*RANK, *BY_STAGE, "__init__"}
    assert len({path.parts[1] for path in FILES}) <= 16


def test_no_module_comes_to_import_itself() -> None:
    files = [*FILES, *(path.relative_to(TOP) for path in (TOP / "benchmarks").rglob("*.py"))]
    assert [path for path in files if path in set().union(*(closure(other) for other in imported(path)), set())] == []


def test_a_file_opens_with_its_purpose() -> None:
    assert [path for path in FILES if not ast.get_docstring(tree(path))] == []


def test_parameters_and_commands_load_without_torch() -> None:
    heavy = []
    for path in FILES:
        if room(path) in ("core", "__main__") or path.name.endswith("params.py") or path.parts[1:3] == ("tools", "params"):
            at_the_top = {name for node in tree(path).body for name in names(node) if isinstance(node, ast.Import | ast.ImportFrom)}
            heavy += [f"{path}: {name}" for name in at_the_top if name.split(".")[0] in ("torch", "torchvision", "mlflow")]
    assert heavy == []


def test_nothing_unpickles_evaluates_extracts_or_runs_a_shell() -> None:
    assert {path: problems for path in FILES if (problems := forbidden.found(tree(path)))} == {}
