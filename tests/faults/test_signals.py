"""A real `dvc repro` that is interrupted resumes to the same bytes. test_interrupting.py and tests/tools/test_supervision.py have the short forms."""

import os
import shutil

import pytest

from tests.faults import signals
from tests.forking import campaign

pytestmark = pytest.mark.slow
CAN_UNSHARE = shutil.which("unshare") is not None and os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not CAN_UNSHARE, reason="only root can make a namespace")


@pytest.mark.parametrize("target", ["group", pytest.param("process 1", marks=AS_ROOT)])
def test_an_interrupted_repro_stops_its_stage_and_resumes_to_the_same_bytes(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(signals, "STEPS", 200)
    assert signals.run(1, target) == {target: (1, 0)}, "the training ended before the signal, or in other bytes"


def test_a_kill_while_the_store_is_created_loses_no_store_and_leaves_no_draft() -> None:
    seen = campaign("tests.faults.killing", "5", "store")
    assert seen["killed_in_a_save"] > 0, "no kill came while the store was created"
    assert (seen["kills"], seen["left_over"]) == (5, 0)
