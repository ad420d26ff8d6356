"""What the container's first process runs, and which commit it records."""

from pathlib import Path

import pytest

from pipeline.container import __main__ as first
from pipeline.container import checkout
from pipeline.container.checkout import Place
from tests.imports import TOP

REVISION = "c0ffee"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image's code in a folder of the test's."""
    monkeypatch.setenv("PIPELINE_IMAGE_REVISION", REVISION)
    checkout.copy(TOP, tmp_path / "image")
    return tmp_path / "image"


def test_the_images_commit_is_recorded_for_its_own_code_alone(image: Path) -> None:
    built, found = checkout.digests(image), Place(image.with_name("home"), copy_of=image)
    assert first.commit(found, (), built) == REVISION
    assert first.commit(found, ("params.yaml",), built) == f"{REVISION}-changed"
    assert first.commit(Place(image), (), built) == "", "Git knows"
    (image / "pipeline/more.py").touch()
    assert first.commit(found, (), built) == ""
    (image / "pipeline/more.py").unlink()
    (image / "pipeline/spec.py").write_text("# mounted over it", encoding="utf-8")
    assert first.commit(found, (), built) == ""


@pytest.mark.parametrize("words", [[], ["repro"]])
def test_without_a_verb_it_is_repro(words: list[str]) -> None:
    assert first.chosen(words) == first.REPRO


def test_a_verb_is_answered_with_its_own_help() -> None:
    assert first.chosen(["repro", "--help"]) == ((*first.VERB, "repro", "--help"),)
