"""What a trial of a search leaves, read from its files, and the process that sends its journal to MLflow."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.runs import events
from pipeline.runs.journal import Journal, RunInfo, journals_folder
from pipeline.runs.mlflow import mirror
from pipeline.tools.search.command import SearchRunner
from pipeline.tools.search.trial import TrialFolder


def test_the_scores_are_those_of_the_exported_weights_without_what_is_undetermined(tmp_path: Path) -> None:
    trial = TrialFolder(tmp_path / "7")
    valid = {"loss": 0.3, "auroc": None}
    files.write_json(
        trial.paths.metrics / "train.json", {"steps": 20, "exported_step": 10, "valid": valid, "last": {"valid": {"loss": 0.9}}}
    )
    files.write_json(trial.paths.metrics / "evaluate.json", {"test": {"loss": 0.4, "samples": 9}})
    assert (trial.exported(), trial.scores()) == (({"valid/loss": 0.3}, 10), {"valid/loss": 0.3, "test/loss": 0.4})


def test_a_trial_gets_one_mirror_once_its_journal_is_open_and_mlflow_has_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(mirror, "start", lambda folder, _: started.append(folder))
    runner: Any = SimpleNamespace(parent=tmp_path / "parent", mirrored=set(), environment=Environment.read())
    trial = TrialFolder(tmp_path / "7")
    send = SearchRunner.mirror
    written = Journal.create(trial.folder, stage="train", info=RunInfo())
    files.write_text(trial.folder / "run", written.folder.name)
    written.close()
    files.write_json(runner.parent / events.DELIVERED, {"a store": {}})
    send(runner, trial)
    with closing(Journal.reopen(written.folder, stage="train", info=RunInfo())):
        (runner.parent / events.DELIVERED).rename(tmp_path / "later")
        send(runner, trial)
        assert not started
        (tmp_path / "later").rename(runner.parent / events.DELIVERED)
        send(runner, trial)
        send(runner, trial)
    assert started == [written.folder]


def test_a_trial_of_a_checkout_that_was_moved_gets_the_journals_of_the_new_place(tmp_path: Path) -> None:
    trial, parent = TrialFolder(tmp_path / "7"), tmp_path / "journals/run-000001"
    link = journals_folder(trial.folder)
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "moved/journals")
    parent.mkdir(parents=True)
    trial.write("seed: 1\n", parent)
    assert link.resolve() == parent.parent
