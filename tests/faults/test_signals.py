"""A real `dvc repro` that is interrupted resumes to the same bytes. test_interrupting.py and tests/tools/test_supervision.py have the short forms."""

import os
import shutil

import pytest

from tests.faults import signals

CAN_UNSHARE = shutil.which("unshare") is not None and os.geteuid() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "group",
        pytest.param("process 1", marks=pytest.mark.skipif(not CAN_UNSHARE, reason="only root can make a namespace")),
    ],
)
def test_an_interrupted_repro_stops_its_stage_and_resumes_to_the_same_bytes(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(signals, "STEPS", 200)
    outcome = signals.run(1, target)
    assert outcome["other_digests"] == []
    assert outcome["sent"] == {target: 1}, "the training ended before the signal"
