"""`set preset=NAME` replaces params.yaml without losing what a user wrote."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core.yaml_document import Document
from tests.imports import TOP

Refused = Callable[..., list[str]]
TARGET = Path("params.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with two presets and another params.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("presets").mkdir()
    for name in ("digits", "other"):
        Path("presets", f"{name}.yaml").write_text(
            f"# yaml-language-server: $schema=../params.schema.json\nname: {name}\n", encoding="utf-8"
        )
    TARGET.write_text("mine: 1\n", encoding="utf-8")


def test_a_preset_names_the_schema_from_there() -> None:
    assert main(["set", "preset=other"]) == 0
    assert TARGET.read_text(encoding="utf-8") == "# yaml-language-server: $schema=params.schema.json\nname: other\n"


def test_one_preset_takes_the_place_of_another() -> None:
    for name in ("digits", "other", "other", "digits"):
        assert main(["set", f"preset={name}"]) == 0
        assert f"name: {name}\n" in TARGET.read_text(encoding="utf-8")


def test_what_a_preset_replaces_is_kept_unless_it_is_a_preset_itself(capsys: pytest.CaptureFixture[str]) -> None:
    content = b"\xff\xfe not even text"
    TARGET.write_bytes(content)
    for name in ("digits", "digits", "other"):
        assert main(["set", f"preset={name}"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    kept = Path(first.removeprefix("set: params.yaml had other values: ").removesuffix(" keeps them"))
    assert kept.read_bytes() == content
    assert not any("keeps" in line for line in others)
    assert list(kept.parent.iterdir()) == [kept]


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
    """Make a folder with the parameters and presets of this project."""
    (tmp_path / "copy").mkdir()
    monkeypatch.chdir(tmp_path / "copy")
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
