"""Run everything that only a machine with a GPU can show, and print a table: `python -m tests.gpu.measure --output FOLDER preflight tests`.

The parts. Each is meant to take less than ten minutes on one GPU; --limit-s is for all parts of a run together:

preflight    compiles one operation: shows early whether torch.compile finds a C compiler, Python.h and Triton
tests        tests/gpu, and the tests of the loop that run on any device (`TEST_DEVICE=cuda`); three minutes on an H100 with 16 cores
launches     what a steady step of each preset launches, beside the table of tests/gpu/fake/launches.csv
ratios       the loop of each preset beside a bare loop, eager and captured, in turn; those that wait for launches most also compiled
preset:NAME  trains and evaluates a preset on real data, then profiles it: accuracy, samples a second, peak memory of each micro-batch
loops        `python -m benchmarks` of one model (`--model`) with batches of 128 and of 1,024
speedrun     the preset cifar10-speedrun beside airbench

It needs no DVC, no MLflow and no network; `loops` and `speedrun` need benchmarks/requirements.lock. A machine without a package registry needs
the wheels of these packages of requirements.lock and locks/dev.lock, beside torch, torchvision, numpy and safetensors: pydantic,
pydantic-core, pydantic-settings, annotated-types, typing-inspection, python-dotenv, ruamel.yaml, rich, markdown-it-py, mdurl, pygments,
nvidia-ml-py, psutil, pytest, pluggy, iniconfig, pytest-xdist and execnet. With those of locks/hub.lock, `tests` also tries models
of timm and transformers. `--data` is a folder with
`cifar10-jpeg.tar.gz` (`{train,test}/CLASS/NAME.jpg`), `tinyshakespeare.txt` and `trec/{train,test}.tsv`. `--output` receives one log per
step and, after each step, the table.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.imports import TOP

ENVIRONMENT = dict(os.environ)
"""The environment of the steps. It is copied before `tests.project` is imported, which sets this process to one thread."""
VARIABLES = {"PIPELINE_DEVICE": "cuda", "PIPELINE_TRACKING_MIRROR": "false", "PYTHONUNBUFFERED": "1"}
PREFLIGHT = """
import torch
numbers = torch.linspace(0, 1, 100, device="cuda")
torch.testing.assert_close(torch.compile(torch.sin)(numbers), torch.sin(numbers))
print(f"torch {torch.__version__} compiles for {torch.cuda.get_device_name()}")
"""
TESTS = (
    # the trainings that are killed take longest
    "tests/gpu/test_stages.py",
    "tests/gpu/test_captured.py",
    "tests/gpu/test_every_model.py",
    "tests/gpu/test_loop.py",
    "tests/gpu/test_lanes.py",
    "tests/laws/test_resuming.py",
    "tests/laws/test_mutants.py",
    "tests/laws/test_reading_ahead.py",
    "tests/faults/test_numbers.py",
    "tests/faults/test_memory.py",
)
IMAGES = {"name": "image_folder", "root": "data/raw/cifar10-jpeg.tar.gz", "image_size": 32, "channels": 3, "max_pixels": 1_000_000}
DIVIDED = {"valid": 0.04, "test": 0.1, "seed": 1, "folds": None, "fold": 0, "duplicates": "keep"}
CIFAR10 = {**IMAGES, "on_corrupt": "fail", "white": None, **DIVIDED}
PRESETS = {
    "cifar10-resnet": {"source": CIFAR10},
    "cifar10-mobilenet": {"source": CIFAR10},
    "shakespeare-transformer": {"source.root": "data/raw/tinyshakespeare.txt"},
    "trec-lstm": {"source.root": "data/raw/trec"},
}
LAUNCH_BOUND = ("digits", "cifar10-mlp", "cifar10-speedrun", "shakespeare-transformer")
OF_TESTS = (
    ("TEST_DEVICE", "cuda"),
    ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("TORCHINDUCTOR_COMPILE_THREADS", "2"),  # each test process would otherwise start a compiler process for every core
)
COMPILED = ("eager", "captured", "compiled", "compiled, captured", "compile: graphs")
COMMANDS = ("prepare", "train", "evaluate", "profile", "profile --speedup")
PARTS = ("preflight", "tests", "launches", "ratios", *(f"preset:{name}" for name in PRESETS), "loops", "speedrun")
RESULT = {
    "tests": r"\d+ (?:passed|failed|skipped|error).*",
    "train": r"train: models/.*",
    "evaluate": r"test .*",
    "profile": r".*samples a second",
}
"""The table shows the last match of such a pattern in the output of a step. The key is the last word of the step's name."""


