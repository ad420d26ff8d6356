"""What tracking costs a training: `python -m tests.faults.cost [STEPS [ROUNDS]]`. Interleaved rounds, median of their ratios; nothing is asserted."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.servers import free_port
from tests.imports import TOP

NUM_REPORTS = 5_000
TRAIN = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from pipeline.environment import Environment
from pipeline.tracking import run
from pipeline.tracking.facts import Facts
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, targets = torch.randn(64, 256), torch.randint(0, 10, (64,))
environment = Environment.read()
with run.training(environment, resume_file=environment.root / "work/run", facts=Facts()) as reports:
    begin = time.perf_counter()
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            reports.metrics(step, {"train/loss": float(loss), "train/rate": 1.0, "train/norm": 2.0, "train/scale": 1.0})
    print(time.perf_counter() - begin)
"""


def main(num_steps: int = 12_000, num_rounds: int = 5) -> None:
    """Seconds of the loop alone, and of the whole process: start, mirror, and the wait at the end included."""
    print(f"run.metrics with four metrics: median {metrics_ms():.4f} ms a step ({NUM_REPORTS} steps, a journal on this disk, no mirror)")
    ways: dict[str, dict[str, str]] = {
        "off": {"PIPELINE_TRACKING": "false"},
        "on": {},
        "dead server": {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}"},
    }
    rounds = [{name: train(variables, num_steps) for name, variables in ways.items()} for _ in range(num_rounds)]
    print(f"{num_steps} steps, four metrics each 10th, {num_rounds} rounds | loop s | against off | whole process s")
    for name in ways:
        loop_s, whole_s = (statistics.median(each[name][part] for each in rounds) for part in (0, 1))
        ratio = statistics.median(each[name][0] / each["off"][0] for each in rounds)
        print(f"{name:>12} | {loop_s:.2f} | {100 * (ratio - 1):+.2f}% | {whole_s:.1f}")


def train(variables: dict[str, str], num_steps: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as root:
        begin = time.perf_counter()
        said = subprocess.run(
            [sys.executable, "-c", TRAIN, str(num_steps)],
            cwd=TOP, env={**os.environ, "DVC_ROOT": root, **variables}, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ).stdout  # fmt: skip
        return float(said), time.perf_counter() - begin


def metrics_ms() -> float:
    from pipeline.environment import Environment
    from pipeline.tracking import attendant, run
    from pipeline.tracking.facts import Facts

    attendant.start = lambda *_: None  # type: ignore[assignment]
    spent_s = []
    with tempfile.TemporaryDirectory() as root:
        environment = Environment.model_validate({"DVC_ROOT": root, "PIPELINE_TRACKING": True})
        with run.training(environment, resume_file=Path(root) / "run", facts=Facts()) as reports:
            for step in range(NUM_REPORTS):
                begin = time.perf_counter()
                reports.metrics(step, {"train/loss": 1 / (step + 1), "train/rate": 2.0, "train/norm": 3.0, "train/scale": 4.0})
                spent_s.append(time.perf_counter() - begin)
    return 1000 * statistics.median(spent_s)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
