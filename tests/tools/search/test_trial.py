"""What a trial of a search leaves, read from its files, and the process that sends its journal to MLflow."""

from contextlib import closing
from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.runs.journal import SEARCH_TAG, Journal, RunInfo
from pipeline.runs.mlflow import mirror
from pipeline.tools.search.tracked import TrialRuns
from pipeline.tools.search.trial import TRIAL_TAG, TrialFolder


def test_the_scores_are_those_of_the_exported_weights_without_what_is_undetermined(tmp_path: Path) -> None:
    trial = TrialFolder(tmp_path / "7", "search")
    valid = {"loss": 0.3, "auroc": None}
    files.write_json(
        trial.paths.metrics / "train.json", {"steps": 20, "exported_step": 10, "valid": valid, "last": {"valid": {"loss": 0.9}}}
    )
    files.write_json(trial.paths.metrics / "evaluate.json", {"test": {"loss": 0.4, "samples": 9}})
    assert (trial.exported(), trial.scores()) == (({"valid/loss": 0.3}, 10), {"valid/loss": 0.3, "test/loss": 0.4})


def test_a_trial_gets_one_mirror_once_its_journal_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    monkeypatch.setattr(mirror, "start", lambda folder, _: started.append(folder) or "a process")
    runs, trial = TrialRuns("tiny", "search", "parent", Environment.read()), TrialFolder(tmp_path / "7", "search")
    written = Journal.create(trial.folder, stage="train", info=RunInfo(tags={SEARCH_TAG: "search", TRIAL_TAG: "7"}))
    written.close()
    runs.mirror(trial)
    assert not started
    with closing(Journal.reopen(written.folder, stage="train", info=RunInfo())):
        runs.mirror(trial)
        runs.mirror(trial)
    assert started == [written.folder]
