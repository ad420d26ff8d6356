"""The checks of `doctor`: drivers and GPUs, memory and disks, packages, the checkout, and servers; what it prints, and what `check` refuses."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from pipeline.__main__ import main
from pipeline.core import limits
from pipeline.core.environment import Environment
from pipeline.runs.utilization import Gpu, Gpus
from pipeline.tools import doctor
from pipeline.tools.doctor import CHECKS, Finding
from tests.faults.servers import Proxy
from tests.imports import TOP
from tests.runs.conftest import opened
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
GIB = 2**30
NUMPY = metadata.version("numpy")
OWNER, STRANGER = 12345, 54321
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
H200 = Gpu("NVIDIA H200", 140 * GIB, 139 * GIB, (9, 0))
T4 = Gpu("Tesla T4", 15 * GIB, 15 * GIB, (7, 5))
P100 = Gpu("Tesla P100", 16 * GIB, 16 * GIB, (6, 0))
MISSING = "of 1 packages of requirements.lock: not-there missing"


def environment(**variables: str | Path) -> Environment:
    return Environment.model_validate({"PIPELINE_DEVICE": "auto", "DVC_ROOT": Path().resolve(), **variables})


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a checkout that every user can reach, unlike pytest's own temporary folders, the working folder."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    (path / "models").mkdir()
    monkeypatch.chdir(path)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def have_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that gives a machine these GPUs and no others, and torch built for CUDA 13.2."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor, "cuda_of_torch", lambda: "13.2")
    monkeypatch.setattr(doctor, "SYSTEM", tmp_path)

    def have(*gpus: Gpu, driver: str = "590.10", cuda: str = "13.2") -> None:
        monkeypatch.setattr(doctor, "read_gpus", lambda _: Gpus(driver, cuda, list(gpus)) if gpus else Gpus(None, None, []))

    have()
    return have


TOO_OLD = "the NVIDIA driver 570.86.15 is too old for CUDA 13.2"


@pytest.mark.parametrize(
    ("driver", "cuda", "device", "status", "text"),
    [
        ("570.86.15", "12.8", "auto", "warning", TOO_OLD),
        ("570.86.15", "12.8", "cuda", "problem", TOO_OLD),
        # with the compatibility libraries of the image
        ("550.163.01", "13.0", "cuda", "ok", "NVIDIA driver 550.163.01 (up to CUDA 13.0), torch is built for CUDA 13.2"),
        ("595.45.04", "13.2", "auto", "ok", "NVIDIA driver 595.45.04 (up to CUDA 13.2), torch is built for CUDA 13.2"),
    ],
)
def test_a_driver_must_fit_torch(have_gpus, driver: str, cuda: str, device: str, status: str, text: str) -> None:
    have_gpus(H200, driver=driver, cuda=cuda)
    finding = doctor.driver(environment(PIPELINE_DEVICE=device))
    assert (finding.status, finding.text) == (status, text)
    assert text != TOO_OLD or finding.remedy == "install driver 580 or newer, or another build (docs/container.md#older-drivers-and-gpus)"


def test_a_gpu_that_is_demanded_and_missing_is_a_problem(have_gpus) -> None:
    finding = doctor.driver(environment(PIPELINE_DEVICE="cuda:1"))
    assert (finding.status, "no NVIDIA GPU" in finding.text) == ("problem", True)
    assert doctor.driver(environment()).status == "ok"


def test_a_variable_that_hides_the_gpu_is_named(have_gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpus(H200)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.driver(environment()) == ("warning", "CUDA_VISIBLE_DEVICES hides the GPU", "unset it")


@pytest.mark.parametrize(
    ("gpus", "device", "status"),
    [
        ([P100], "cpu", "ok"),
        ([T4], "auto", "ok"),  # it is the oldest
        ([P100], "auto", "warning"),  # trains on the CPU
        ([P100], "cuda", "problem"),
        ([P100, H200], "cuda", "warning"),
    ],
)
def test_a_gpu_for_which_torch_has_no_kernels(have_gpus, gpus: list[Gpu], device: str, status: str) -> None:
    have_gpus(*gpus)
    finding = doctor.gpus(environment(PIPELINE_DEVICE=device))
    assert finding.status == status
    assert ("needs compute capability 7.5, which GPU 0 lacks" in finding.text) == (status != "ok")


def test_gpus_are_read_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: "595.45.04",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13020,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=140 * GIB, free=139 * GIB),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
    }
    for function, answer in answers.items():
        monkeypatch.setattr(pynvml, function, answer)
    assert doctor.gpus(environment()) == ("ok", "0: NVIDIA H200, 139.0 GiB of 140.0 GiB free, compute capability 9.0", "")
    monkeypatch.setattr(doctor, "cuda_of_torch", lambda: "13.2")
    assert doctor.driver(environment()).text == "NVIDIA driver 595.45.04 (up to CUDA 13.2), torch is built for CUDA 13.2"


def test_the_cuda_version_of_torch_is_read_without_importing_it() -> None:
    import torch

    assert doctor.cuda_of_torch() == torch.version.cuda


def test_this_environment_is_that_of_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOP)
    finding = doctor.lock(environment())
    assert finding.status == "ok", finding
    assert int(finding.text.split()[1]) > 150


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("numpy==1.0 ; python_full_version >= '3.0' \\\n    --hash=sha256:00\n", "warning", f"numpy {NUMPY} (not 1.0) other versions"),
        (
            f"numpy=={NUMPY}\nnot-there==1.0 \\\n    --hash=sha256:00\nnot-here==1.0 ; sys_platform == 'win32'\n",
            "problem",
            "not-there missing",
        ),
        ("nvidia-imaginary==1.0\n", "warning", "nvidia-imaginary missing"),
    ],
)
def test_packages_are_compared_with_the_lock(folder: Path, text: str, status: str, words: str) -> None:
    assert doctor.lock(environment()).status == "problem", "without the lock"
    (folder / "requirements.lock").write_text(text, encoding="utf-8")
    finding = doctor.lock(environment())
    assert (finding.status, finding.text.partition(": ")[2]) == (status, words)
    assert "make setup" in finding.remedy


def test_free_space_and_memory_decide_the_status(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage: Callable[[int], object] = lambda free: lambda path: SimpleNamespace(free=free if path.name == "models" else 90 * GIB)  # noqa: E731
    for free_mib, status in {10: "problem", 500: "warning", 50_000: "ok"}.items():
        monkeypatch.setattr(shutil, "disk_usage", usage(free_mib * 2**20))
        finding = doctor.disk(environment())
        assert (finding.status, bool(finding.remedy)) == (status, status != "ok")
        assert finding.text.endswith(f" free in {folder.resolve()}/models"), "the file system with the least"
    monkeypatch.setattr(limits, "memory_limit_bytes", lambda: GIB)
    finding = doctor.memory(environment())
    assert (finding.status, finding.text.partition(";")[0]) == ("warning", "1.0 GiB of 1.0 GiB free")
    assert "docker run --memory" in finding.remedy


def owned_as(uid: int) -> Finding:
    os.seteuid(uid)
    try:
        return doctor.ownership(environment())
    finally:
        os.seteuid(0)


@ROOT_ONLY
def test_a_folder_that_this_user_cannot_write_is_a_problem(folder: Path) -> None:
    os.chown(folder, OWNER, OWNER)
    finding = owned_as(OWNER)
    assert (finding.status, finding.text) == ("problem", f"uid {OWNER} cannot write {folder / 'models'}, which belongs to uid 0")
    assert "`docker run --user 0:0`" in finding.remedy
    (folder / "models").chmod(0o1777)
    assert owned_as(OWNER).status == "ok", "as in the image, whose folders every user can write"
    assert f"cannot write {folder}, " in owned_as(STRANGER).text


def test_a_store_answers_or_there_is_a_warning_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")  # to be restored: those of the address are set
    assert doctor.tracking(environment()) == ("ok", f"{folder}/mlflow.db, which the first run will make", "")
    assert not (folder / "mlflow.db").exists()
    opened(environment())
    assert doctor.tracking(environment()) == ("ok", f"sqlite:///{folder}/mlflow.db answers", "")
    (folder / "damaged.db").write_text("no database " * 100, encoding="utf-8")
    proxy = Proxy(0, "erring")
    for address, words in (
        (f"http://user:hunter2@127.0.0.1:{proxy.port}", "500 error responses"),
        ("http://user:hunter2@127.0.0.1:9", "Connection refused"),
        ("sqlite:///damaged.db", "file is not a database"),
    ):
        finding = doctor.examine(environment(MLFLOW_TRACKING_URI=address), ["tracking"])["tracking"]
        assert (finding.status, words in finding.text) == ("warning", True), finding
        assert "hunter2" not in str(finding)
    proxy.close()


@pytest.fixture
def project(parameters: Parameters, tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_problems_and_warnings_are_printed_and_what_is_ok_if_all_is_asked_for(project: Path, monkeypatch, capsys) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("7 ok: a training can run (`python -m pipeline check` examines params.yaml)\n")
    assert main(["doctor", "--all"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[:-1]] == list(CHECKS)
    (project / "requirements.lock").write_text("not-there==1.0\n", encoding="utf-8")
    assert main(["doctor"]) == 1
    row, remedy, last = capsys.readouterr().out.splitlines()
    assert row == f"problem  lock       {MISSING}"
    assert remedy.strip().startswith("→ `rm -f .venv/.locked; make setup`")
    assert last == "doctor: 1 problem, 0 warnings, 6 ok: a training would fail"


def test_check_refuses_what_makes_a_training_fail_and_warns_of_another_version(project: Path, refused: Refused, capsys) -> None:
    lock = project / "requirements.lock"
    lock.write_text("not-there==1.0\n", encoding="utf-8")
    assert refused("check")[0].startswith(f"lock: {MISSING}: `rm -f .venv/.locked; make setup`")
    lock.write_text("numpy==1.0\n", encoding="utf-8")
    assert main(["check"]) == 0
    assert capsys.readouterr().err.startswith("warning: lock: of 1 packages of requirements.lock: numpy ")


def test_a_check_that_raises_is_a_warning_without_secrets_and_the_others_are_told(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")

    def fail(_: Environment) -> Finding:
        raise OSError("lost, said hunter2")

    monkeypatch.setattr(doctor, "CHECKS", {"wrong": fail, "fine": lambda _: Finding("ok", "well")})
    found = doctor.examine(environment(), ["wrong", "fine"])
    assert found == {"wrong": ("warning", "could not be examined (OSError: lost, said ***)", ""), "fine": ("ok", "well", "")}


def test_without_the_packages_every_verb_tells_the_remedy(project: Path) -> None:
    for verb in ("doctor", "check"):
        code = f"import sys; from pipeline.__main__ import main; sys.exit(main(['{verb}']))"
        done = subprocess.run([sys.executable, "-S", "-c", code], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: the package pydantic is not installed for {sys.executable}: `make setup`")
