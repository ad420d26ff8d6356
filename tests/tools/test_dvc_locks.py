"""Lock records of a killed DVC are repaired, and those of a living one are kept."""

import json
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.tools import checkout_lock
from tests import project


def record(path: Path, *holders: dict, age_s: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    read = {f"/data/{number}": [holder] for number, holder in enumerate(holders[1:])}
    path.write_text(json.dumps({"write": {"/model": holders[0]}, "read": read}), encoding="utf-8")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def own() -> dict:
    """Return the process of the test with its command line."""
    return {"pid": os.getpid(), "cmd": psutil.Process().cmdline()[0]}


def dead() -> dict:
    done = subprocess.Popen(["true"])
    done.wait()
    return {"pid": done.pid, "cmd": "/bin/dvc repro"}


@pytest.mark.parametrize(
    ("content", "folder"), [("", "exps"), ("[1]", ""), ('{"write": {"/x": 3}}', ""), ('{"read": {"/x": [{"pid": 1}]}}', "")]
)
def test_half_a_record_is_moved_aside_and_named(tmp_path: Path, content: str, folder: str) -> None:
    path = tmp_path / folder / "rwlock"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    (said,) = checkout_lock.repair_dvc(tmp_path)
    aside = path.parent / said.split()[-1]
    assert said == f"{path}: was truncated by a DVC that was killed: moved to {aside.name}"
    assert aside.read_text(encoding="utf-8") == content
    assert not path.exists()
    assert checkout_lock.repair_dvc(tmp_path) == []


def test_a_record_of_the_dead_is_removed(tmp_path: Path) -> None:
    holder = dead()
    path = record(tmp_path / "rwlock", holder, holder)
    assert checkout_lock.repair_dvc(tmp_path) == [f"{path}: was left by process {holder['pid']}, a DVC that was killed: removed"]
    assert not path.exists()


def test_a_process_number_that_another_program_has_now_is_not_taken_for_dvc(tmp_path: Path) -> None:
    began_after = record(tmp_path / "rwlock", own(), age_s=7 * 24 * 3600)
    assert len(checkout_lock.repair_dvc(tmp_path)) == 1
    assert not began_after.exists()
    with subprocess.Popen(["sleep", "60"]) as other:
        record(tmp_path / "rwlock", {"pid": other.pid, "cmd": "/bin/dvc repro"})
        assert len(checkout_lock.repair_dvc(tmp_path)) == 1
        other.kill()


def test_a_record_of_the_living_stays_also_beside_the_dead(tmp_path: Path) -> None:
    path = record(tmp_path / "rwlock", dead(), own())
    (said,) = checkout_lock.repair_dvc(tmp_path)
    assert said.startswith(f"another DVC is running here (process {os.getpid()})")
    assert path.exists()


def test_nothing_is_touched_while_a_dvc_is_writing(tmp_path: Path) -> None:
    (tmp_path / "rwlock").write_text('{"read"', encoding="utf-8")
    with files.locked(tmp_path / "rwlock.lock", wait=False):
        assert checkout_lock.repair_dvc(tmp_path) == []
    assert (tmp_path / "rwlock").exists()


def test_check_writes_only_to_mend_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert main(["check"]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert "rwlock" not in capsys.readouterr().out
    Path(".dvc/tmp").mkdir(parents=True)
    Path(".dvc/tmp/rwlock").touch()
    assert main(["check"]) == 0
    assert capsys.readouterr().out.startswith("check: .dvc/tmp/rwlock: was truncated by a DVC that was killed")
    assert Path(checkout_lock.LOCK).exists()
