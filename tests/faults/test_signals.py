"""A real `dvc repro` that is interrupted at DVC, at its whole group and at process 1, and ends in the same bytes."""

import shutil

import pytest

from tests.faults import signals

TARGETS = ("group", "dvc, by SIGKILL", "process 1")


def test_a_repro_interrupted_anywhere_ends_in_good_order_and_goes_on_to_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "STEPS", 400)
    can_unshare = shutil.which("unshare") and signals.os.geteuid() == 0
    targets = [name for name in TARGETS if can_unshare or name != "process 1"]
    story = signals.run(1, *targets)
    assert story["other_digests"] == []
    assert story["sent"] == dict.fromkeys(targets, 1), "the training was over too early"
