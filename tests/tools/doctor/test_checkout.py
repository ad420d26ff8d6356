"""Checkouts that belong to others or cannot be written, and folders of which Git tells no commit."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.runs import provenance
from pipeline.tools.doctor import checkout
from pipeline.tools.doctor.finding import Context

MakeContext = Callable[..., Context]
OWNER, STRANGER = 12345, 54321
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


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


def commit(path: Path) -> None:
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "start"],
    ):
        subprocess.run(["git", "-C", str(path), *arguments], check=True)


@ROOT_ONLY
def test_root_in_a_checkout_of_another_user_is_warned(make_context: MakeContext, folder: Path) -> None:
    give(folder, OWNER)
    finding = checkout.ownership(make_context(top=folder))
    assert (finding.status, f"root runs in a checkout of uid {OWNER} ({folder}, " in finding.text) == ("warning", True)
    assert f"`sudo chown -R 0:{os.getegid()} {folder}`" in finding.remedy
    assert f"--user {OWNER}:{OWNER}" in finding.remedy


@ROOT_ONLY
def test_a_user_who_cannot_write_a_checkout_of_another_has_a_problem(make_context: MakeContext, folder: Path) -> None:
    give(folder, OWNER)
    context = make_context(top=folder)
    os.seteuid(STRANGER)
    try:
        finding = checkout.ownership(context)
    finally:
        os.seteuid(0)
    assert (finding.status, f"cannot write {folder}, " in finding.text) == ("problem", True)
    assert f"`sudo chown -R {STRANGER}:" in finding.remedy


@ROOT_ONLY
def test_one_folder_that_root_has_made_is_named(make_context: MakeContext, folder: Path) -> None:
    os.chown(folder, OWNER, OWNER)
    context = make_context(top=folder)
    os.seteuid(OWNER)
    try:
        finding = checkout.ownership(context)
    finally:
        os.seteuid(0)
    assert (finding.status, finding.text) == ("problem", f"uid {OWNER} cannot write {folder / 'models'}, which belongs to uid 0")
    (folder / "models").chmod(0o1777)
    os.seteuid(OWNER)
    try:
        assert checkout.ownership(context).status == "ok", "as in the image, whose folders every user can write"
    finally:
        os.seteuid(0)


@ROOT_ONLY
def test_a_read_only_mount_is_a_problem(make_context: MakeContext, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    finding = checkout.ownership(make_context(top=folder))
    assert (finding.status, "without `:ro`" in finding.remedy) == ("problem", True)


@ROOT_ONLY
def test_a_repository_that_git_calls_unsafe(make_context: MakeContext, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder)
    assert checkout.git(make_context(top=folder)).text.startswith("commit ")
    give(folder, OWNER)
    finding = checkout.git(make_context(top=folder))
    assert finding.status == "warning"
    assert finding.remedy == f"`git config --global --add safe.directory {folder}`"
    monkeypatch.setenv("HOME", str(folder / "models"))
    subprocess.run(finding.remedy.strip("`").split(), check=True)
    assert checkout.git(make_context(top=folder)).status == "ok", "the remedy mends it"


def test_a_folder_without_a_repository_is_a_problem_unless_dvc_works_without(make_context: MakeContext, folder: Path) -> None:
    finding = checkout.git(make_context(top=folder))
    assert (finding.status, "`git init;" in finding.remedy) == ("problem", True)
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config.local").write_text("[core]\n    no_scm = true\n", encoding="utf-8")
    assert checkout.git(make_context(top=folder)).status == "ok"


def test_a_repository_without_a_commit_and_a_machine_without_git(make_context: MakeContext, folder: Path, monkeypatch) -> None:
    subprocess.run(["git", "-C", str(folder), "init", "-q"], check=True)
    finding = checkout.git(make_context(top=folder))
    assert (finding.status, finding.remedy) == ("warning", "`git add --all; git commit`")
    monkeypatch.setenv("PATH", "")
    finding = checkout.git(make_context(top=folder))
    assert (finding.status, finding.remedy) == ("warning", "install git"), "DVC reads a repository without it"
    shutil.rmtree(folder / ".git")
    finding = checkout.git(make_context(top=folder))
    assert (finding.status, finding.remedy.startswith("install git, and `git init;")) == ("problem", True)


def test_an_empty_git_folder_is_a_problem_and_a_git_that_is_slow_is_not(make_context: MakeContext, folder: Path, monkeypatch) -> None:
    (folder / ".git").mkdir()
    finding = checkout.git(make_context(top=folder))
    assert (finding.status, "DVC does not run without Git" in finding.text) == ("problem", True)
    monkeypatch.setattr(provenance, "GIT_TIMEOUT_S", 0)
    finding = checkout.git(make_context(top=folder))
    assert (finding.status, "commit`" in finding.remedy) == ("warning", False)


def test_a_conflict_in_dvc_lock_is_a_problem_and_the_remedy_ends_it(make_context: MakeContext, folder: Path) -> None:
    def git(*arguments: str, check: bool = True) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=check)

    commit(folder)
    for branch in ("one", "other"):
        git("checkout", "-q", "-b", branch, "main" if branch == "other" else "HEAD")
        (folder / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  train:\n    cmd: {branch}\n", encoding="utf-8")
        git("add", "dvc.lock")
        git("commit", "-q", "-m", branch)
    assert checkout.dvc_files(make_context(top=folder)).status == "ok"
    git("merge", "-q", "one", check=False)
    finding = checkout.dvc_files(make_context(top=folder))
    assert (finding.status, finding.text) == ("problem", "dvc.lock:4: contains a conflict of Git, so DVC does not run")
    subprocess.run(finding.remedy.split("`")[1].split(), cwd=folder, check=True)
    assert checkout.dvc_files(make_context(top=folder)).status == "ok"


def test_the_settings_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    from dvc.config import Config

    (tmp_path / ".dvc").mkdir()
    with Config(str(tmp_path / ".dvc")).edit("repo") as written:
        written["cache"] = {"dir": "/elsewhere"}
    (tmp_path / ".dvc/config.local").write_text(f'[cache]\n    dir = "{tmp_path}/store" # on the fast disk\n', encoding="utf-8")
    assert Path(Config(str(tmp_path / ".dvc"))["cache"]["dir"]) == tmp_path / "store"
    assert (tmp_path / ".dvc" / checkout.dvc_setting(tmp_path, "cache", "dir")).resolve() == tmp_path / "store"
