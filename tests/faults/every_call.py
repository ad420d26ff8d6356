"""Let every input or output call of a save fail in turn, as SQLite's tests do: `python -m tests.faults.every_call` prints a line of JSON.

The calls are traced (Linux on x86-64). The children are forked from this process, which has imported torch and started no threads.
"""

import collections
import contextlib
import ctypes
import errno
import json
import os
import platform
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy.ctypeslib  # noqa: F401  # safetensors imports it at its first save
import torch

from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.metrics import Row

SUPPORTED = platform.system() == "Linux" and platform.machine() == "x86_64"
TRACE_ME, PEEK_USER, POKE_USER, CONTINUE_TO_CALL, SET_OPTIONS = 0, 3, 6, 24, 0x4200
MARK_CALLS, END_WITH_PARENT = 0x1, 0x100000
CALL, ANSWER = 15 * 8, 10 * 8  # orig_rax and rax in the registers of the child
MARKED_TRAP = signal.SIGTRAP | 0x80
# calls by number: what reads, writes, opens, closes, moves, removes or synchronises files
INPUT_OUTPUT = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 8: "lseek", 16: "ioctl", 17: "pread", 18: "pwrite",
    19: "readv", 20: "writev", 72: "fcntl", 74: "fsync", 75: "fdatasync", 76: "truncate", 77: "ftruncate", 78: "getdents", 82: "rename",
    83: "mkdir", 84: "rmdir", 87: "unlink", 217: "getdents64", 257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat",
    264: "renameat", 285: "fallocate", 316: "renameat2", 332: "statx",
}  # fmt: skip

library = ctypes.CDLL(None, use_errno=True)
library.ptrace.restype = ctypes.c_long
library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)
    found = int(library.ptrace(request, pid, address, data))
    if found == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


@dataclass(frozen=True)
class Fault:
    """A fault at input or output call number `at` (from 0): a kill before the call, or an error instead of it."""

    at: int
    number: int | None = None
    """The errno; None for a kill."""


@dataclass(frozen=True)
class Outcome:
    calls: tuple[str, ...]
    exit_code: int


def traced(action: Callable[[], int], fault: Fault | None = None) -> Outcome:
    """Run `action` in a traced child; return its calls and its exit code, which is negative for a signal."""
    child = os.fork()
    if child == 0:
        play(action)
    os.waitpid(child, 0)  # it stopped itself
    ptrace(SET_OPTIONS, child, data=MARK_CALLS | END_WITH_PARENT)
    calls: list[str] = []
    while (status := next_stop(child)) is None:  # a call begins
        name = INPUT_OUTPUT.get(ptrace(PEEK_USER, child, CALL))
        calls += [name] if name else []
        met = fault if name and fault and fault.at == len(calls) - 1 else None
        if met:
            inflict(child, met)
        status = next_stop(child)  # it ends
        if status is not None:
            break
        if met and met.number:
            ptrace(POKE_USER, child, ANSWER, (1 << 64) - met.number)
    return Outcome(tuple(calls), os.waitstatus_to_exitcode(status))


def inflict(child: int, fault: Fault) -> None:
    if fault.number is None:
        os.kill(child, signal.SIGKILL)
    else:
        ptrace(POKE_USER, child, CALL, (1 << 64) - 1)  # no call has that number: the kernel does nothing


def next_stop(child: int) -> int | None:
    """Continue to the next entry or exit of a system call; return the status if the child ended instead."""
    while True:
        with contextlib.suppress(ProcessLookupError):  # killed already, and to be waited for
            ptrace(CONTINUE_TO_CALL, child)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return status
        if os.WSTOPSIG(status) == MARKED_TRAP:
            return None


def play(action: Callable[[], int]) -> None:
    """Run in the child: wait for the tracer, run `action` without output, and exit."""
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        code = 99
        try:
            ptrace(TRACE_ME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            code = action()
        finally:
            os._exit(code)


def can_trace() -> str:
    """Return an empty text, or the reason why this machine cannot trace."""
    if not SUPPORTED:
        return "counting system calls is written for Linux on x86-64"
    try:
        return "" if traced(lambda: 0).exit_code == 0 else "a traced child did not end well"
    except OSError as error:
        return f"this machine lets no process trace its own child ({errno.errorcode.get(error.errno or 0)})"


OLD, NEW = {"weight": torch.arange(5000.0), "count": torch.tensor(1)}, {"weight": torch.arange(5000.0).flip(0), "count": torch.tensor(2)}
ROWS: list[Row] = [{"step": step, "train/objective": 1 / step} for step in (1, 2)]
REFUSED = 7
FAULTS = {"death": None, "a full disk": errno.ENOSPC, "a broken disk": errno.EIO}


def save(checkpoints: Checkpoints, step: int) -> int:
    try:
        checkpoints.save(step, OLD if step == 1 else NEW, {"step": step, "progress": {"rows": ROWS[:step]}})
    except OSError:
        return REFUSED
    return 0


def newest(folder: Path, step: int) -> int:
    """Return 0 if the newest checkpoint is whole and not older than `step`."""
    checkpoint = Checkpoints(folder, kept=2).newest()
    assert checkpoint is not None
    tensors, metadata = checkpoint
    assert metadata["step"] in (1, 2), metadata
    assert metadata["progress"]["rows"] == ROWS[: metadata["step"]]
    expected = OLD if metadata["step"] == 1 else NEW
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    return 0 if metadata["step"] >= step else 1


def attempt(top: Path, fault: Fault | None) -> tuple[Outcome, int]:
    """Save twice, with the fault in the second save, and read the result; the second value is 0 if no finished save is lost."""
    folder = top / "work"
    shutil.rmtree(folder, ignore_errors=True)
    checkpoints = Checkpoints(folder, kept=2)
    assert save(checkpoints, 1) == 0
    assert checkpoints.newest()
    outcome = traced(lambda: save(checkpoints, 2), fault)
    # a save that said that it succeeded must be found
    return outcome, newest(folder, 2 if outcome.exit_code == 0 else 1)


def run() -> dict[str, object]:
    """Let each call meet a death, and in turn a full and a broken disk."""
    seen: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in FAULTS}
    with tempfile.TemporaryDirectory() as top:
        undisturbed, reading = attempt(Path(top), None)
        assert (undisturbed.exit_code, reading) == (0, 0)
        for at in range(len(undisturbed.calls)):
            for name in ("death", "a broken disk" if at % 2 else "a full disk"):
                outcome, reading = attempt(Path(top), Fault(at, FAULTS[name]))
                assert reading == 0, f"{name} at call {at} ({outcome.calls[-1]}): nothing whole is left"
                assert outcome.exit_code in ((-9,) if name == "death" else (0, REFUSED)), f"{name} at call {at}: exit {outcome.exit_code}"
                seen[name]["ended" if outcome.exit_code < 0 else "said" if outcome.exit_code else "of no consequence"] += 1
    return {"calls": len(undisturbed.calls), "kinds": dict(collections.Counter(undisturbed.calls)), "seen": seen}


if __name__ == "__main__":
    print(json.dumps({"skipped": can_trace()} if can_trace() else run()))
