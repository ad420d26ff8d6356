"""The docs list every page, command and variable, links from elsewhere reach them, and the site requests nothing from other hosts."""

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.core.registry import MODELS, SOURCES, TASKS
from pipeline.tools.verbs import VERBS
from tests.imports import TOP
from tests.repository import call

DOCS = TOP / "docs"
NAMED_IN = ("*.md", "Dockerfile", "pipeline/**/*.py", "presets/**/*.yaml", "deploy/**/*.*", "benchmarks/*.*")
REQUEST = re.compile(
    r"""<(?:script|img|iframe|link\b(?![^>]*canonical))[^>]*(?:src|href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import"""
)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site give to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_links_every_page() -> None:
    for folder in (DOCS, DOCS / "decisions"):
        links = set(re.findall(r"\]\(([\w.-]+\.md)", (folder / "index.md").read_text(encoding="utf-8")))
        assert links == {page.name for page in folder.glob("*.md")} - {"index.md"}


def test_every_page_that_another_file_names_exists() -> None:
    files = [path for pattern in NAMED_IN for path in TOP.glob(pattern) if path.name != "CHANGELOG.md"]
    named = [
        (path, *match) for path in files for match in re.findall(r"\bdocs/([\w/.-]+\.\w+)(?:#([\w-]+))?", path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 50
    missing = [(path, name) for path, name, _ in named if not (DOCS / name).is_file()]
    assert missing == []
    assert [(path, name, anchor) for path, name, anchor in named if anchor and anchor not in anchors(DOCS / name)] == []


def test_what_can_be_trained_has_the_names_of_params_yaml() -> None:
    rows = re.findall(r"^\|.*", (DOCS / "what-can-be-trained.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names - {*SOURCES.names, *MODELS.names, *TASKS.names} == set()


def names_of(path: Path) -> set[str]:
    """Return the functions and classes of a module, and their methods as `Class.method`."""
    tops = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    methods = {f"{top.name}.{node.name}" for top in tops for node in top.body if isinstance(node, ast.FunctionDef)}
    return methods | {top.name for top in tops}


def test_the_ways_through_the_code_name_functions_that_exist() -> None:
    section = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Five ways through the code\n")[1].split("\n## ")[0]
    steps = re.findall(r"([\w/]+\.py): ([\w.]*\w)", section)
    assert len(steps) > 30
    files = {file: [*(TOP / "pipeline").glob(re.sub("NAME|KIND", "[!_]*", file))] for file, _ in steps}
    assert [(file, name) for file, name in steps if not files[file] or any(name not in names_of(path) for path in files[file])] == []


def test_the_reference_has_every_command_and_variable() -> None:
    commands, variables = ((DOCS / name).read_text(encoding="utf-8") for name in ("commands.md", "environment.md"))
    assert [verb for verb, entry in VERBS.items() if entry.listed and f"`{verb}`" not in commands] == []
    names = [str(field.validation_alias) for field in Environment.model_fields.values()]
    assert [name for name in names if not name.startswith("DVC_") and f"`{name}`" not in variables] == []


def test_the_reference_has_every_variable_of_mlflow_that_names_a_place_or_a_run() -> None:
    """A new version of MLflow may have further ones: each must be used, refused or named as without effect."""
    package = find_spec("mlflow")
    assert package
    assert package.origin
    code = Path(package.origin).with_name("environment_variables.py").read_text(encoding="utf-8")
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^(MLFLOW_\w*(?:EXPERIMENT|RUN_I|RUN_C|REGISTRY_[UD]|WORKSPACE|TRACKING_|STORE_URI|MODEL_ID|ENABLE_ASYNC_LOGGING)\w*) = ",
        code,
        re.M,
    )
    assert "MLFLOW_EXPERIMENT_ID" in found
    assert [name for name in found if f"`{name}`" not in page and not name.startswith("MLFLOW_WORKSPACE_ARTIFACT_ROOT_CACHE")] == []


def test_the_site_requests_nothing_from_other_hosts(tmp_path: Path) -> None:
    call(TOP, sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path), NO_MKDOCS_2_WARNING="1")
    files = [path for path in tmp_path.rglob("*") if path.suffix in {".html", ".css", ".svg"}]
    assert {"index.html", "tutorial.html", "overview.svg"} <= {path.name for path in files}
    assert [(path, request) for path in files for request in REQUEST.findall(path.read_text(encoding="utf-8"))] == []
    assert not any('class="mermaid"' in path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")), (
        "the theme loads Mermaid from a CDN"
    )
