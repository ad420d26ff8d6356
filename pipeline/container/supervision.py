"""Commands one after another, and a signal handed on until whoever it was for has ended."""

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
# DVC would die of SIGTERM and leave its stage; a signal that is ignored from the start stays so
DEAF_TO_SIGTERM = ("env", "--ignore-signal=TERM")


class Supervision:
    """`docker stop` signals the whole group (`tini -g`): the stage, which saves and ends; DVC, which must outlive it; and this process, which sees to both."""

    def __init__(self, environment: Mapping[str, str], *, top: Path) -> None:
        self._top = top
        self._told = Path(tempfile.mkdtemp(dir=environment.get("TMPDIR"))) / "interrupted"
        self._environment = {**environment, interruption.TOLD_IN: str(self._told)}
        self._signals: list[int] = []
        self._running: subprocess.Popen[bytes] | None = None
        self._runs_dvc = self._stage_heard = False
        for number in interruption.ASKED:
            signal.signal(number, self._note)
        signal.signal(signal.SIGALRM, self._remind)

    def run_all(self, commands: Iterable[Sequence[str]]) -> int:
        """The exit code of the first command that fails, or 0."""
        for command in commands:
            if code := self.run(command):
                return code
        return 0

    def run(self, command: Sequence[str]) -> int:
        """The command's exit code, or 143 or 130 where it or one of its stages was interrupted."""
        if self._signals:
            return 128 + self._signals[0]
        self._runs_dvc = command[0] == "dvc"
        self._running = subprocess.Popen([*(DEAF_TO_SIGTERM if self._runs_dvc else ()), *command], cwd=self._top, env=self._environment)
        if self._signals and not self._runs_dvc:  # it came while the command was being started
            self._running.send_signal(self._signals[0])
        code = self._running.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return code and self._reason(code)

    def _reason(self, code: int) -> int:
        """DVC answers 255 for every stage that failed."""
        if self._told.is_file():
            return int(self._told.read_text(encoding="utf-8"))
        if self._signals:
            return 128 + self._signals[0]
        return code if code > 0 else 128 - code

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        signal.setitimer(signal.ITIMER_REAL, REMIND_EVERY_S, REMIND_EVERY_S)

    def _remind(self, _number: int, _frame: FrameType | None) -> None:
        """A stage that was just starting did not hear the signal. DVC between two stages ends by SIGINT; after a stage that heard, it ends by itself."""
        if self._running is None or not self._runs_dvc:
            return
        for stage in stages(self._running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stage, interruption.ABANDONED)
                self._stage_heard = True
        if not self._stage_heard and not self._told.exists():
            self._running.send_signal(signal.SIGINT)


def stages(pid: int) -> list[int]:
    """The processes below that answer the signal: a stage does once it can end in good order, a mirror never."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True) if answers(child.pid)]
    return []


def answers(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    caught = next(int(line.split()[1], base=16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (interruption.ABANDONED - 1) & 1)
