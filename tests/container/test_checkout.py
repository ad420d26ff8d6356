"""The folder of a container's job, the mounted checkout or a copy that keeps the files that its user changed; its environment."""

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.container import checkout
from pipeline.container.checkout import Checkout
from pipeline.core.refusal import Refusal
from pipeline.tools import checkout_lock
from tests.container import docker
from tests.imports import TOP

LOCK = "torch==1\n"


def make_checkout(folder: Path, *, lock: str = LOCK) -> Path:
    for part in (*checkout.PARTS, "pipeline/__main__.py", "pipeline/models/mlp.py", "presets/digits.yaml"):
        path = folder / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part, encoding="utf-8")
    (folder / "requirements.lock").write_text(lock, encoding="utf-8")
    return folder


def find(start: Path, image: Path, homes: list[Path], mounted: Iterable[Path] = ()) -> Checkout:
    """Return the checkout of a job in an image that was built from the lock of `make_checkout`."""
    return checkout.find(start, image, homes, lock=hashlib.sha256(LOCK.encode()).hexdigest(), mounted=mounted)


def copied(source: Path, home: Path) -> tuple[Path, list[str]]:
    """Return where the job runs, and the files that a user changed there."""
    found = find(source, source, [home])
    assert found.copy_of
    return found.top, checkout.copy(found.copy_of, found.top)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "image")


@pytest.fixture
def nothing_else_is_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """These tests may run as root, who can write in any folder."""
    monkeypatch.setattr("os.access", lambda path, _: tmp_path / "home" in (path, *Path(path).parents))


def test_a_checkout_that_can_be_written_is_used_in_place(tmp_path: Path, image: Path) -> None:
    mounted = make_checkout(tmp_path / "mounted")
    assert find(mounted, image, [tmp_path / "home"]) == Checkout(mounted)
    assert not (tmp_path / "home").exists()


def test_without_a_checkout_the_images_code_is_copied(tmp_path: Path, image: Path) -> None:
    (image / "pipeline/__pycache__").mkdir()
    (image / "pipeline/__pycache__/x.pyc").touch()
    for start in (image, tmp_path):
        found = find(start, image, [tmp_path / "home"])
        assert found == Checkout(tmp_path / "home", copy_of=image)
        checkout.copy(image, found.top)
    there = {path.relative_to(found.top).as_posix() for path in found.top.rglob("*") if path.is_file()}
    more = {".dvc/config.local", ".pipeline/copied.json", ".pipeline/copied.lock", checkout_lock.LOCK}
    assert there == {*checkout.PARTS, "pipeline/__main__.py", "pipeline/models/mlp.py", "presets/digits.yaml", *more}
    assert "no_scm = true" in (found.top / ".dvc/config.local").read_text()


@pytest.mark.usefixtures("nothing_else_is_writable")
def test_a_checkout_that_cannot_be_written_is_copied_with_its_parameters(tmp_path: Path, image: Path) -> None:
    mounted = make_checkout(tmp_path / "mounted")
    (mounted / "params.yaml").write_text("mine", encoding="utf-8")
    found = find(mounted, image, [tmp_path / "home"])
    assert found == Checkout(tmp_path / "home", copy_of=mounted)
    checkout.copy(mounted, found.top)
    assert (found.top / "params.yaml").read_text() == "mine"


def test_another_image_replaces_its_files_but_none_that_was_changed_by_hand(tmp_path: Path, image: Path) -> None:
    home, _ = copied(image, tmp_path / "home")
    (home / "params.yaml").write_text("mine", encoding="utf-8")
    (home / "models").mkdir()
    (home / "models/model.safetensors").touch()
    for part in ("params.yaml", "pipeline/models/mlp.py"):
        (image / part).write_text("newer", encoding="utf-8")
    for _ in range(2):
        assert copied(image, home) == (home, ["params.yaml"])
    assert (home / "params.yaml").read_text() == "mine"
    assert (home / "pipeline/models/mlp.py").read_text() == "newer"
    assert (home / "models/model.safetensors").exists()


def test_a_file_that_another_image_no_longer_has_is_deleted_unless_it_was_changed(tmp_path: Path, image: Path) -> None:
    for name in ("old.py", "mine.py"):
        (image / "pipeline/models" / name).touch()
    home, _ = copied(image, tmp_path / "home")
    (home / "pipeline/models/mine.py").write_text("mine", encoding="utf-8")
    (home / "pipeline/models/own.py").touch()
    for name in ("old.py", "mine.py"):
        (image / "pipeline/models" / name).unlink()
    copied(image, home)
    assert {path.name for path in (home / "pipeline/models").iterdir()} == {"mlp.py", "mine.py", "own.py"}


