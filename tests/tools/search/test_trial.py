"""What a trial of a search leaves, read from its files."""

import json
from pathlib import Path

from pipeline.tools.search.trial import TrialFolder


def test_a_metric_that_the_validation_did_not_determine_has_no_value(tmp_path: Path) -> None:
    trial = TrialFolder(tmp_path / "7", "search")
    trial.paths.metrics.mkdir(parents=True)
    (trial.paths.metrics / "train.json").write_text(json.dumps({"exported_step": 20}), encoding="utf-8")
    trial.paths.history.parent.mkdir(parents=True)
    trial.paths.history.write_text("step,valid/accuracy,valid/auroc\n10,0.5,0.5\n20,0.75,\n", encoding="utf-8")
    assert trial.result("valid/auroc") == (None, 20)
    assert trial.result("valid/accuracy") == (0.75, 20)
