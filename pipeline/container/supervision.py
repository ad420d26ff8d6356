"""Commands one after another, and a signal handed on until whoever it was for has ended."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from pipeline import interruption

AGAIN_S = 0.5
TOLD = ".pipeline/interrupted"


class Supervision:
    """`docker stop` signals the whole group (`tini -g`): the stage, which saves and ends; DVC, which must outlive it; and this process, which sees to both."""

    def __init__(self, environment: Mapping[str, str], *, top: Path) -> None:
        self._top = top
        self._told = top / TOLD
        self._environment = {**environment, interruption.TOLD_IN: str(self._told)}
        self._signals: list[int] = []
        self._running: subprocess.Popen[bytes] | None = None
        for number in interruption.ASKED:
            signal.signal(number, self._note)
        signal.signal(signal.SIGALRM, self._hurry)

    def run(self, command: Sequence[str]) -> int:
        """The command's exit code, or 143 or 130 where it or one of its stages was interrupted."""
        if self._signals:
            return 128 + self._signals[0]
        self._told.unlink(missing_ok=True)
        before = heedless if command[0] == "dvc" else None
        self._running = subprocess.Popen(command, cwd=self._top, env=self._environment, preexec_fn=before)  # noqa: PLW1509  # no threads here
        if self._signals:
            self._hurry()  # the signal came while it was being started
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
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)

    def _hurry(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """DVC between two stages ends by SIGINT, which it ignores during one; a stage that was just starting did not hear the signal."""
        if self._running is None or Path(self._running.args[0]).name != "dvc":  # type: ignore[index, arg-type]
            return
        for stage in stages(self._running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stage, interruption.ABANDONED)
        self._running.send_signal(signal.SIGINT)


def heedless() -> None:
    """DVC would die of SIGTERM and leave the stage; what ignores it before it starts goes on ignoring it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


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
