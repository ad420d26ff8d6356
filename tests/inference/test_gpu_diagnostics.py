"""The reasons why PyTorch does not see an NVIDIA GPU are told apart."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.inference.gpu_diagnostics import has_kernels, obstacle

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sat Aug  5 2026\nGCC version:  gcc version 12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder@host)\nGCC version: 13\n"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def machine(top: Path, *, driver: str | None = None, module: str = OPEN, piped: bool = False, vendor: str = "0x10de") -> Path:
    device = top / "sys/bus/pci/devices/0000:01:00.0"
    write(device / "vendor", vendor + "\n")
    write(device / "class", "0x030200\n")
    if driver:
        write(top / "proc/driver/nvidia/version", module.format(driver))
    if piped:
        write(top / "dev/nvidiactl")
    return top


@pytest.fixture(autouse=True)
def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


TOO_OLD = "the NVIDIA driver 535.104.05 is too old for CUDA 13.2: install driver 580 or newer, or another build (docs/container.md#older-drivers-and-gpus)"
STARTED: dict[str, Any] = {"driver": "580.65.06", "piped": True}


@pytest.mark.parametrize(
    ("found", "hidden", "message"),
    [
        ({"vendor": "0x1002"}, None, None),
        ({}, None, "the NVIDIA driver is not loaded: install it, version 580 or newer"),
        ({"driver": "535.104.05", "module": CLOSED, "piped": True}, None, TOO_OLD),
        ({"driver": "535.104.05", "module": OPEN, "piped": True}, None, TOO_OLD),
        (
            {"driver": "580.65.06"},
            None,
            "the GPU is not available in this container: start the container with `docker run --gpus all` (NVIDIA Container Toolkit)",
        ),
        (STARTED, "", "CUDA_VISIBLE_DEVICES hides the GPU: unset it"),
        (STARTED, None, "CUDA cannot initialize the GPU: run `nvidia-smi` for the reason"),
    ],
)
def test_each_obstacle_has_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], hidden: str | None, message: str | None
) -> None:
    assert obstacle("13.2", system=tmp_path) is None, "no GPU at all"
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert obstacle("13.2", system=machine(tmp_path, **found)) == message


def test_a_pytorch_without_cuda_is_named(tmp_path: Path) -> None:
    system = machine(tmp_path, **STARTED)
    assert obstacle(None, system=system) == "this build of PyTorch has no CUDA support: install from requirements.lock"


def test_wsl_has_a_driver_without_its_file_in_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "dev/dxg")
    assert obstacle("13.2", system=tmp_path) is None, "this device is also there for GPUs of other vendors"
    write(tmp_path / "usr/lib/wsl/lib/libcuda.so.1")
    said = obstacle("13.2", system=tmp_path)
    assert said == "CUDA cannot initialize the GPU: run `nvidia-smi` for the reason; on WSL2 the driver is that of Windows: 580 or newer"
    assert "too old" in str(obstacle("13.2", system=tmp_path, driver="570.86")), "doctor learns the version from NVML"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert obstacle("13.2", system=tmp_path) == "CUDA_VISIBLE_DEVICES hides the GPU: unset it"


WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((6, 1), WHEEL, False),
        ((7, 5), WHEEL, True),
        ((11, 0), WHEEL, False),
        ((9, 0), (*WHEEL[:3], "compute_86"), True),
        ((10, 0), ("sm_90a", "compute_90a"), False),
        ((9, 4), ("gfx942",), True),
    ],
)
def test_kernels_run_on_gpus_of_their_major_version_and_ptx_on_all_that_are_no_older(
    capability: tuple[int, int], architectures: tuple[str, ...], expected: bool
) -> None:
    assert has_kernels(capability, architectures) == expected
