"""`set preset=NAME` replaces params.yaml without losing what a user wrote."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.imports import TOP

Refused = Callable[..., list[str]]
TARGET = Path("params.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with the presets of this project, and a file that is none."""
    monkeypatch.chdir(tmp_path)
    Path("presets").symlink_to(TOP / "presets")
    TARGET.write_bytes(b"\xff\xfe not even text")


def preset(name: str) -> str:
    return (TOP / f"presets/{name}.yaml").read_text(encoding="utf-8").replace("$schema=../", "$schema=")


def test_one_preset_takes_the_place_of_another_and_names_the_schema_from_there() -> None:
    TARGET.unlink()
    for name in ("digits", "trec-lstm", "trec-lstm", "digits"):
        assert main(["set", f"preset={name}"]) == 0
        assert TARGET.read_text(encoding="utf-8") == preset(name)


def test_what_a_preset_replaces_is_kept_unless_it_is_a_preset_itself(capsys: pytest.CaptureFixture[str]) -> None:
    content = TARGET.read_bytes()
    for name in ("digits", "digits", "trec-lstm"):
        assert main(["set", f"preset={name}"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    kept = Path(first.removeprefix("set: params.yaml had other values: ").removesuffix(" keeps them"))
    assert kept.read_bytes() == content
    assert not any("keeps" in line for line in others)
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("preset=digits preset=trec-lstm", "preset=trec-lstm: is the second preset: write one"),
        ("preset=../params", "there is no preset '../params': the presets are cifar10-cnn, "),
        ("preset=", "there is no preset ''"),
        ("preset=cifar10-cnn model.widht=8", "model.widht=8: is not a key here: did you mean `width`?"),
    ],
)
def test_a_wrong_name_or_value_changes_nothing(refused: Refused, words: str, message: str) -> None:
    before = TARGET.read_bytes()
    [error] = refused("set", *words.split())
    assert error.startswith(message)
    assert TARGET.read_bytes() == before


def test_the_shipped_parameters_are_the_digits_preset() -> None:
    shipped = (TOP / "params.yaml").read_text(encoding="utf-8")
    if shipped != preset("digits"):  # a user may have changed theirs
        shipped = subprocess.run(["git", "show", "HEAD:params.yaml"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    assert shipped == preset("digits")


def test_a_preset_takes_other_values_and_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    TARGET.unlink()
    assert main(["set", "preset=cifar10-cnn", "model.width=8", "optimizer=adamw"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "set: params.yaml is now the preset cifar10-cnn, except:",
        "set: model.width: 16 -> 8",
        "set: optimizer.learning_rate: 0.003 -> 0.001",
    ]
    assert "\n  width: 8\n" in TARGET.read_text(encoding="utf-8")
