"""Run verbs on projects with hostile inputs, within bounds of time, memory, files and actions."""

import io
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.__main__ import main
from tests import project

MODEL = Path("models/model.safetensors")
PREPARED = Path("data/prepared")
RAW = Path("data/raw")
ADDRESS_BYTES = 2**30
"""Address space that a verb may take in addition to that of the process."""
LONGEST_S = 120.0
WRITTEN = ("data/prepared", ".pipeline", "pipeline", "models", "metrics", "plots")
FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"}
DIVIDED = project.DIVIDED | {"valid": 0.25, "test": 0.25}
TINY: dict[str, Any] = {
    "source": {"name": "arrays", "root": "data/raw/tiny.npz", **DIVIDED},
    "model": {"name": "mlp", "weights": None, "width": 4, "depth": 1, "dropout": 0.0},
    "train.steps": 2,
    "train.report_every_steps": 1,
    "train.validate_every_steps": 2,
    "evaluate.top_k": 1,
}


@dataclass(frozen=True)
class Case:
    """A hostile input: `spoil()` runs in a project's folder, each verb must answer with `says`, and a `harmless` input may also be accepted."""

    verbs: tuple[str, ...]
    spoil: Callable[[], object]
    says: str
    harmless: bool = False


@dataclass(frozen=True)
class Answer:
    """The exit code, output, time and memory of one verb."""

    code: int
    output: str
    processor_s: float
    grown_bytes: int


def make(folder: Path) -> Path:
    """Make a project with twelve tiny images and run its stages, so that later verbs have nothing to import."""
    project.make(folder, TINY)
    with chdir(folder):
        RAW.mkdir()
        inputs = np.arange(12 * 4 * 4, dtype=np.uint8).reshape(12, 4, 4)
        np.savez(RAW / "tiny.npz", inputs=inputs, targets=np.arange(12) % 2)
        with redirect_stdout(io.StringIO()):
            assert main(["prepare"]) == main(["train"]) == main(["evaluate"]) == 0
    return folder


def copied(template: Path, folder: Path) -> Path:
    return shutil.copytree(template, folder, symlinks=True)


def use(**source: object) -> None:
    """Write another source to params.yaml."""
    divided = {**DIVIDED, "test": 0.0}
    if source["name"] not in {"arrays", "image_folder", "text_classification"}:
        del divided["duplicates"]
    project.write_params(Path(), {**TINY, "source": {**divided, **source}})


def answers(case: Case, folder: Path) -> list[Answer]:
    """Return the answers of the verbs to the input in a copied project."""
    with chdir(folder):
        case.spoil()
        return [answer(verb) for verb in case.verbs]


def answer(verb: str) -> Answer:
    output, started_s, held_bytes = io.StringIO(), time.process_time(), forget_peak()
    with bounded(), redirect_stderr(output), redirect_stdout(io.StringIO()):
        code = main([verb])
    return Answer(code, output.getvalue(), time.process_time() - started_s, peak_bytes() - held_bytes)


@contextmanager
def bounded() -> Iterator[None]:
    """Raise MemoryError or TimeoutError when a verb exceeds its bounds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (status_bytes("VmSize") + ADDRESS_BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def stop(*_: object) -> None:
    raise TimeoutError(f"no answer after {LONGEST_S} s")


def status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def forget_peak() -> int:
    """Reset the peak of the process's memory and return its present memory; on systems that cannot reset it, return the present peak."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return peak_bytes()
    return status_bytes("VmRSS")


def peak_bytes() -> int:
    return status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def strays(folder: Path, before: set[Path]) -> set[Path]:
    """Return new files outside the project, or in it where no stage writes."""
    allowed = tuple(folder / name for name in WRITTEN)
    return {path for path in listed(folder.parent) - before if not any(path.is_relative_to(place) for place in allowed)}


def listed(folder: Path) -> set[Path]:
    return {Path(top, name) for top, folders, files in os.walk(folder) for name in (*folders, *files)}


class Watch:
    """Records forbidden audit events while it is open. Python cannot remove its audit hook."""

    def __init__(self) -> None:
        self.open = False
        self.seen: list[str] = []
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.open and event in FORBIDDEN:
            self.seen.append(f"{event}{arguments}")

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        self.open, self.seen = True, []
        try:
            yield self.seen
        finally:
            self.open = False
