"""Runs commands one after another, forwards SIGTERM and SIGINT to the running command, and waits until it has ended."""

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from pipeline.core import interruption
from pipeline.tools import checkout_lock

EXIT_CODE_PATH = ".pipeline/exit-code-{pid}"
"""The file for the exit code of a stage. `pid` is that of the process that runs DVC, because several may do so in one checkout."""
RESEND_EVERY_S = 0.5
# SIGTERM would end DVC and orphan its stage. DVC inherits from the shell that the signal is ignored.
IGNORING_SIGTERM = ("sh", "-c", 'trap "" TERM; exec "$@"', "sh")
HANDLED_SIGNALS = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


def run_all(commands: Iterable[Sequence[str]], environment: Mapping[str, str], *, top: Path, lock: int | None = None) -> int:
    """Run the commands in the folder `top`, one after another, until one fails. Return its exit code, or 0 if none fails.

    The commands share `lock`, the file descriptor of `checkout_lock.alone`. Return 143 if SIGTERM stopped the commands, or 130 if SIGINT did.
    If a stage failed in DVC, return its exit code, or 137 if it was killed.

    After `docker stop`, `tini -g` sends SIGTERM to all processes, as a terminal sends SIGINT. DVC is started so that it ignores SIGTERM: the
    running stage saves its state and ends, and then DVC ends. The signal does not reach a stage if it was sent to this process alone, or if
    the stage is still starting. Therefore `wait_for_dvc` tells the stages again to stop.
    """
    exit_code_file = (top / EXIT_CODE_PATH.format(pid=os.getpid())).absolute()
    environment = {**environment, interruption.EXIT_CODE_FILE: str(exit_code_file), checkout_lock.SHARED_LOCK: str(lock or "")}
    inherited = () if lock is None else (lock,)
    with recorded_signals() as signals, ExitStack() as at_the_end:
        for command in commands:
            if signals:
                return 128 + signals[0]
            is_dvc = command[0] == "dvc"
            if is_dvc:
                exit_code_file.unlink(missing_ok=True)  # left by a job that was killed and had the same process id
                at_the_end.callback(exit_code_file.unlink, missing_ok=True)
            words = [*(IGNORING_SIGTERM if is_dvc else ()), *command]
            process = subprocess.Popen(words, cwd=top, env=environment, pass_fds=inherited)
            if signals and not is_dvc:  # the signal arrived before the command had started
                process.send_signal(signals[0])
            code = wait_for_dvc(process, signals, exit_code_file) if is_dvc else process.wait()
            if code and signals:
                return 128 + signals[0]
            if code and is_dvc and exit_code_file.is_file():  # DVC itself exits with 255 for any failed stage
                return int(exit_code_file.read_text(encoding="utf-8"))
            if code:
                return code if code > 0 else 128 - code  # a negative code is the number of the signal that killed the command
    return 0


@contextmanager
def recorded_signals() -> Iterator[list[int]]:
    """Yield a list, to which each stop signal that arrives within the block is added."""
    signals: list[int] = []
    before = {number: signal.signal(number, lambda number, _frame: signals.append(number)) for number in interruption.STOP_SIGNALS}
    try:
        yield signals
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def wait_for_dvc(process: "subprocess.Popen[bytes]", signals: Sequence[int], exit_code_file: Path) -> int:
    """Wait until DVC has ended and return its exit code.

    `signals` are the signals that this process has received; a handler of the caller adds them. After the first one, call `signal_stages`
    repeatedly. If no stage can be signalled, send SIGINT to DVC, which would otherwise start the next stage. This is not needed once a
    stage was signalled, or if `exit_code_file` exists, which a stage deletes when it has succeeded: then DVC ends by itself.
    """
    stage_was_signalled = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(RESEND_EVERY_S)
        if signals:
            stage_was_signalled |= signal_stages(process.pid, signals[0])
            if not stage_was_signalled and not exit_code_file.exists():  # DVC ends by itself after an interrupted stage
                process.send_signal(signal.SIGINT)


def signal_stages(pid: int, number: int) -> bool:
    """Tell the running stages to stop, by the signal of UNCOUNTED that stands for `number`. Return True if it was sent to at least one process.

    It is sent to the descendants of the process `pid` that have a handler for this signal. A stage installs the handler once it can stop
    cleanly. The process that mirrors the run to MLflow never installs one.
    """
    num_signalled, sent = 0, next(uncounted for uncounted, stop in interruption.UNCOUNTED.items() if stop == number)
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(OSError):  # the process has ended
                handled = HANDLED_SIGNALS.search(Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"))
                if handled and int(handled[1], base=16) >> (sent - 1) & 1:
                    os.kill(process.pid, sent)
                    num_signalled += 1
    return num_signalled > 0
