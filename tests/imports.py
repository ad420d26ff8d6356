"""Read from syntax trees which project modules a module imports, imports inside functions included."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TOP = Path(__file__).parents[1]


@cache
def tree(path: Path) -> ast.Module:
    """Parse a project file, named relative to the top. Callers only read the tree."""
    return ast.parse((TOP / path).read_text(encoding="utf-8"))


@cache
def path_of(module: str) -> Path | None:
    """Return the file of a project module, relative to the top; None for other modules and for packages with only a docstring."""
    stem = Path(*module.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if (TOP / path).is_file() and len(tree(path).body) > 1:
            return path
    return None


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def imported(path: Path) -> frozenset[Path]:
    """Return the project files that a file imports directly."""
    return frozenset(found for name in names(tree(path)) if (found := path_of(name)))


@cache
def executed(path: Path) -> frozenset[Path]:
    """Project files that the file imports when it runs: those that only type checkers import decide no result."""
    body = [node for node in tree(path).body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return frozenset(found for node in body for name in names(node) if (found := path_of(name)))


def names(part: ast.AST) -> Iterator[str]:
    if isinstance(part, ast.Import):
        yield from (alias.name for alias in part.names)
    elif isinstance(part, ast.ImportFrom) and part.module and part.level == 0:
        yield part.module
        yield from (f"{part.module}.{alias.name}" for alias in part.names)
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):  # expressions hold no statement
        for inner in getattr(part, block, ()) if not isinstance(part, ast.expr) else ():
            yield from names(inner)


def closure(path: Path, *, without: tuple[str, ...] = ()) -> set[Path]:
    """Return the file and all project files that it imports, directly or through others, except through those whose path begins as one of `without`."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += [path for path in executed(current) if not path.as_posix().startswith(without)]
    return found
