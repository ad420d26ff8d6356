"""Each tool that docs/removing-tools.md names can be deleted with what belongs to it, and everything else still works."""

import ast
import re
import shutil
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from pipeline.tools import REMOVABLE, Removed, tool
from tests.imports import TOP, imported
from tests.repository import call, copy_of_checkout, run

FOLDERS = Path("pipeline/tools")


class Parts(NamedTuple):
    """What belongs to a tool beside `pipeline/tools/NAME` and `tests/tools/NAME`. `group` is its group in pyproject.toml and the Makefile."""

    verbs: tuple[str, ...]
    paths: tuple[str, ...] = ()
    group: str | None = None


PARTS = {
    "export": Parts(("export",), ("docs/export.md", "locks/export.lock"), "export"),
    "predict": Parts(("predict", "generate"), ("docs/using-a-model.md",)),
    "profile": Parts(("profile",), ("docs/profiling.md", "benchmarks/freezing.py", "benchmarks/lanes.py")),
    "report": Parts(("report",), ("docs/report.md", "docs/images/report-digits.png")),
    "search": Parts(
        ("search", "trial"),
        ("docs/search.md", "docs/seeds-and-folds.md", "locks/search.lock", "presets/search", "tests/tools/params/earlier/search"),
        "search",
    ),
    "verify": Parts(("verify",), ("docs/verifying.md",)),
}


def remove(folder: Path, name: str) -> None:
    """Delete a tool from the checkout `folder`, as docs/removing-tools.md says."""
    parts = PARTS[name]
    for path in (FOLDERS / name, Path("tests/tools", name), *map(Path, parts.paths)):
        shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()
    verbs = folder / FOLDERS / "verbs.py"
    verbs.write_text(without_verbs(verbs.read_text(encoding="utf-8"), parts.verbs), encoding="utf-8")
    if parts.group:
        makefile = folder / "Makefile"
        kept = [line for line in makefile.read_text(encoding="utf-8").splitlines() if not line.startswith(f"setup-{parts.group}:")]
        words = [line.replace(f" {parts.group}", "") if line.startswith("EXTRAS :=") else line for line in kept]
        makefile.write_text("\n".join(words) + "\n", encoding="utf-8")


def without_verbs(text: str, names: tuple[str, ...]) -> str:
    """Return the text of verbs.py without the entries of some verbs."""
    lines = text.splitlines()
    [table] = [node.value for node in ast.parse(text).body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERBS"]
    assert isinstance(table, ast.Dict)
    entries = {
        key.value: (key.lineno, value.end_lineno)
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    for name in sorted(names, key=lambda name: -entries[name][0]):
        first, last = entries[name]
        del lines[first - 1 : last]
    return "\n".join(lines) + "\n"


def test_the_table_has_every_tool_that_can_be_removed() -> None:
    assert set(PARTS) == set(REMOVABLE)
    assert all((TOP / path).exists() for parts in PARTS.values() for path in parts.paths)


@pytest.mark.parametrize("name", REMOVABLE)
def test_no_other_module_and_no_test_imports_a_removable_tool(name: str) -> None:
    def belongs(path: Path) -> bool:
        return any(path.is_relative_to(own) for own in (FOLDERS / name, Path("tests/tools", name), *map(Path, PARTS[name].paths)))

    paths = [path.relative_to(TOP) for top in ("pipeline", "tests", "benchmarks", "schema") for path in (TOP / top).rglob("*.py")]
    assert [path for path in paths if not belongs(path) and any(map(belongs, imported(path)))] == []


def test_a_library_that_is_missing_is_no_removed_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing, expected in (
        ("pipeline.tools.predict", Removed),
        ("pipeline.tools.predict.model", Removed),
        ("torch", ModuleNotFoundError),
    ):
        error = ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        monkeypatch.setattr("pipeline.tools.import_module", Mock(side_effect=error))
        with pytest.raises(expected):
            tool("predict.model")


@pytest.mark.slow
def test_everything_else_works_without_all_of_them(tmp_path: Path) -> None:
    copy_of_checkout(tmp_path)
    for name in REMOVABLE:
        remove(tmp_path, name)
    call(tmp_path, "ruff", "check", "--no-cache", ".")
    listed = re.findall(r"^    (\w\S*)", call(tmp_path, "python", "-m", "pipeline", "--help"), re.MULTILINE)
    assert "train" in listed
    assert not {verb for parts in PARTS.values() for verb in parts.verbs} & set(listed)
    call(tmp_path, "python", "-m", "pipeline", "check", PIPELINE_TRACKING="false")
    call(tmp_path, "python", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0")
    call(tmp_path, "make", "-n", "help", "lock")
    call(tmp_path, "python", "-m", "pipeline", "set", "train.epochs=2")
    for stage in ("prepare", "train", "evaluate"):
        call(tmp_path, "python", "-m", "pipeline", stage, PIPELINE_TRACKING="false")
    assert "accuracy" in (tmp_path / "metrics/evaluate.json").read_text(encoding="utf-8")
    done = run(tmp_path, "python", "-c", "from pipeline import load_model")
    assert done.stderr.splitlines()[-1] == (
        "pipeline.tools.Removed: pipeline/tools/predict is needed for this, and was removed from this checkout"
    )
    (tmp_path / "search.yaml").write_text("space: {}\n", encoding="utf-8")
    done = run(tmp_path, "python", "-m", "pipeline", "set", "--upgrade", "search.yaml")
    assert (done.returncode, done.stderr) == (2, "error: pipeline/tools/search is needed for this, and was removed from this checkout\n")