def test_a_copy_that_was_killed_is_finished_by_another_image(tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = copied(image, tmp_path / "home")
    for text in ("second", "third"):
        for part in ("params.yaml", "pipeline/models/mlp.py"):
            (image / part).write_text(text, encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", interrupt_the_second_call(Path.write_bytes))
            with pytest.raises(KeyboardInterrupt):
                copied(image, home)
    assert copied(image, home) == (home, [])
    assert (home / "params.yaml").read_text() == (home / "pipeline/models/mlp.py").read_text() == "third"


def interrupt_the_second_call(write: Callable[[Path, bytes], int]) -> Callable[[Path, bytes], int]:
    calls = []

    def write_once(path: Path, content: bytes) -> int:
        calls.append(path)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return write(path, content)

    return write_once


def test_a_git_checkout_is_not_overwritten_by_a_copy(tmp_path: Path, image: Path) -> None:
    (tmp_path / "home/.git").mkdir(parents=True)
    with pytest.raises(Refusal, match="home has a Git repository, so no code is copied there: add `-w"):
        find(image, image, [tmp_path / "home"])


@pytest.mark.usefixtures("nothing_else_is_writable")
def test_a_volume_that_cannot_be_written_is_refused_and_not_skipped(tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path).name == "volume")
    (tmp_path / "volume").mkdir()
    owner = f"{os.getuid()}:{os.getgid()}"
    begin = f"volume is mounted and belongs to {owner}; uid .* cannot write there: "
    with pytest.raises(Refusal, match=f"{begin}add `--user {owner}`"):
        find(image, image, [tmp_path / "volume", tmp_path / "home"])
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(Refusal, match=r"volume is mounted read-only, and a job writes there: mount it without `:ro`$"):
        find(image, image, [tmp_path / "volume", tmp_path / "home"])


def test_a_checkout_with_another_lock_is_refused(tmp_path: Path, image: Path) -> None:
    mounted = make_checkout(tmp_path / "mounted", lock="torch==2\n")
    with pytest.raises(Refusal, match=r"requirements.lock differs from the lock file that this image was built from.*make image"):
        find(mounted, image, [tmp_path / "home"])


def test_a_mounted_checkout_that_the_job_would_ignore_is_refused(tmp_path: Path, image: Path) -> None:
    mounted, home = make_checkout(tmp_path / "mounted"), make_checkout(tmp_path / "home")
    with pytest.raises(Refusal, match=rf"{mounted} is a checkout, but this job would run the image's own code: add `-w {mounted}`"):
        find(image, image, [home], mounted=[Path("/"), tmp_path / "none", mounted])
    assert find(mounted, image, [home], mounted=[mounted]) == Checkout(mounted)
    assert find(image, image, [home], mounted=[image, home]) == Checkout(home, copy_of=image)


def test_code_that_another_container_runs_is_not_replaced(tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = copied(image, tmp_path / "home")
    with checkout_lock.held(home), monkeypatch.context() as elsewhere:
        (tmp_path / "boot_id").write_text("elsewhere", encoding="ascii")
        elsewhere.setattr(checkout_lock, "BOOT", tmp_path / "boot_id")
        assert copied(image, home) == (home, []), "there is nothing to replace"
        (image / "params.yaml").write_text("newer", encoding="utf-8")
        with pytest.raises(Refusal, match="is using this checkout"):
            copied(image, home)
        assert (home / "params.yaml").read_text() == "params.yaml"


@pytest.mark.usefixtures("nothing_else_is_writable")
def test_the_first_writable_home_is_taken_and_without_one_the_error_names_the_flags(tmp_path: Path, image: Path) -> None:
    homes = [tmp_path / "elsewhere", Path("/proc/none"), tmp_path / "home"]
    assert find(image, image, homes).top == tmp_path / "home"
    with pytest.raises(Refusal, match=r"--tmpfs /tmp.*-v NAME:"):
        find(image, image, homes[:2])


def test_the_image_holds_what_is_copied() -> None:
    allowed = {line.removeprefix("!") for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {*checkout.PARTS, "pipeline", "pipeline/**/*.py", "presets/*.yaml", "presets/search/*.yaml", "locks/hub.lock"}
    assert all((TOP / part).exists() for part in checkout.PARTS)


def test_home_and_caches_lie_in_the_checkout(tmp_path: Path) -> None:
    found = checkout.variables(tmp_path, {"HOME": "/", "PATH": "/bin", "PYTHONPATH": "/opt/pipeline", "TZ": "UTC"}, commit="")
    for name in ("HOME", "DVC_SITE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(found[name]).is_relative_to(tmp_path / ".pipeline"), name
    assert Path(found["HOME"]).is_dir()
    assert found["TZ"] == "UTC"
    assert "PYTHONPATH" not in found


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


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n", encoding="utf-8")
    found = checkout.variables(tmp_path, {"PGPASSWORD_FILE": str(tmp_path / "secret")}, commit="abc")
    assert found["PGPASSWORD"] == "open sesame"
    assert found["PIPELINE_COMMIT"] == "abc"


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"MLFLOW_TRACKING_TOKEN_FILE: .*none cannot be .*mount the secret at this path"):
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
