"""A process that has imported what takes long, and forks children on request: the tests of kills start hundreds of trainings."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.imports import TOP


class ForkServer:
    """The client side: runs `python -m MODULE WORDS`, writes requests to it as lines of JSON, and reads its answers."""

    def __init__(self, module: str, log: Path, variables: Mapping[str, str] | None = None, *words: str) -> None:
        self.log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *words],
            cwd=TOP,
            env={**os.environ, "PYTHONPATH": str(TOP), **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.log.close()


def campaign(module: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run `python -m MODULE ARGUMENTS`, and return the line of JSON that it prints last."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    done = subprocess.run(command, cwd=TOP, env=os.environ | variables, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def is_alive(pid: int) -> bool:
    """Return True if the process exists; for a negative number, if a process of its group does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(is_done: Callable[[], object], within_s: float = 300) -> None:
    """Wait until `is_done` returns a true value, and fail if it does not within so many seconds."""
    end_s = time.monotonic() + within_s
    while not is_done():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def free_port() -> int:
    """Return a port that is free now. It is below those that Linux gives to outgoing connections by default: one of these could take the port
    of a server between its end and its next start.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(20_000, 32_000)  # not the generator that tests seed: two processes would try the same ports
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port from 20,000 to 31,999 is free")


def fork(action: Callable[[], int | None]) -> int:
    """Fork a child that runs `action` and ends with the exit code that it returns, or with 1 after an exception. Return its process id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        code = action() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
