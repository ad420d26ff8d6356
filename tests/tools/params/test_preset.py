"""`set preset=NAME` replaces params.yaml without losing what a user wrote."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core.yaml_document import Document
from pipeline.tools.params import command as preset
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
    assert main(["set", "preset=other"]) == 0
    assert TARGET.read_text(encoding="utf-8") == "# yaml-language-server: $schema=params.schema.json\nname: other\n"


def test_one_preset_takes_the_place_of_another_without_a_commit_between() -> None:
    for name in ("digits", "other", "other", "digits"):
        assert main(["set", f"preset={name}"]) == 0
        assert f"name: {name}\n" in TARGET.read_text(encoding="utf-8")


def test_changes_that_no_commit_holds_are_never_overwritten(refused: Refused) -> None:
    content = b"\xff\xfe not even text"
    TARGET.write_bytes(content)
    for add in ([], ["add", "params.yaml"]):
        if add:
            git(*add)
        [said] = refused("set", "preset=digits")
        assert said.startswith(
            "params.yaml has changes that are not committed and would be lost: commit it, or undo the changes with `git restore params.yaml`"
        )
        assert TARGET.read_bytes() == content
    git("commit", "-m", "mine")
    assert main(["set", "preset=digits"]) == 0


def test_an_untracked_file_and_one_outside_git_count_as_uncommitted(refused: Refused) -> None:
    git("rm", "--cached", "params.yaml")
    git("commit", "-m", "untracked")
    assert "has changes that are not committed" in refused("set", "preset=digits")[0]
    Path(".git").rename("elsewhere")
    assert "has changes that are not committed" in refused("set", "preset=digits")[0]
    assert TARGET.read_bytes() == b"mine: 1\n"


def test_two_presets_are_refused(refused: Refused) -> None:
    assert refused("set", "preset=digits", "preset=other") == ["preset=other: is the second preset: write one"]


def test_a_missing_file_is_simply_written() -> None:
    TARGET.unlink()
    assert main(["set", "preset=digits"]) == 0


@pytest.mark.parametrize("name", ["../params", ""])
def test_an_unknown_preset_is_answered_with_the_known_ones(refused: Refused, name: str) -> None:
    assert refused("set", f"preset={name}") == [f"there is no preset {name!r}: the presets are digits, other"]


def test_the_shipped_parameters_are_the_digits_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = (TOP / "params.yaml").read_text(encoding="utf-8")
    preset = (TOP / "presets/digits.yaml").read_text(encoding="utf-8").replace("$schema=../", "$schema=")
    if shipped != preset:  # a user may have changed theirs
        shipped = subprocess.run(["git", "show", "HEAD:params.yaml"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    assert shipped == preset


@pytest.fixture
def real_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder without Git, with the parameters and presets of this project, as a copy in a container has them."""
    (tmp_path / "copy").mkdir()
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    Path("presets").symlink_to(TOP / "presets")
    assert main(["set", "preset=digits"]) == 0


def values(*keys: str) -> list[object]:
    data = Document.read(TARGET).data
    return [data[section][key] for section, _, key in (word.partition(".") for word in keys)]


@pytest.mark.usefixtures("real_presets")
def test_a_preset_takes_other_values_and_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["set", "preset=cifar10-cnn", "model.width=8", "optimizer=adamw"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "set: params.yaml is now the preset cifar10-cnn, except:",
        "set: model.width: 16 -> 8",
        "set: optimizer.learning_rate: 0.003 -> 0.001",
    ]
    assert values("source.name", "model.width") == ["cifar", 8]


@pytest.mark.usefixtures("real_presets")
def test_a_wrong_value_or_name_changes_nothing(refused: Refused) -> None:
    before = TARGET.read_bytes()
    assert refused("set", "preset=cifar10-cnn", "model.widht=8") == ["model.widht=8: is not a key here: did you mean `width`?"]
    assert refused("set", "preset=cifar10-cnm", "model.width=8")[0].startswith("there is no preset 'cifar10-cnm'")
    assert TARGET.read_bytes() == before


@pytest.mark.usefixtures("real_presets")
def test_without_git_only_what_this_program_wrote_is_replaced(refused: Refused) -> None:
    for words in (["set", "seed=2"], ["set", "model.width=8"], ["set", "preset=digits", "seed=3"], ["set", "preset=digits", "seed=3"]):
        assert main(words) == 0
    assert values("model.width") == [16]
    TARGET.write_text(TARGET.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    assert main(["set", "seed=4"]) == 0
    edited = TARGET.read_bytes()
    assert refused("set", "preset=digits", "seed=3") == [
        "params.yaml has changes that are not committed and would be lost: move the file away, and try again"
    ]
    assert TARGET.read_bytes() == edited


def test_in_git_a_preset_with_other_values_is_corrected_but_not_after_an_edit(tmp_path: Path, monkeypatch, refused: Refused) -> None:
    monkeypatch.setattr(preset, "texts", lambda: {"digits": (TOP / "presets/digits.yaml").read_text(encoding="utf-8")})
    for words in (
        ["set", "preset=digits", "seed=2"],
        ["set", "preset=digits", "seed=3"],
        ["set", "preset=digits"],
        ["set", "preset=digits", "seed=4"],
    ):
        assert main(words) == 0
    assert main(["set", "model.width=8"]) == 0
    assert "has changes that are not committed" in refused("set", "preset=digits")[0]
    assert main(["set", "model.width=16"]) == 0
    assert main(["set", "preset=digits"]) == 0


def test_in_git_what_set_wrote_is_kept_too(refused: Refused) -> None:
    preset.write(TARGET, "mine: 2\n")
    assert "commit it, or undo the changes with `git restore params.yaml`" in refused("set", "preset=digits")[0]
