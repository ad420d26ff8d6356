"""Fixtures: a context in a folder of its own, GPUs that the context has, and a fake NVML."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from pipeline.core.environment import Environment
from pipeline.runs.utilization import Gpu, Gpus
from pipeline.tools.doctor.checks import Context

GIB = 2**30


@pytest.fixture
def make_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Context]:
    """Return a function: `make_context(PIPELINE_DEVICE="cpu")` is a context in `tmp_path` with these variables and without GPUs, or with `gpus`."""

    def make(*gpus: Gpu, top: Path = tmp_path, **variables: str) -> Context:
        environment = Environment.model_validate({"PIPELINE_DEVICE": "auto", "DVC_ROOT": top, **variables})
        context = Context(environment, top, tmp_path / "system")
        vars(context)["gpus"] = Gpus("590.10" if gpus else None, "13.2" if gpus else None, list(gpus))
        return context

    for name in ("CUDA_VISIBLE_DEVICES", "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return make


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes NVML answer with a driver and one GPU."""

    def fake(
        *, driver: str, cuda: int = 13020, name: str = "NVIDIA H200", free_gib: int = 139, capability: tuple[int, int] = (9, 0)
    ) -> None:
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlSystemGetDriverVersion": lambda: driver,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: cuda,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=140 * GIB, free=free_gib * GIB),
            "nvmlDeviceGetCudaComputeCapability": lambda _: capability,
            "nvmlDeviceGetName": lambda _: name,
        }
        for function, answer in answers.items():
            monkeypatch.setattr(pynvml, function, answer)

    return fake
