"""Driver and GPUs: what NVML tells, and what it means for torch's build."""

from collections.abc import Callable

import pynvml
import pytest

from pipeline.runs.utilization import Gpu
from pipeline.tools.doctor import gpus
from pipeline.tools.doctor.finding import Context

MakeContext = Callable[..., Context]
GIB = 2**30
H200 = Gpu("NVIDIA H200", 140 * GIB, 139 * GIB, (9, 0))
T4 = Gpu("Tesla T4", 15 * GIB, 15 * GIB, (7, 5))
P100 = Gpu("Tesla P100", 16 * GIB, 16 * GIB, (6, 0))


@pytest.fixture(autouse=True)
def built_for_cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "cuda_of_torch", lambda: "13.2")


def job_of_nvml(make_context: MakeContext, **variables: str) -> Context:
    context = make_context(**variables)
    del vars(context)["gpus"]
    return context


def test_a_driver_that_is_too_old_is_named_with_the_one_that_is_not(make_context: MakeContext, fake_nvml: Callable[..., None]) -> None:
    fake_nvml(driver="570.86.15", cuda=12080)
    for device, status in {"auto": "warning", "cuda": "problem", "cpu": "ok"}.items():
        finding = gpus.driver(job_of_nvml(make_context, PIPELINE_DEVICE=device))
        assert (finding.status, finding.text) == (status, "the NVIDIA driver 570.86.15 is too old for CUDA 13.2")
    assert finding.remedy == "install driver 580 or newer, or another build (docs/container.md#older-drivers-and-gpus)"


def test_an_old_driver_with_the_compatibility_libraries_of_the_image_is_no_problem(make_context, fake_nvml: Callable[..., None]) -> None:
    fake_nvml(driver="550.163.01", cuda=13000)
    finding = gpus.driver(job_of_nvml(make_context, PIPELINE_DEVICE="cuda"))
    assert finding.text == "NVIDIA driver 550.163.01 (up to CUDA 13.0), torch is built for CUDA 13.2"
    assert finding.status == "ok"


def test_a_driver_that_is_new_enough_is_told_with_its_gpus(make_context: MakeContext, fake_nvml: Callable[..., None]) -> None:
    fake_nvml(driver="595.45.04")
    context = job_of_nvml(make_context)
    assert gpus.driver(context).text == "NVIDIA driver 595.45.04 (up to CUDA 13.2), torch is built for CUDA 13.2"
    assert gpus.gpus(context).text == "0: NVIDIA H200, 139.0 of 140.0 GiB free, compute capability 9.0"


def test_a_gpu_that_is_demanded_and_missing_is_a_problem(make_context: MakeContext) -> None:
    finding = gpus.driver(make_context(PIPELINE_DEVICE="cuda:1"))
    assert (finding.status, "no NVIDIA GPU" in finding.text) == ("problem", True)
    assert gpus.driver(make_context()).status == "ok"


def test_a_variable_that_hides_the_gpu_is_named(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context(H200)
    (context.system / "dev").mkdir(parents=True)
    (context.system / "dev/nvidiactl").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = gpus.driver(context)
    assert (finding.status, finding.text, finding.remedy) == ("warning", "CUDA_VISIBLE_DEVICES hides the GPU", "unset it")


def test_a_gpu_for_which_torch_has_no_kernels(make_context: MakeContext) -> None:
    assert gpus.gpus(make_context(P100, PIPELINE_DEVICE="cpu")).status == "ok"
    for device, status in {"auto": "warning", "cuda": "problem"}.items():
        finding = gpus.gpus(make_context(P100, PIPELINE_DEVICE=device))
        assert finding.status == status, "`auto` trains on the CPU"
        assert "needs compute capability 7.5, which GPU 0 lacks" in finding.text
        assert finding.remedy.startswith("`export PIPELINE_DEVICE=cpu`")
    beside = gpus.gpus(make_context(P100, H200))
    assert (beside.status, "CUDA_VISIBLE_DEVICES=1`" in beside.remedy) == ("warning", True)


def test_a_gpu_whose_memory_others_use(make_context: MakeContext) -> None:
    finding = gpus.gpus(make_context(H200, Gpu("NVIDIA H200", 140 * GIB, 20 * GIB, (9, 0))))
    assert (finding.status, finding.text.rpartition(". ")[2]) == ("warning", "Other processes use memory of GPU 1")


def test_the_cuda_version_of_torch_is_read_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.undo()
    assert gpus.cuda_of_torch() == torch.version.cuda


def test_a_gpu_without_memory_of_its_own_is_told(
    make_context: MakeContext, fake_nvml: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a Jetson or a DGX Spark."""

    def unsupported(_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    fake_nvml(driver="595.45.04", name="NVIDIA GB10")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", unsupported)
    finding = gpus.gpus(job_of_nvml(make_context))
    assert (finding.status, finding.text) == ("ok", "0: NVIDIA GB10, memory shared with the CPU, compute capability 9.0")
