"""What the first line of a journal says of where a result comes from."""

import json
from pathlib import Path

import pytest

from pipeline.environment import Environment
from pipeline.paths import Paths
from pipeline.tracking import events, provenance, run, story
from tests import project

NEVER_MISSING = {
    "mlflow.source.git.commit",
    "pipeline.git.dirty",
    "pipeline.git.difference",
    "pipeline.lock_sha256",
    "pipeline.image.digest",
    "pipeline.image.revision",
    "pipeline.driver",
    "pipeline.gpu",
    "pipeline.flags",
    "pipeline.python",
    "pipeline.platform",
    "pipeline.host",
    "pipeline.dvc.stage",
    "mlflow.user",
    *(f"pipeline.version.{library}" for library in provenance.LIBRARIES),
}


def test_the_start_of_a_training_says_where_it_comes_from(alone: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    facts = story.of_training(Paths(), alone, splits={"train": 3}, dataset={"classes": ["a"]}, digest="d" * 64)
    with run.training(alone, resume_file=tmp_path / "run", facts=facts) as reports:
        assert reports.folder
        start = next(events.read(reports.folder / events.EVENTS)).fields
    assert NEVER_MISSING - start["tags"].keys() == set()
    assert [name for name, text in start["tags"].items() if not text.strip()] == []
    assert start["dataset_digest"] == "d" * 64
    assert start["dataset"]["samples"] == {"train": 3}
    assert {"seed", "model.name", "optimizer.learning_rate", "train.steps"} <= start["params"].keys()
    assert len(start["tags"]["pipeline.lock_sha256"]) == 64
    assert "optimize" in json.loads(start["tags"]["pipeline.flags"])
