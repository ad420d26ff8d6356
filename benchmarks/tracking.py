"""Measure what tracking adds to a short job: `make repro` of the default parameters in a fresh clone, with tracking and without, in turn.

    python -m benchmarks.tracking

It prints for each round, and as the median of all rounds: the seconds of the whole command, those of the stage `train` (from the line with
which DVC begins it to the one with which DVC begins `evaluate`), and the CPU seconds of all processes, also of those that the stages leave.
Let nothing else run on the machine.
"""

import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
ROUNDS = 5
PR_SET_CHILD_SUBREAPER = 36
RESULTS = (".pipeline", "mlflow.db", "mlruns", "models", "metrics", "plots", "data/prepared", "dvc.lock", ".dvc/cache", ".dvc/tmp")
BEGINS = "Running stage '{}'"


class Cost(NamedTuple):
    repro_s: float
    train_s: float
    cpu_s: float


def main() -> None:
    # processes that the stages leave become children of this process, so that their CPU time can be read
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "pipeline"
        subprocess.run(["git", "clone", "--quiet", TOP, checkout], check=True)
        (checkout / ".venv").symlink_to(TOP / ".venv")
        rounds = []
        for number in range(-1, ROUNDS):
            order = (True, False) if number % 2 else (False, True)
            costs = {tracked: repro(checkout, tracked=tracked) for tracked in order}
            if number >= 0:  # the first round reads the libraries from the disk
                rounds.append(costs)
                print(f"round {number + 1}: {described(costs)}", flush=True)
        print(f"median: {described({tracked: median([costs[tracked] for costs in rounds]) for tracked in (True, False)})}")


def repro(checkout: Path, *, tracked: bool) -> Cost:
    """Run `make repro` without any earlier result, and wait for the processes that it leaves."""
    for name in RESULTS:
        path = checkout / name
        path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIPELINE_", "MLFLOW_", "PYTHON", "OMP_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as site_cache:
        variables = {
            **kept,
            "PATH": path,
            "PIPELINE_TRACKING": str(tracked).lower(),
            "DVC_SITE_CACHE_DIR": site_cache,
            "DVC_NO_ANALYTICS": "1",
        }
        before, begin_s, begins = cpu_s(), time.perf_counter(), {}
        command = [sys.executable, "-m", "pipeline", "repro"]
        with subprocess.Popen(command, cwd=checkout, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                for stage in ("train", "evaluate"):
                    if line.startswith(BEGINS.format(stage)):
                        begins[stage] = time.perf_counter()
        repro_s = time.perf_counter() - begin_s
        assert process.returncode == 0
        while True:
            try:
                os.wait()
            except ChildProcessError:
                break
        return Cost(repro_s, begins["evaluate"] - begins["train"], cpu_s() - before)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def described(costs: dict[bool, Cost]) -> str:
    on, off = costs[True], costs[False]
    return (
        f"repro {on.repro_s:.1f} s, {off.repro_s:.1f} s without tracking ({on.repro_s / off.repro_s:.2f}); "
        f"train {on.train_s:.1f} s, {off.train_s:.1f} s ({on.train_s / off.train_s:.2f}); "
        f"CPU {on.cpu_s:.1f} s, {off.cpu_s:.1f} s (+{on.cpu_s - off.cpu_s:.1f})"
    )


if __name__ == "__main__":
    main()
