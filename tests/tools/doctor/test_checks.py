"""The checks of `doctor`: drivers and GPUs, memory and disks, packages, the checkout, and servers that refuse, hang or are gone."""

import errno
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pynvml
import pytest
import requests

from pipeline.core import limits
from pipeline.runs.utilization import Gpu
from pipeline.tools.doctor import checks
from pipeline.tools.doctor.checks import Context, Finding
from tests.imports import TOP

MakeContext = Callable[..., Context]
GIB = 2**30
NUMPY = metadata.version("numpy")
OWNER, STRANGER = 12345, 54321
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
NOT_ALLOWED = "Invalid Host header - possible DNS rebinding attack detected"
H200 = Gpu("NVIDIA H200", 140 * GIB, 139 * GIB, (9, 0))
T4 = Gpu("Tesla T4", 15 * GIB, 15 * GIB, (7, 5))
P100 = Gpu("Tesla P100", 16 * GIB, 16 * GIB, (6, 0))


@pytest.fixture(autouse=True)
def built_for_cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "cuda_of_torch", lambda: "13.2")


def job_of_nvml(make_context: MakeContext, **variables: str) -> Context:
    context = make_context(**variables)
    del vars(context)["gpus"]
    return context


TOO_OLD = "the NVIDIA driver 570.86.15 is too old for CUDA 13.2"


@pytest.mark.parametrize(
    ("driver", "cuda", "device", "status", "text"),
    [
        ("570.86.15", 12080, "auto", "warning", TOO_OLD),
        ("570.86.15", 12080, "cuda", "problem", TOO_OLD),
        ("570.86.15", 12080, "cpu", "ok", TOO_OLD),
        # with the compatibility libraries of the image
        ("550.163.01", 13000, "cuda", "ok", "NVIDIA driver 550.163.01 (up to CUDA 13.0), torch is built for CUDA 13.2"),
        ("595.45.04", 13020, "auto", "ok", "NVIDIA driver 595.45.04 (up to CUDA 13.2), torch is built for CUDA 13.2"),
    ],
)
def test_a_driver_must_fit_torch(make_context, fake_nvml: Callable[..., None], driver, cuda, device, status, text) -> None:
    fake_nvml(driver=driver, cuda=cuda)
    context = job_of_nvml(make_context, PIPELINE_DEVICE=device)
    finding = checks.driver(context)
    assert (finding.status, finding.text) == (status, text)
    assert checks.gpus(context).text == "0: NVIDIA H200, 139.0 GiB of 140.0 GiB free, compute capability 9.0"
    assert text != TOO_OLD or finding.remedy == "install driver 580 or newer, or another build (docs/container.md#older-drivers-and-gpus)"


def test_a_gpu_that_is_demanded_and_missing_is_a_problem(make_context: MakeContext) -> None:
    finding = checks.driver(make_context(PIPELINE_DEVICE="cuda:1"))
    assert (finding.status, "no NVIDIA GPU" in finding.text) == ("problem", True)
    assert checks.driver(make_context()).status == "ok"


