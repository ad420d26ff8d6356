"""The commands that the container's first process runs, and the commit that it records."""

from pathlib import Path

import pytest

from pipeline.container import __main__ as first
from pipeline.container import checkout
from pipeline.container.checkout import Checkout
from tests.imports import TOP

REVISION = "c0ffee"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary folder with the code of an image."""
    monkeypatch.setenv("PIPELINE_IMAGE_REVISION", REVISION)
    checkout.copy(TOP, tmp_path / "image")
    return tmp_path / "image"


def test_the_images_commit_is_recorded_only_for_its_own_code(image: Path) -> None:
    built, job = checkout.digests(image), Checkout(image.with_name("home"), copy_of=image)
    assert first.commit(job, built, is_edited=False) == REVISION
    assert first.commit(job, built, is_edited=True) == f"{REVISION}-changed"
    assert first.commit(Checkout(image), built, is_edited=False) == "", "Git knows the commit"
    (image / "pipeline/more.py").touch()
    assert first.commit(job, built, is_edited=False) == ""
    (image / "pipeline/more.py").unlink()
    (image / "pipeline/spec.py").write_text("# mounted over it", encoding="utf-8")
    assert first.commit(job, built, is_edited=False) == ""


@pytest.mark.parametrize("words", [[], ["repro"]])
def test_without_a_verb_it_is_repro(words: list[str]) -> None:
    assert first.commands_for(words) == first.REPRO


def test_help_for_a_verb_is_that_of_the_verb() -> None:
    assert first.commands_for(["repro", "--help"]) == ((*first.VERB, "repro", "--help"),)
