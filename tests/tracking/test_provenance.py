import subprocess
from pathlib import Path

import pytest

from pipeline.environment import Environment
from pipeline.tracking import provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for arguments in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_clean_commit_is_named(checkout: Path) -> None:
    (checkout / "dvc.lock").write_text("what a run writes itself is no difference")
    tags = provenance.tags(Environment())
    assert len(tags["mlflow.source.git.commit"]) == 40
    assert (tags["pipeline.git.dirty"], tags["pipeline.git.difference"]) == ("false", "none")


def test_a_difference_is_listed(checkout: Path) -> None:
    for number in range(60):
        (checkout / f"{number}.py").write_text("")
    tags = provenance.tags(Environment())
    assert tags["pipeline.git.dirty"] == "true"
    assert "?? 0.py" in tags["pipeline.git.difference"]
    assert "and 10 more" in tags["pipeline.git.difference"]


def test_what_cannot_be_found_out_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tags = provenance.tags(Environment())
    assert "not a git repository" in tags["mlflow.source.git.commit"]
    assert tags["pipeline.git.dirty"].startswith("unknown: RuntimeError: fatal")
    assert tags["pipeline.lock_sha256"].startswith("unknown: FileNotFoundError")
    monkeypatch.setenv("PATH", "")
    assert provenance.tags(Environment())["mlflow.source.git.commit"].startswith("unknown: FileNotFoundError")
    assert all(tags.values())


def test_the_image_is_known_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_IMAGE_DIGEST", "sha256:1")
    assert provenance.variable("PIPELINE_IMAGE_DIGEST") == "sha256:1"


def test_sections_become_dotted_names() -> None:
    params = {"seed": 1, "model": {"name": "mlp", "stem": {"width": None}}, "sizes": [1, 2], "empty": {}}
    assert provenance.flat(params) == {"seed": 1, "model.name": "mlp", "model.stem.width": None, "sizes": "[1, 2]", "empty": "{}"}
