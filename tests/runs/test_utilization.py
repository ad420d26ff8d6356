import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from pipeline.runs import events, utilization


def test_a_short_run_has_one_sample_and_a_long_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "FIRST_PAUSE_S", 0.01)

    def found() -> list[events.Event]:
        return list(events.read(tmp_path / events.SYSTEM))

    for fewest in (0, 4):
        sampler = utilization.Sampler(tmp_path)
        sampler.start()
        while sampler.is_alive() and len(found()) < fewest:
            time.sleep(0.01)
        sampler.stop()
        assert len(found()) >= max(1, fewest)
    assert [event.fields["step"] for event in found()] == list(range(len(found())))
    assert not any(name.startswith("gpu") for name in utilization.sample([]))
    values = found()[0].fields["values"]
    assert all(0 <= values[name] <= 100 for name in values if name.endswith("percentage"))


def test_a_gpu_keeps_the_metrics_before_one_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: MagicMock(used=10**9, total=4 * 10**9))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", MagicMock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)))
    found = utilization.sample([object()])
    assert (found["gpu_0_memory_usage_megabytes"], found["gpu_0_memory_usage_percentage"]) == (1000, 25)
    assert "gpu_0_utilization_percentage" not in found
