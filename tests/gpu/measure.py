"""Run everything that only a machine with a GPU can show, and print a table: `python -m tests.gpu.measure tests presets`.

The parts, each of which is meant to take less than ten minutes on one GPU:

tests      tests/gpu, and the tests of the loop (`TEST_DEVICE=cuda`)
presets    trains and evaluates presets on real data, then profiles them: accuracy, samples a second, peak memory of each micro-batch
loops      `python -m benchmarks` with batches of 128 and of 1,024
speedrun   the preset cifar10-speedrun beside airbench

It needs no DVC, no MLflow and no network. `--data` is a folder with `cifar10-jpeg.tar.gz` (`{train,test}/CLASS/NAME.jpg`),
`tinyshakespeare.txt` and `trec/{train,test}.tsv`. `--output` receives one log per step and the table.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import project
from tests.imports import TOP

LOOP_TESTS = (
    "laws/test_resuming.py",
    "laws/test_mutants.py",
    "laws/test_reading_ahead.py",
    "faults/test_numbers.py",
    "faults/test_memory.py",
)
CIFAR10 = {
    "name": "image_folder",
    "root": "data/raw/cifar10-jpeg.tar.gz",
    "size": 32,
    "channels": 3,
    "on_corrupt": "fail",
    "max_pixels": 1_000_000,
    "valid": 0.04,
    "test": 0.1,
}
PRESETS = {
    "cifar10-resnet": {"source": CIFAR10},
    "cifar10-mobilenet": {"source": CIFAR10},
    "shakespeare-transformer": {"source.root": "data/raw/tinyshakespeare.txt"},
    "trec-lstm": {"source.root": "data/raw/trec"},
}
VERBS = ("train", "evaluate", "profile", "fit-batch", "speedup")
RESULT = {
    "tests": r"\d+ (?:passed|failed).*",
    "train": r"train: models/.*",
    "evaluate": r"test .*",
    "profile": r".*samples a second",
}
"""What the table shows of the output of a step, by the last word of its name: the last match."""
VARIABLES = {"PIPELINE_DEVICE": "cuda", "PIPELINE_TRACKING_MIRROR": "false", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Step:
    name: str
    command: tuple[str, ...]
    folder: Path = TOP
    variables: tuple[tuple[str, str], ...] = ()


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def tests(processes: int) -> Iterator[Step]:
    pytest = python("pytest", "-p", "no:cacheprovider", f"--numprocesses={processes}", "-q")
    on_gpu = (("TEST_DEVICE", "cuda"),)
    yield Step("gpu tests", (*pytest, "tests/gpu", "--durations=10"))
    yield Step("loop tests", (*pytest, *(f"tests/{name}" for name in LOOP_TESTS)), variables=on_gpu)


def preset_project(top: Path, name: str, data: Path, changes: dict[str, object]) -> Path:
    project.SETTINGS[name] = project.Setting(name, changes)
    folder = project.make(top / name, setting=name)
    (folder / "data/raw").symlink_to(data.resolve())
    return folder


def presets(top: Path, data: Path) -> Iterator[Step]:
    """Train and evaluate all presets before any of them is profiled."""
    folders = {name: preset_project(top, name, data, changes) for name, changes in PRESETS.items()}
    for name, folder in folders.items():
        yield Step(f"{name}: prepare", python("pipeline", "prepare"), folder)
        for verb in VERBS[:2]:
            yield Step(f"{name}: {verb}", python("pipeline", verb), folder)
    for verb in VERBS[2:]:
        for name, folder in folders.items():
            yield Step(f"{name}: {verb}", python("pipeline", verb), folder)


def loops(output: Path) -> Iterator[Step]:
    for batch_size in ("128", "1024"):
        results = str((output / f"loops-{batch_size}").resolve())
        yield Step(f"loops of {batch_size}", python("benchmarks", "--batch-size", batch_size, "--block-s", "1", "--output", results))


def speedrun(top: Path, data: Path) -> Iterator[Step]:
    folder = preset_project(top, "cifar10-speedrun", data, {"source": CIFAR10 | {"valid": 0.0}})
    yield Step("cifar10-speedrun: prepare", python("pipeline", "prepare"), folder)
    yield Step("cifar10-speedrun beside airbench", python("benchmarks.speedrun", str(folder / "data/prepared")))
    for verb in VERBS[:3]:
        yield Step(f"cifar10-speedrun: {verb}", python("pipeline", verb), folder)


def result_of(name: str, text: str) -> str:
    """Return the part of the output that the table shows; the last line if the step has no pattern."""
    found = re.findall(RESULT.get(name.rsplit(maxsplit=1)[-1], r"\S.*"), text)
    return found[-1][:150] if found else ""


def run(step: Step, log: Path, limit_s: float) -> str:
    """Run a step in a process group of its own, and return its row of the table."""
    begin_s = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            step.command,
            cwd=step.folder,
            env=os.environ | VARIABLES | dict(step.variables),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            outcome = "ok" if process.wait(limit_s) == 0 else f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            outcome = "no time"
    text = log.read_text(encoding="utf-8", errors="replace")
    return f"| {step.name} | {outcome} | {time.monotonic() - begin_s:.0f} | {result_of(step.name, text)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.measure", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["tests", "presets", "loops", "speedrun"])
    parser.add_argument("--data", type=Path, default=TOP / "data/raw", help="folder of the real data")
    parser.add_argument("--output", type=Path, required=True, help="folder for logs and the table")
    parser.add_argument(
        "--limit-s", type=float, default=570.0, help="seconds after which a step is killed, and those after it are left out"
    )
    parser.add_argument("--processes", type=int, default=8, help="number of processes for tests")
    given = parser.parse_args()
    deadline = time.monotonic() + given.limit_s
    rows = ["| step | outcome | seconds | result |", "| --- | --- | --- | --- |"]
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        parts = {
            "tests": lambda: tests(given.processes),
            "presets": lambda: presets(top, given.data),
            "loops": lambda: loops(given.output),
            "speedrun": lambda: speedrun(top, given.data),
        }
        for part in given.parts:
            for step in parts[part]():
                if time.monotonic() >= deadline:
                    rows.append(f"| {step.name} | not begun | | |")
                    continue
                log = given.output / f"{step.name.replace(': ', '-').replace(' ', '-')}.log"
                rows.append(run(step, log, deadline - time.monotonic()))
                print(rows[-1], flush=True)
    table = "\n".join(rows) + "\n"
    (given.output / "table.md").write_text(table, encoding="utf-8")
    print(f"\n{table}", flush=True)
    return 0 if all("| ok |" in row for row in rows[2:]) else 1


if __name__ == "__main__":
    sys.exit(main())
