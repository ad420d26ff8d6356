from pathlib import Path

import pytest

from pipeline.tracking import events, utilization


def test_a_short_run_has_one_sample_and_a_long_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "FIRST_PAUSE_S", 0.01)
    for _ in range(2):
        sampler = utilization.Sampler(tmp_path)
        sampler.start()
        sampler.stop()
    found = list(events.read(tmp_path / events.SYSTEM))
    assert [event.fields["step"] for event in found] == list(range(len(found)))
    assert len(found) >= 2
    assert 0 <= found[0].fields["values"]["system/cpu_utilization_percentage"] <= 100
