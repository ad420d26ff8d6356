"""Count what a steady step of each preset launches on a GPU, beside the table of fake/launches.csv: `python -m tests.gpu.launches`.

The counts may be higher than those of the table, because cuDNN and cuBLAS may launch several kernels for a call that the table counts once.
"""

import csv
import os
import sys
import tempfile
from pathlib import Path

import torch

from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.inference.machine import Machine, set_determinism
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.training import Training
from tests.gpu.presets import PRECISIONS, PRESETS, params_of

TABLE = Path(__file__).with_name("fake") / "launches.csv"
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpy", "cudaMemset")
"""The beginnings of the names of the calls that put an operation into a stream."""
BEFORE, COUNTED = 9, 4
"""Steps that are made before the counted ones, so that what is made once exists."""


def launches(name: str, precision: str, machine: Machine) -> float:
    """Return the mean number of launches of a steady step."""
    params, (data, _) = params_of(PRECISIONS[precision], name), PRESETS[name]
    set_determinism(params.train.deterministic, training=True)
    with tempfile.TemporaryDirectory() as folder:
        reports = Training.begin(params, data, machine, Checkpoints(Path(folder), kept=1)).reports()
        for _ in range(BEFORE):
            next(reports)
        torch.cuda.synchronize()
        with torch.profiler.profile() as profiled:
            for _ in range(COUNTED):
                next(reports)
            torch.cuda.synchronize()
    return sum(call.count for call in profiled.key_averages() if call.key.startswith(LAUNCHES)) / COUNTED


def main() -> int:
    os.environ["PIPELINE_DEVICE"] = "cuda"
    try:
        machine = Machine.set_up(Environment.read())
    except Refusal as refusal:
        sys.exit(f"error: {refusal}")
    print("| preset | precision | launches on this GPU | in the table |", "| --- | --- | --- | --- |", sep="\n")
    more = 0
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found = launches(row["preset"], row["precision"], machine)
            more += found > 1.5 * int(row["pipeline"])
            print(f"| {row['preset']} | {row['precision']} | {found:.1f} | {row['pipeline']} |", flush=True)
    print(f"launches: {more} of the rows have over 1.5 times what the table says")
    return int(more > 0)


if __name__ == "__main__":
    sys.exit(main())
