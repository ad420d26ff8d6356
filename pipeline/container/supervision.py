"""Run commands one after another, and forward SIGTERM and SIGINT until the running command has ended."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from pipeline.runtime import interruption

REMIND_EVERY_S = 0.5
# SIGTERM would kill DVC and orphan its stage; a signal that is ignored when a program starts stays ignored
DEAF_TO_SIGTERM = ("env", "--ignore-signal=TERM")


class Supervision:
    """Run commands so that an interrupted stage can save and DVC outlives it.

    `docker stop` signals the whole process group (`tini -g`): the stage, which saves and ends; DVC, which ignores SIGTERM; and this
    process, which repeats the signal if a stage was still starting.
    """

    def __init__(self, environment: Mapping[str, str], *, top: Path) -> None:
        self._top = top
        self._told = Path(tempfile.mkdtemp(dir=environment.get("TMPDIR"))) / "interrupted"
        self._environment = {**environment, interruption.EXIT_CODE_FILE: str(self._told)}
        self._signals: list[int] = []
        self._running: subprocess.Popen[bytes] | None = None
        self._runs_dvc = self._stage_heard = False
        for number in interruption.STOP_SIGNALS:
            signal.signal(number, self._note)
        signal.signal(signal.SIGALRM, self._remind)

    def run_all(self, commands: Iterable[Sequence[str]]) -> int:
        """Run the commands in order; return the exit code of the first that fails, or 0."""
        for command in commands:
            if code := self.run(command):
                return code
        return 0

    def run(self, command: Sequence[str]) -> int:
        """Run one command; return its exit code, or 143 or 130 if it or one of its stages was interrupted."""
        if self._signals:
            return 128 + self._signals[0]
        self._runs_dvc = command[0] == "dvc"
        self._running = subprocess.Popen([*(DEAF_TO_SIGTERM if self._runs_dvc else ()), *command], cwd=self._top, env=self._environment)
        if self._signals and not self._runs_dvc:  # the signal arrived before the command had started
            self._running.send_signal(self._signals[0])
        code = self._running.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return code and self._reason(code)

    def _reason(self, code: int) -> int:
        """Return the exit code of an interrupted stage or command if there was a signal; DVC itself exits with 255 for any failed stage."""
        if self._told.is_file():
            return int(self._told.read_text(encoding="utf-8"))
        if self._signals:
            return 128 + self._signals[0]
        return code if code > 0 else 128 - code

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        signal.setitimer(signal.ITIMER_REAL, REMIND_EVERY_S, REMIND_EVERY_S)

    def _remind(self, _number: int, _frame: FrameType | None) -> None:
        """Repeat the signal for a stage that was starting and missed it. Without a stage, send SIGINT to DVC: it is between two stages.

        After a stage that received the signal, DVC ends by itself.
        """
        if self._running is None or not self._runs_dvc:
            return
        for stage in stages(self._running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stage, interruption.UNCOUNTED_STOP)
                self._stage_heard = True
        if not self._stage_heard and not self._told.exists():
            self._running.send_signal(signal.SIGINT)


def stages(pid: int) -> list[int]:
    """Return the pids of descendants that handle the signal: a stage does once it can stop cleanly, a mirror process never."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True) if answers(child.pid)]
    return []


def answers(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    caught = next(int(line.split()[1], base=16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (interruption.UNCOUNTED_STOP - 1) & 1)
