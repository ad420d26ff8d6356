"""The environment of a job: home, user name, temporary folder, secrets from files, and no path of the image."""

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.container import checkout
from pipeline.core.refusal import Refusal
from tests.container import docker


def test_home_and_caches_lie_in_the_checkout(tmp_path: Path) -> None:
    found = checkout.variables(tmp_path, {"HOME": "/", "PATH": "/bin", "PYTHONPATH": "/opt/pipeline", "TZ": "UTC"}, commit="")
    for name in ("HOME", "DVC_SITE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(found[name]).is_relative_to(tmp_path / ".pipeline"), name
    assert Path(found["HOME"]).is_dir()
    assert found["TZ"] == "UTC"
    assert "PYTHONPATH" not in found


def test_variables_of_the_user_take_precedence(tmp_path: Path) -> None:
    assert checkout.variables(tmp_path, {"DVC_SITE_CACHE_DIR": "/cache"}, commit="")["DVC_SITE_CACHE_DIR"] == "/cache"


def test_a_uid_without_a_name_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    found = checkout.variables(tmp_path, {}, commit="")
    assert found["USER"] == found["LOGNAME"] == "uid-54321"
    assert checkout.variables(tmp_path, {"USER": "ada"}, commit="")["LOGNAME"] == "ada"


def test_git_trusts_this_checkout_and_keeps_other_settings(tmp_path: Path) -> None:
    given = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "c"}
    found = checkout.variables(tmp_path, given, commit="")
    assert {name: value for name, value in found.items() if name.startswith("GIT_")} == {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "a.b",
        "GIT_CONFIG_VALUE_0": "c",
        "GIT_CONFIG_KEY_1": "safe.directory",
        "GIT_CONFIG_VALUE_1": str(tmp_path),
    }


def test_a_count_of_git_settings_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="GIT_CONFIG_COUNT: is 'abc': write how many variables GIT_CONFIG_KEY_0"):
        checkout.variables(tmp_path, {"GIT_CONFIG_COUNT": "abc"}, commit="")


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n", encoding="utf-8")
    found = checkout.variables(tmp_path, {"PGPASSWORD_FILE": str(tmp_path / "secret")}, commit="abc")
    assert found["PGPASSWORD"] == "open sesame"
    assert found["PIPELINE_COMMIT"] == "abc"


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        Refusal, match=r"MLFLOW_TRACKING_TOKEN_FILE: .*none cannot be read \(FileNotFoundError\): mount the secret at this path"
    ):
        checkout.variables(tmp_path, {"MLFLOW_TRACKING_TOKEN_FILE": str(tmp_path / "none")}, commit="")


@pytest.mark.parametrize("usual", ["/proc/none", ""])
def test_without_a_writable_temporary_folder_there_is_one_in_the_checkout(tmp_path: Path, monkeypatch, usual: str) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert checkout.variables(tmp_path, {"TMPDIR": usual}, commit="")["TMPDIR"] == str(tmp_path / ".pipeline/tmp")
    assert (tmp_path / ".pipeline/tmp").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a checkout of another user")
def test_git_works_in_the_jobs_checkout_of_another_owner_and_in_no_other(tmp_path: Path) -> None:
    ours, other = (docker.clone(tmp_path / name) for name in ("ours", "other"))
    for folder in (ours, other):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 54321, 54321, follow_symlinks=False)
    found = checkout.variables(ours, dict(os.environ), commit="")
    codes = [
        subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, env=found, check=False, capture_output=True).returncode
        for folder in (ours, other)
    ]
    assert codes == [0, 128]
