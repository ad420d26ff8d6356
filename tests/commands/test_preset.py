"""`preset` replaces params.yaml without losing what a user wrote."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.imports import TOP

Refused = Callable[..., list[str]]
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
TARGET = Path("params.yaml")


def git(*arguments: str) -> None:
    subprocess.run([*GIT, *arguments], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a committed checkout with two presets and another params.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("presets").mkdir()
    for name in ("digits", "other"):
        Path("presets", f"{name}.yaml").write_text(
            f"# yaml-language-server: $schema=../params.schema.json\nname: {name}\n", encoding="utf-8"
        )
    TARGET.write_text("mine: 1\n", encoding="utf-8")
    git("init")
    git("add", ".")
    git("commit", "-m", "all")


def test_a_preset_takes_the_place_of_what_is_committed_and_names_the_schema_from_there() -> None:
    assert main(["preset", "other"]) == 0
    assert TARGET.read_text(encoding="utf-8") == "# yaml-language-server: $schema=params.schema.json\nname: other\n"


def test_one_preset_takes_the_place_of_another_without_a_commit_between() -> None:
    for name in ("digits", "other", "other", "digits"):
        assert main(["preset", name]) == 0
        assert f"name: {name}\n" in TARGET.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"mine: 2\n", b"\xff\xfe not even text"])
def test_changes_that_no_commit_holds_are_never_overwritten(refused: Refused, content: bytes) -> None:
    TARGET.write_bytes(content)
    for add in ([], ["add", "params.yaml"]):
        if add:
            git(*add)
        [said] = refused("preset", "digits")
        assert said.startswith(
            "params.yaml has changes that are not committed and would be lost: commit it, or undo the changes with `git restore params.yaml`"
        )
        assert TARGET.read_bytes() == content
    git("commit", "-m", "mine")
    assert main(["preset", "digits"]) == 0


def test_an_untracked_file_and_one_outside_git_count_as_uncommitted(refused: Refused) -> None:
    git("rm", "--cached", "params.yaml")
    git("commit", "-m", "untracked")
    assert "has changes that are not committed" in refused("preset", "digits")[0]
    Path(".git").rename("elsewhere")
    assert "has changes that are not committed" in refused("preset", "digits")[0]
    assert TARGET.read_bytes() == b"mine: 1\n"


def test_a_missing_file_is_simply_written() -> None:
    TARGET.unlink()
    assert main(["preset", "digits"]) == 0


@pytest.mark.parametrize("name", ["digit", "../params", ""])
def test_an_unknown_preset_is_answered_with_the_known_ones(refused: Refused, name: str) -> None:
    assert refused("preset", name) == [f"there is no preset {name!r}: the presets are digits, other"]


def test_the_shipped_parameters_are_the_digits_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = (TOP / "params.yaml").read_text(encoding="utf-8")
    preset = (TOP / "presets/digits.yaml").read_text(encoding="utf-8").replace("$schema=../", "$schema=")
    if shipped != preset:  # a user may have changed theirs
        shipped = subprocess.run(["git", "show", "HEAD:params.yaml"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    assert shipped == preset
