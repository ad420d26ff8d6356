import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pynvml
import pytest

from pipeline.core.environment import Environment
from pipeline.runs import provenance
from tests.imports import TOP
from tests.repository import GIT


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*GIT, "commit", "-q", "--allow-empty", "-m", "first"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_clean_commit_is_named(checkout: Path) -> None:
    (checkout / "dvc.lock").write_text("what a run writes itself is no difference")
    found = provenance.gather(Environment())
    assert len(found["git.commit"]) == 40
    assert (found["git.dirty"], found["git.difference"]) == ("false", "none")


@pytest.mark.parametrize(("count", "last"), [(60, "and 10 more"), (50, "?? 9.py")])
def test_a_difference_is_listed(checkout: Path, count: int, last: str) -> None:
    for number in range(count):
        (checkout / f"{number}.py").write_text("")
    found = provenance.gather(Environment())
    assert found["git.dirty"] == "true"
    assert "?? 0.py" in found["git.difference"]
    assert found["git.difference"].endswith(f"\n{last}")


def test_changes_of_code_are_compared_without_those_of_parameters(checkout: Path) -> None:
    for name in ("params.yaml", "code.py"):
        (checkout / name).write_text("1")
    subprocess.run(["git", "add", "--all"], cwd=checkout, check=True)
    (checkout / "code.py").write_text("2")
    one = provenance.changed_code(provenance.difference())
    (checkout / "params.yaml").write_text("2")
    assert provenance.changed_code(provenance.difference()) == one
    (checkout / "code.py").write_text("3")
    assert provenance.changed_code(provenance.difference()) != one


def what_git_says() -> set[str]:
    found = provenance.gather(Environment())
    assert all(found.values())
    return {found[name] for name in ("git.commit", "git.dirty", "git.difference")}


def test_a_folder_without_a_repository_and_a_repository_without_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert what_git_says() == {"unknown: this folder is not in a git repository"}
    subprocess.run(["git", "init", "-q"], check=True)
    found = provenance.gather(Environment())
    assert found["git.commit"] == "unknown: this repository has no commit yet"
    assert found["lock_sha256"] == "unknown: requirements.lock is missing"
    tags = provenance.tags(found)
    assert "mlflow.user" in tags
    assert not {"mlflow.source.git.commit", "pipeline.dvc.experiment"} & tags.keys(), "unknown facts are no tags"


def test_a_git_that_gives_no_answer_is_unknown_with_its_reason(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # it may declare every folder safe
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert what_git_says() == {"unknown: this checkout belongs to another user (git: dubious ownership)"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert what_git_says() == {"unknown: git is not installed"}
    (tmp_path / "git").write_bytes(b"\0 no program")
    (tmp_path / "git").chmod(0o755)
    assert what_git_says() == {"unknown: git cannot be run (Exec format error)"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without a name")
def test_a_uid_without_a_name() -> None:
    script = "import os; from pipeline.runs import provenance; os.setuid(54321); print(provenance.known(provenance.user))"
    nameless = {name: value for name, value in os.environ.items() if name not in ("LOGNAME", "USER", "LNAME", "USERNAME")}
    output = subprocess.run([sys.executable, "-c", script], cwd=TOP, env=nameless, check=True, capture_output=True, text=True).stdout
    assert output == "unknown: uid 54321 has no name\n"


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver here")
def test_a_machine_without_a_gpu() -> None:
    found = provenance.gather(Environment())
    assert found["driver"] == found["gpu"] == "unknown: no NVIDIA driver is installed"


def test_each_library_has_its_own_version() -> None:
    found = provenance.gather(Environment())
    assert {name: found[f"version.{name}"] for name in provenance.LIBRARIES} == {
        name: metadata.version(name) for name in provenance.LIBRARIES
    }


def test_gpus_of_a_driver_that_does_not_answer_are_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.10  Sat Aug  5 2026\n")
    monkeypatch.setattr(provenance, "SYSTEM", tmp_path)
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)))
    found = provenance.gather(Environment())
    assert (found["driver"], found["gpu"]) == ("590.10", "unknown: NVML does not answer")


def test_any_other_failure_is_unknown_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise OSError("the first line\nand more")

    assert provenance.known(fail) == "unknown: OSError: the first line"
    assert provenance.known(str) == "unknown: the answer was empty"
    assert provenance.known(lambda: metadata.version("no-such-thing")) == "unknown: no-such-thing is not installed"
    monkeypatch.delenv("PIPELINE_IMAGE_DIGEST", raising=False)
    assert provenance.gather(Environment())["image.digest"] == "unknown: PIPELINE_IMAGE_DIGEST is not set"
    monkeypatch.setenv("PIPELINE_IMAGE_DIGEST", "sha256:1")
    assert provenance.gather(Environment())["image.digest"] == "sha256:1"
