from unittest.mock import MagicMock

import pytest

from pipeline.tracking import utilization


def test_a_machine_without_a_gpu_has_the_use_of_cpu_memory_and_disk() -> None:
    found = utilization.sample([])
    assert not any(name.startswith("gpu") for name in found)
    assert all(0 <= value <= 100 for name, value in found.items() if name.endswith("percentage"))


def test_a_gpu_keeps_the_metrics_before_one_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: MagicMock(used=10**9, total=4 * 10**9))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", MagicMock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)))
    found = utilization.sample([object()])
    assert (found["gpu_0_memory_usage_megabytes"], found["gpu_0_memory_usage_percentage"]) == (1000, 25)
    assert "gpu_0_utilization_percentage" not in found
