"""One PID namespace works in a checkout at a time. A second one is refused, because it would take the first one's DVC for dead."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.tools import checkout_lock
from tests import project
from tests.imports import TOP
from tests.repository import variables

NAMESPACE = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Starts a command in a new PID namespace, as in a container."""
HOLD = """
import sys
from pathlib import Path
from pipeline.tools import checkout_lock
from pipeline.core.refusal import Refusal
try:
    with checkout_lock.held(Path(), place="in the container c0ffee"):
        print("held", flush=True)
        sys.stdin.read()
except Refusal:
    print("refused", flush=True)
"""


ALONE = """
from pathlib import Path
from pipeline.tools import checkout_lock
with checkout_lock.alone(Path()):
    print("held", flush=True)
"""
FORK = """
import os, signal
from pathlib import Path
from pipeline.tools import checkout_lock
signal.alarm(20)
with checkout_lock.alone(Path()):
    end, begin = os.pipe()
    if not os.fork():
        os.close(begin)
        os.read(end, 1)  # until the parent has ended
        os._exit(0)
"""


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let its users make PID namespaces")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project.make(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    return tmp_path


def start(folder: Path) -> subprocess.Popen[str]:
    """Start a process in another namespace that tries to hold the checkout as long as its standard input is open."""
    command = [*NAMESPACE, sys.executable, "-c", HOLD]
    return subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables(PYTHONPATH=str(TOP))
    )


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@contextmanager
def elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold the checkout from another namespace during the block."""
    with start(folder) as process:
        assert answer(process) == "held"
        yield process
        process.kill()


def dvc_of_this_process(folder: Path) -> Path:
    """Write DVC's lock record of a stage that runs in this process."""
    path = folder / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"write": {"/model": {"pid": os.getpid(), "cmd": sys.executable}}}), encoding="utf-8")
    return path


def check_elsewhere() -> subprocess.CompletedProcess[str]:
    command = [*NAMESPACE, sys.executable, "-m", "pipeline", "check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_check_in_another_namespace_leaves_the_record_of_a_living_dvc_and_names_the_holder(checkout: Path) -> None:
    record = dvc_of_this_process(checkout)
    with checkout_lock.held(checkout):
        done = check_elsewhere()
        assert record.is_file()
        assert done.returncode == 69
        assert f"error: {checkout}: a job on {socket.gethostname()} is using this checkout: wait until it ends, or stop it" in done.stderr


def test_a_host_is_known_by_its_boot_and_not_by_its_name_or_the_number_of_its_namespace(checkout: Path, monkeypatch) -> None:
    (checkout / "boot_id").write_text("of another host\n", encoding="ascii")
    with checkout_lock.held(checkout):
        monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
        with checkout_lock.held(checkout):
            pass
        monkeypatch.setattr(checkout_lock, "BOOT", checkout / "boot_id")
        with pytest.raises(Refusal, match="is using this checkout"), checkout_lock.held(checkout):
            pass


def test_a_killed_holder_holds_no_more(checkout: Path) -> None:
    with elsewhere(checkout) as process:
        with pytest.raises(Refusal, match="a job in the container c0ffee is using this checkout"), checkout_lock.held(checkout):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with checkout_lock.held(checkout):
            pass


def test_of_many_that_begin_together_one_holds_it(checkout: Path) -> None:
    all_of_them = [start(checkout) for _ in range(5)]
    answers = sorted(map(answer, all_of_them))
    for process in all_of_them:
        process.communicate()
    assert answers == ["held", *["refused"] * 4]


def test_a_stage_of_a_bare_dvc_is_refused_before_it_writes(checkout: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    with elsewhere(checkout):
        assert main(["prepare"]) == 0, "a stage run by hand touches no record of DVC"
        (checkout / "data/prepared/spec.json").unlink()
        monkeypatch.setenv("DVC_STAGE", "prepare")
        assert main(["prepare"]) == 69
        assert "a job in the container c0ffee is using this checkout" in capsys.readouterr().err
        assert not (checkout / "data/prepared/spec.json").exists()


def test_a_child_of_the_holder_waits_and_names_the_holder_if_it_is_known(checkout: Path) -> None:
    waiting = "waiting until another command in this checkout has ended"
    command = [sys.executable, "-c", ALONE]
    for hold, line in (
        (checkout_lock.alone(checkout), f"{waiting}: process {os.getpid()}, or one that it started"),
        (files.locked(checkout / checkout_lock.COMMAND_LOCK, wait=True), waiting),  # as before the holder has written its id
    ):
        with hold:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert answer(child) == line
        assert child.communicate() == ("held\n", None)


def test_a_process_that_the_holder_forked_does_not_keep_the_lock(checkout: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORK + ALONE], cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("held\n")


@pytest.mark.parametrize("take", [checkout_lock.held, lambda top: files.locked(top / checkout_lock.LOCK, wait=True)])
def test_a_lock_that_the_file_system_does_not_support_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], AbstractContextManager[object]]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(OSError, match="No locks available") as raised, take(tmp_path):
        pass
    assert raised.value.filename == str(tmp_path / checkout_lock.LOCK)