def test_a_variable_that_hides_the_gpu_is_named(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context(H200)
    (context.system / "dev").mkdir(parents=True)
    (context.system / "dev/nvidiactl").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = checks.driver(context)
    assert (finding.status, finding.text, finding.remedy) == ("warning", "CUDA_VISIBLE_DEVICES hides the GPU", "unset it")


def test_a_gpu_for_which_torch_has_no_kernels(make_context: MakeContext) -> None:
    assert checks.gpus(make_context(P100, PIPELINE_DEVICE="cpu")).status == "ok"
    assert checks.gpus(make_context(T4)).status == "ok", "it is the oldest"
    for device, status in {"auto": "warning", "cuda": "problem"}.items():
        finding = checks.gpus(make_context(P100, PIPELINE_DEVICE=device))
        assert finding.status == status, "`auto` trains on the CPU"
        assert "needs compute capability 7.5, which GPU 0 lacks" in finding.text
        assert finding.remedy.startswith("`export PIPELINE_DEVICE=cpu`")
    beside = checks.gpus(make_context(P100, H200))
    assert (beside.status, "CUDA_VISIBLE_DEVICES=1`" in beside.remedy) == ("warning", True)


def test_the_cuda_version_of_torch_is_read_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.undo()
    assert checks.cuda_of_torch() == torch.version.cuda


def test_a_gpu_without_memory_of_its_own_is_told(
    make_context: MakeContext, fake_nvml: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a Jetson or a DGX Spark."""

    def unsupported(_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    fake_nvml(driver="595.45.04", name="NVIDIA GB10")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", unsupported)
    finding = checks.gpus(job_of_nvml(make_context))
    assert (finding.status, finding.text) == ("ok", "0: NVIDIA GB10, memory of the CPU, compute capability 9.0")


def test_this_environment_is_that_of_the_lock(make_context: MakeContext) -> None:
    finding = checks.lock(make_context(top=TOP))
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
def test_packages_are_compared_with_the_lock(make_context: MakeContext, tmp_path: Path, text: str, status: str, words: str) -> None:
    assert checks.lock(make_context()).status == "problem", "without the lock"
    (tmp_path / "requirements.lock").write_text(text, encoding="utf-8")
    finding = checks.lock(make_context())
    assert (finding.status, finding.text.partition(": ")[2]) == (status, words)
    assert "make setup" in finding.remedy


def test_free_space_decides_the_status(make_context: MakeContext) -> None:
    for free_mib, status in {10: "problem", 500: "warning", 50_000: "ok"}.items():
        finding = checks.disk(make_context(), lambda _, free=free_mib: SimpleNamespace(f_bavail=free * 256, f_frsize=4096))
        assert (finding.status, bool(finding.remedy)) == (status, status != "ok")
        assert status == "ok" or f"{free_mib} MiB free in {make_context().top}" in finding.text


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "groups"
    folder.mkdir()
    monkeypatch.setattr(limits, "MEMBERSHIP", folder / "membership")
    monkeypatch.setattr(limits, "MOUNT", folder)
    (folder / "membership").write_text("0::/\n", encoding="utf-8")
    return folder


def test_a_memory_limit_and_processes_that_it_killed(make_context: MakeContext, groups: Path) -> None:
    (groups / "memory.max").write_text(f"{GIB}\n", encoding="utf-8")
    finding = checks.memory(make_context())
    assert (finding.status, finding.text.partition(";")[0]) == ("warning", "1.0 GiB of 1.0 GiB free (limit of the cgroup)")
    assert "docker run --memory" in finding.remedy
    (groups / "memory.max").write_text("max\n", encoding="utf-8")
    (groups / "memory.events").write_text("oom 1\noom_kill 2\n", encoding="utf-8")
    finding = checks.memory(make_context())
    assert (finding.status, "2 processes of this cgroup were killed" in finding.text) == ("warning", True)


def test_a_file_system_without_locks_is_a_problem(make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.file_locks(make_context()).status == "ok"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    finding = checks.file_locks(make_context())
    assert (finding.status, "does not support file locks" in finding.text) == ("problem", True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a checkout that every user can reach, unlike pytest's own temporary folders."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    (path / "models").mkdir()
    yield path
    shutil.rmtree(path)


def give(path: Path, uid: int) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid)


@ROOT_ONLY
def test_root_in_a_checkout_of_another_user_is_warned(make_context: MakeContext, folder: Path) -> None:
    give(folder, OWNER)
    finding = checks.ownership(make_context(top=folder))
    assert (finding.status, f"root runs in a checkout of uid {OWNER} ({folder}, " in finding.text) == ("warning", True)
    assert f"`sudo chown -R 0:{os.getegid()} {folder}`" in finding.remedy
    assert f"--user {OWNER}:{OWNER}" in finding.remedy


def owned_as(uid: int, context: Context) -> Finding:
    os.seteuid(uid)
    try:
        return checks.ownership(context)
    finally:
        os.seteuid(0)


@ROOT_ONLY
def test_a_user_who_cannot_write_a_checkout_of_another_has_a_problem(make_context: MakeContext, folder: Path) -> None:
    give(folder, OWNER)
    finding = owned_as(STRANGER, make_context(top=folder))
    assert (finding.status, f"cannot write {folder}, " in finding.text) == ("problem", True)
    assert f"`sudo chown -R {STRANGER}:" in finding.remedy


@ROOT_ONLY
def test_one_folder_that_root_has_made_is_named(make_context: MakeContext, folder: Path) -> None:
    os.chown(folder, OWNER, OWNER)
    context = make_context(top=folder)
    finding = owned_as(OWNER, context)
    assert (finding.status, finding.text) == ("problem", f"uid {OWNER} cannot write {folder / 'models'}, which belongs to uid 0")
    (folder / "models").chmod(0o1777)
    assert owned_as(OWNER, context).status == "ok", "as in the image, whose folders every user can write"


@ROOT_ONLY
def test_a_read_only_mount_is_a_problem(make_context: MakeContext, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(folder / "models", OWNER, OWNER)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    finding = checks.ownership(make_context(top=folder))
    assert (finding.status, "without `:ro`" in finding.remedy) == ("problem", True)


def test_a_conflict_in_dvc_lock_is_a_problem_and_the_remedy_ends_it(make_context: MakeContext, folder: Path) -> None:
    def git(*arguments: str, check: bool = True) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=check)

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "start")
    for branch in ("one", "other"):
        git("checkout", "-q", "-b", branch, "main" if branch == "other" else "HEAD")
        (folder / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  train:\n    cmd: {branch}\n", encoding="utf-8")
        git("add", "dvc.lock")
        git("commit", "-q", "-m", branch)
    assert checks.dvc_files(make_context(top=folder)).status == "ok"
    git("merge", "-q", "one", check=False)
    finding = checks.dvc_files(make_context(top=folder))
    assert (finding.status, finding.text) == ("problem", "dvc.lock:4: contains a conflict of Git, so DVC does not run")
    subprocess.run(finding.remedy.split("`")[1].split(), cwd=folder, check=True)
    assert checks.dvc_files(make_context(top=folder)).status == "ok"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MagicMock]:
    """Return a function that lets the next request get an answer, or raise an error, and returns what is called for it."""

    def answer(status: int = 200, text: str = "{}", error: Exception | None = None) -> MagicMock:
        get = MagicMock(side_effect=error, return_value=SimpleNamespace(status_code=status, text=text))
        monkeypatch.setattr("requests.get", get)
        return get

    return answer


def examined(make_context: MakeContext, address: str = "http://user:hunter2@127.0.0.1:5000") -> Finding:
    finding = checks.tracking(make_context(MLFLOW_TRACKING_URI=address))
    assert "hunter2" not in str(finding)
    return finding


def test_a_server_is_asked_with_the_user_and_password_of_the_address(make_context: MakeContext, asked: Callable[..., MagicMock]) -> None:
    get = asked()
    finding = examined(make_context)
    assert (finding.status, finding.text) == ("ok", "http://127.0.0.1:5000 answers")
    assert get.call_args.args == ("http://127.0.0.1:5000/api/2.0/mlflow/experiments/search?max_results=1",)
    assert get.call_args.kwargs["auth"] == ("user", "hunter2")


@pytest.mark.parametrize(
    ("status", "text", "words", "remedy"),
    [
        (403, NOT_ALLOWED, "answers 403: Invalid Host header", "mlflow server --allowed-hosts 127.0.0.1"),
        (403, "Permission denied", "answers 403: Permission denied", "MLFLOW_TRACKING_PASSWORD"),
        (401, "You are not authenticated", "answers 401: You are not", "MLFLOW_TRACKING_TOKEN"),
        (404, "<html>", "answers 404: <html>", "correct MLFLOW_TRACKING_URI"),
        (503, "Out of order", "answers 503: Out of order", "log of the server or proxy"),
    ],
)
def test_a_server_that_refuses_is_told_with_the_reason(make_context, asked, status: int, text: str, words: str, remedy: str) -> None:
    asked(status, text)
    finding = examined(make_context)
    assert (finding.status, words in finding.text, remedy in finding.remedy) == ("warning", True, True), finding


def test_a_server_that_hangs_or_is_not_there(make_context: MakeContext, asked: Callable[..., MagicMock]) -> None:
    refused = examined(make_context, "http://user:hunter2@127.0.0.1:9")
    get = asked(error=requests.Timeout("Read timed out"))
    hanging = examined(make_context)
    assert get.call_args.kwargs["timeout"] == checks.SERVER_S < checks.LIMIT_S
    for finding, words in ((refused, "127.0.0.1:9 cannot be used (Connection refused)"), (hanging, "timed out")):
        assert (finding.status, words in finding.text, "`unset MLFLOW_TRACKING_URI`" in finding.remedy) == ("warning", True, True), finding


@pytest.mark.parametrize(("name", "value"), [("MLFLOW_TRACKING_AUTH", "a plugin"), ("MLFLOW_WORKSPACE", "team")])
def test_nothing_is_claimed_where_only_the_client_of_mlflow_can_ask(make_context, asked, monkeypatch, name: str, value: str) -> None:
    get = asked(401)
    monkeypatch.setenv(name, value)
    assert examined(make_context).text.endswith(", which was not examined")
    assert not get.called


def test_no_tracking_and_databases(make_context: MakeContext, tmp_path: Path) -> None:
    assert checks.tracking(make_context(PIPELINE_TRACKING="false")).text == "off (PIPELINE_TRACKING)"
    folder = tmp_path / "hash# 100% %41?"
    folder.mkdir()
    database = folder / "mlflow.db"
    assert checks.tracking(make_context(top=folder)).text == f"{database}, which the first run will make"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE experiments (experiment_id INTEGER)")
    assert checks.tracking(make_context(top=folder)).status == "ok"
    database.write_text("no database " * 100, encoding="utf-8")
    assert "file is not a database" in checks.tracking(make_context(top=folder)).text
    for address, words in (
        ("postgresql://user:hunter2@127.0.0.1:9/runs", "refused"),
        ("postgresql+pg8000://user:hunter2@127.0.0.1:9/runs", "pg8000"),
    ):
        finding = examined(make_context, address)
        assert (finding.status, words in finding.text) == ("warning", True), finding
