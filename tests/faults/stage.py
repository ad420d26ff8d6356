"""A stage that only reports metrics, for a forked process."""

import time
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.runs import run
from tests.faults.servers import SPOILED
from tests.runs.conftest import RUN_INFO

HELD, TIMES = "held", "times.json"


def main(*, first: int, last: int) -> None:
    """Report metrics and write the seconds that the reports and the end took. Wait while the root has a file `held`."""
    environment = Environment.read()
    root = environment.root
    begin = time.monotonic()
    with run.training(environment, resume_file=root / "work/run", info=RUN_INFO) as reports:
        for step in range(first, last + 1):
            reports.metrics(step, {"train/loss": 1 / step, "train/scale": float("inf"), "valid/loss": float("nan")})
        reported = time.monotonic()
        while (root / HELD).exists():
            time.sleep(0.05)
        finish(reports, root)
        ending = time.monotonic()
    files.write_json(root / TIMES, {"reports_s": reported - begin, "end_s": time.monotonic() - ending})


def finish(reports: run.Run, root: Path) -> None:
    reports.describe("blue")
    for name, text in ((SPOILED, "some text"), ("history.csv", "step,loss\n")):
        (root / name).write_text(text)
        reports.artifact(root / name, folder="plots")
    if (root / "model.safetensors").exists():
        reports.model(root / "model.safetensors")
    reports.describe("green")