@dataclass(frozen=True)
class Step:
    name: str
    command: tuple[str, ...]
    folder: Path = TOP
    variables: tuple[tuple[str, str], ...] = ()


def python_module(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def project_of(top: Path, preset: str, data: Path, changes: dict[str, object]) -> Path:
    from tests import project  # late: it changes the environment of this process

    folder = project.make(top / preset, setting=project.Setting(preset, changes))
    (folder / "data/raw").symlink_to(data.resolve())
    return folder


def steps(part: str, top: Path, arguments: argparse.Namespace) -> Iterator[Step]:
    """Yield the steps of a part. Projects are made in the folder `top`."""
    kind, _, preset = part.partition(":")
    match kind:
        case "tests":
            # other plugins that are installed may warn, and warnings are errors; loadgroup keeps tests that share a fixture in one process
            options = ("-p", "xdist", "-p", "no:cacheprovider", f"--numprocesses={arguments.processes}", "--dist=loadgroup")
            yield Step(part, python_module("pytest", *options, "-q", "--durations=10", *TESTS), variables=OF_TESTS)
        case "ratios":
            yield Step("ratios", python_module("tests.gpu.ratios"))
            yield Step("ratios, compiled", python_module("tests.gpu.ratios", "--modes", *COMPILED, "--presets", *LAUNCH_BOUND))
        case "preset":
            folder = project_of(top, preset, arguments.data, PRESETS[preset])
            for command in COMMANDS:
                yield Step(f"{preset}: {command}", python_module("pipeline", *command.split()), folder)
        case "loops":
            for batch_size in ("128", "1024"):
                results = str((arguments.output / f"loops-{batch_size}").resolve())
                job = ("--models", arguments.model, "--batch-size", batch_size, "--rounds", "3", "--block-s", "1")
                yield Step(f"{arguments.model}: loops of {batch_size}", python_module("benchmarks", *job, "--output", results))
        case "speedrun":
            folder = project_of(top, "cifar10-speedrun", arguments.data, {"source": CIFAR10 | {"valid": 0.0}})
            for command in COMMANDS[:4]:
                yield Step(f"cifar10-speedrun: {command}", python_module("pipeline", command), folder)
            yield Step("cifar10-speedrun beside airbench", python_module("benchmarks.speedrun", str(folder / "data/prepared")))
        case _:
            yield Step(part, (sys.executable, "-c", PREFLIGHT) if part == "preflight" else python_module("tests.gpu.launches"))


def run(step: Step, log: Path, limit_s: float) -> str:
    """Run a step in a process group of its own, and return its row of the table."""
    begin_s = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            step.command,
            cwd=step.folder,
            env=ENVIRONMENT | VARIABLES | dict(step.variables),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            outcome = "ok" if process.wait(limit_s) == 0 else f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            outcome = "timed out"
    pattern = RESULT.get(step.name.rsplit(maxsplit=1)[-1], r"\S.*")
    result = ["", *re.findall(pattern, log.read_text(encoding="utf-8", errors="replace"))][-1][:150]
    return f"| {step.name} | {outcome} | {time.monotonic() - begin_s:.0f} | {result} |"


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.measure", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--data", type=Path, default=TOP / "data/raw", help="folder of the real data")
    parser.add_argument("--output", type=Path, required=True, help="folder for logs and the table")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=540.0,
        help="seconds for all parts together: then the running step is killed, and those after it are left out",
    )
    parser.add_argument("--model", default="resnet", help="model of the part loops, as in `python -m benchmarks --models`")
    parser.add_argument("--processes", type=int, default=14, help="number of processes for tests")
    return parser.parse_args(words)


def main() -> int:
    arguments = parse_arguments()
    deadline = time.monotonic() + arguments.limit_s
    rows = ["| step | outcome | seconds | result |", "| --- | --- | --- | --- |"]
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as top:
        for step in (step for part in arguments.parts for step in steps(part, Path(top), arguments)):
            left_s = deadline - time.monotonic()
            rows.append(
                run(step, arguments.output / f"{step.name.replace(': ', '-').replace(' ', '-')}.log", left_s)
                if left_s > 0
                else f"| {step.name} | not begun | | |"
            )
            (arguments.output / "table.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
            print(rows[-1], flush=True)
    print("", *rows, sep="\n", flush=True)
    return 0 if all("| ok |" in row for row in rows[2:]) else 1


if __name__ == "__main__":
    sys.exit(main())
