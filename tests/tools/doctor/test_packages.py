"""Python and packages against the lock files."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from pipeline.tools.doctor import packages
from pipeline.tools.doctor.finding import Context
from tests.imports import TOP

MakeContext = Callable[..., Context]
NUMPY = metadata.version("numpy")


def write_lock(folder: Path, text: str, name: str = "requirements.lock") -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def test_this_environment_is_that_of_the_lock(make_context: MakeContext) -> None:
    finding = packages.lock(make_context(top=TOP))
    assert finding.status == "ok", finding
    assert len(packages.locked(TOP / "requirements.lock")) > 150


def test_the_names_of_folders_tell_the_same_as_the_metadata() -> None:
    # of two packages of one name, Python imports the first on its path; setuptools appends a folder with its own copies
    expected = {packages.normalized(each.metadata["Name"]): each.version for each in reversed(list(metadata.distributions()))}
    assert packages.installed_versions() == expected


def test_a_package_of_another_version_is_a_warning(make_context: MakeContext, tmp_path: Path) -> None:
    write_lock(tmp_path, "numpy==1.0 ; python_full_version >= '3.0' \\\n    --hash=sha256:00\n")
    finding = packages.lock(make_context())
    assert (finding.status, f"numpy {NUMPY} (not 1.0) differs from it" in finding.text) == ("warning", True)
    assert "make setup" in finding.remedy


def test_a_package_that_is_missing_is_a_problem_unless_only_gpus_need_it(make_context: MakeContext, tmp_path: Path) -> None:
    write_lock(tmp_path, f"numpy=={NUMPY}\nnot-there==1.0 \\\n    --hash=sha256:00\nnot-here==1.0 ; sys_platform == 'win32'\n")
    finding = packages.lock(make_context())
    assert (finding.status, finding.text.partition(", ")[2]) == ("problem", "not-there is missing")
    write_lock(tmp_path, "nvidia-imaginary==1.0\n")
    assert packages.lock(make_context()).status == "warning"


def test_a_lock_that_is_missing_is_a_problem(make_context: MakeContext) -> None:
    assert packages.lock(make_context()).status == "problem"


def test_another_python_than_that_of_the_checkout(make_context: MakeContext, tmp_path: Path) -> None:
    assert packages.python(make_context()).status == "ok"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    for check in (packages.python, packages.lock):
        write_lock(tmp_path, "not-there==1.0\n")
        finding = check(make_context())
        assert (finding.status, finding.remedy) == ("problem" if check is packages.lock else "warning", "`source .venv/bin/activate`")
