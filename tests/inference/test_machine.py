"""The choice of the device, and the fingerprint of the machine."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.core import limits
from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.inference import machine
from pipeline.inference.machine import Machine, choose_device
from pipeline.tools import torchrun
from tests.imports import TOP


def capabilities(monkeypatch: pytest.MonkeyPatch, *found: tuple[int, int]) -> None:
    """Make torch report GPUs of these compute capabilities, and kernels of the wheels for CUDA 13."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(found))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: found[index])
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: f"Some GPU {index}")
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_75", "sm_80"])


@pytest.fixture(autouse=True)
def no_variables_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(machine.CPU_FLAGS)]:
        monkeypatch.delenv(name)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate a machine with two GPUs; the returned list receives the chosen one."""
    chosen: list[int] = []
    capabilities(monkeypatch, (8, 0), (8, 6))
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    return chosen


@pytest.mark.parametrize(("wish", "device"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_a_device_is_chosen_by_its_name(two_gpus: list[int], wish: str, device: str) -> None:
    assert choose_device(wish) == torch.device(device)
    assert two_gpus == ([] if device == "cpu" else [torch.device(device).index])


def test_a_number_that_no_gpu_has_is_refused(two_gpus: list[int]) -> None:
    with pytest.raises(Refusal, match="PIPELINE_DEVICE=cuda:2: this machine has 2 GPUs, numbered from 0: use one of these numbers"):
        choose_device("cuda:2")


def test_without_a_gpu_auto_is_the_cpu_and_a_wish_for_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(Refusal, match=r"PIPELINE_DEVICE=cuda:0: no CUDA GPU can be used: .*has no NVIDIA GPU: use `auto` or `cpu`"):
        choose_device("cuda:0")


def test_a_gpu_that_cannot_be_used_is_spoken_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pipeline.inference.gpu_diagnostics.obstacle", lambda cuda: f"no driver for {cuda}")
    assert choose_device("auto") == torch.device("cpu")
    assert capsys.readouterr().err == f"warning: the NVIDIA GPU of this machine is not used: no driver for {torch.version.cuda}\n"
    with pytest.raises(Refusal, match="PIPELINE_DEVICE=cuda: no CUDA GPU can be used: no driver for"):
        choose_device("cuda")
    assert choose_device("cpu") == torch.device("cpu")
    assert capsys.readouterr().err == ""


NO_KERNELS = r"this build of PyTorch \(CUDA .*\) has kernels for sm_75, sm_80, none of which runs on GPU 0 \(Some GPU 0, sm_61\): install another build"


def test_a_gpu_without_kernels_is_left_by_auto_and_refused_by_name(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    capabilities(monkeypatch, (6, 1))
    assert choose_device("auto") == torch.device("cpu")
    assert re.match(f"warning: the NVIDIA GPU of this machine is not used: {NO_KERNELS}", capsys.readouterr().err)
    with pytest.raises(Refusal, match=f"PIPELINE_DEVICE=cuda: no CUDA GPU can be used: {NO_KERNELS}"):
        choose_device("cuda")
    several = Environment(PIPELINE_DEVICE="auto", LOCAL_WORLD_SIZE="2", LOCAL_RANK="1")
    assert machine.device_of_rank(several) == "auto"


def test_auto_takes_the_first_gpu_with_kernels(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities(monkeypatch, (6, 1), (8, 6))
    assert choose_device("auto") == choose_device("cuda:1") == torch.device("cuda", 1)
    assert two_gpus == [1, 1]
    with pytest.raises(Refusal, match=f"PIPELINE_DEVICE=cuda: {NO_KERNELS}.* or one of the GPUs 1"):
        choose_device("cuda")


def test_several_processes_take_the_gpus_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities(monkeypatch, (6, 1), (8, 6), (8, 0))
    assert torchrun.num_processes(Environment(PIPELINE_DEVICE="auto", PIPELINE_PROCESSES="auto")) == 2
    ranks = [Environment(PIPELINE_DEVICE="auto", LOCAL_WORLD_SIZE="3", LOCAL_RANK=str(rank)) for rank in range(3)]
    assert [machine.device_of_rank(rank) for rank in ranks[:2]] == ["cuda:1", "cuda:2"]
    with pytest.raises(Refusal, match="this machine has 2 usable GPUs, one for each process, but there are 3 processes"):
        machine.device_of_rank(ranks[2])


def test_a_machine_is_set_up_with_the_threads_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        monkeypatch.setenv("PIPELINE_DEVICE", "cpu")
        monkeypatch.delenv("PIPELINE_THREADS")
        monkeypatch.setattr(limits, "usable_cpus", lambda: 3)
        assert Machine.set_up(Environment.read()).threads == 3
        monkeypatch.setenv("PIPELINE_THREADS", "1")
        assert Machine.set_up(Environment.read()) == Machine(torch.device("cpu"), 1)
        assert torch.get_num_threads() == 1
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.set_num_threads(before)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_the_fingerprint_holds_what_decides_bits_and_nothing_else() -> None:
    here = Machine(torch.device("cpu"), 3)
    found = here.fingerprint()
    assert set(found) == {"device", "name", "threads", "libraries", "cpu", "extensions"}
    assert set(found["libraries"]) == {"torch", "torchvision", "numpy"}
    assert (found["device"], found["threads"]) == ("cpu", 3)
    assert torch.backends.cpu.get_cpu_capability() in found["name"]
    assert here.memory() == {}


def test_determinism_is_set_without_filling_fresh_memory() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        machine.set_determinism(True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled(), "refused, not only said"
        assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        machine.set_determinism(False)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


def test_what_decides_a_gpus_sums_is_in_its_fingerprint_and_its_memory_is_told_in_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr("torch.cuda.memory_stats", lambda _: {"allocated_bytes.all.peak": 2_000_000, "reserved_bytes.all.peak": 3_000_000})
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 92_600)
    here = Machine(torch.device("cuda", 1), 2)
    found = here.fingerprint()
    assert (found["name"], found["device"]) == ("Some GPU", "cuda")
    assert found["flags"] == dict.fromkeys(machine.DECIDING_FLAGS, "") | {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert found["cpu"] == platform.machine()
    assert found["kernels"] == {"cuda": torch.version.cuda, "cudnn": 92_600}
    assert here.memory() == {"memory/allocated_megabytes": 2.0, "memory/reserved_megabytes": 3.0}


X86 = "processor\t: {}\nvendor_id\t: {}\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Any CPU: of two\nflags\t\t: fpu\n"
ARM = "processor\t: {}\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {}\n"
BOARD = "Hardware\t: BCM2711\nModel\t\t: Raspberry Pi\n"
CPUINFO = {
    "x86": ([X86.format(core, "GenuineIntel") for core in range(2)], "GenuineIntel family 6 model 143"),
    "ARM with two kinds of cores": (
        [ARM.format(0, "0xd05"), ARM.format(1, "0xd0b"), BOARD],
        "implementer 0x41 part 0xd05 and implementer 0x41 part 0xd0b",
    ),
    "a core without its model": ([X86.format(0, "GenuineIntel"), "processor\t: 1\nvendor_id\t: GenuineIntel\n"], "unknown"),
    "nothing": ([], "unknown"),
}


@pytest.mark.parametrize(("cores", "model"), CPUINFO.values(), ids=CPUINFO)
def test_a_cpu_is_known_by_its_model_or_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: list[str], model: str) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.cpu_model() == "unknown"
    (tmp_path / "cpuinfo").write_text("\n".join(cores))
    found = Machine(torch.device("cpu"), 2).fingerprint()
    assert found["cpu"] == model
    assert machine.is_known(found) == (model != "unknown")


def test_variables_that_choose_a_cpus_kernels_are_in_its_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Machine(torch.device("cpu"), 2).fingerprint()["flags"] == variables


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def glibc() -> tuple[int, ...]:
    return tuple(map(int, platform.libc_ver()[1].split(".")))


FAULTS = """
import resource, torch
from pipeline.core.environment import Environment
from pipeline.inference.machine import Machine
def step():
    return float(sum(torch.ones(size)[-1] for size in (2**19, 2**22, 2**24)))
def faults():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(6):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
Machine.set_up(Environment())
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or glibc() < (2, 35), reason="this C library takes no such threshold")
@pytest.mark.skipif("[always]" in HUGE_PAGES.read_text(), reason="the system's pages are huge: there is little to clear")
def test_memory_that_a_step_frees_serves_the_next_one() -> None:
    usual, kept = map(int, subprocess.check_output([sys.executable, "-c", FAULTS], cwd=TOP).split())
    assert usual > 45_000, "each page of it is cleared by the system again"
    assert kept < usual / 10


@pytest.mark.parametrize(("deterministic", "training", "tries"), [(False, True, True), (False, False, False), (True, True, False)])
def test_cudnn_tries_its_algorithms_only_in_a_training_that_need_not_be_deterministic(deterministic, training, tries: bool) -> None:
    try:
        machine.set_determinism(deterministic, training=training)
        assert torch.backends.cudnn.benchmark == tries
    finally:
        machine.set_determinism(False)
