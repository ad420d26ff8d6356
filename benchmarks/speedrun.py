"""The preset cifar10-speedrun beside the package airbench (its train94), in turn, on the same images and the same GPU.

    python -m benchmarks.speedrun data/prepared --runs 20

`data/prepared` is what the stage `prepare` made with that preset. Each run has another seed; the first of each is not counted, since it compiles and
fills caches. Accuracies are of six views of each test image, as airbench's are. airbench's time is its own clock's: whitening, steps and scoring,
without the data's way to the GPU. Ours is the whole, from the parameters to the score, with that way and the making of the network.
"""

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.collection import TEST, TRAIN
from pipeline.data.prepared import Prepared
from pipeline.engine import views
from pipeline.engine.checkpoint import Checkpoints
from pipeline.environment import Environment
from pipeline.machine import Machine, set_determinism
from pipeline.params.document import Document
from pipeline.params.load import load
from pipeline.params.train import TrainParams
from pipeline.stages.evaluate import predict
from pipeline.training import Training

PRESET = Path(__file__).parents[1] / "presets/cifar10-speedrun.yaml"
SCORED_AT_ONCE = 2000
AIRBENCH_FILES = {TRAIN: "train.pt", TEST: "test.pt"}


class Trained(NamedTuple):
    """One run: the share of right answers on the test split, and seconds."""

    accuracy: float
    elapsed_s: float


def ours(params: TrainParams, prepared: Prepared, here: Machine) -> Trained:
    set_determinism(params.train.deterministic)
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        training = Training.begin(params, prepared, here, Checkpoints(Path(folder), kept=1))
        for _ in training.reports():
            pass
    averaged = views.Averaged(training.state.scored, "mirror_translate")
    test = prepared.split(TEST)
    logits = predict(averaged, test, here, used=training.state.used, batch_size=SCORED_AT_ONCE)
    return Trained(float((logits.argmax(-1) == test.targets).mean()), time.perf_counter() - begin_s)


def airbench(run: int) -> Trained:
    """Reads `cifar10/` in the working folder."""
    from airbench import train94  # late: it asks for a GPU, and tells cuDNN to choose by timing

    set_determinism(False)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(run)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        train94(run=run)
    return last_row(printed.getvalue())


def last_row(printed: str) -> Trained:
    """Of airbench's table the row that begins with a blank run and the epoch `eval`: its last two columns."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line.startswith("|")]
    found = [row for row in rows if len(row) > 3 and row[1] == "eval"]
    if len(found) != 1:
        raise SystemExit(f"airbench printed another table than that of its version 0.1.8:\n{printed}")
    return Trained(float(found[0][-2]), float(found[0][-1]))


def write_for_airbench(prepared: Prepared, folder: Path) -> None:
    """Its two files, which it would make of the download otherwise."""
    folder.mkdir()
    for name, file in AIRBENCH_FILES.items():
        split = prepared.split(name)
        tensors = {"images": torch.from_numpy(split.inputs), "labels": torch.from_numpy(split.targets)}
        torch.save({**tensors, "classes": list(prepared.spec.classes)}, folder / file)


def table(found: dict[str, Sequence[Trained]]) -> str:
    lines = ["| | accuracy, mean | its standard error | seconds, median | least | most |", "| --- | --- | --- | --- | --- | --- |"]
    for name, runs in found.items():
        accuracies, times = [run.accuracy for run in runs], [run.elapsed_s for run in runs]
        error = statistics.stdev(accuracies) / len(runs) ** 0.5
        lines.append(
            f"| {name} | {statistics.mean(accuracies):.4f} | {error:.4f} | {statistics.median(times):.3f} | {min(times):.3f} | {max(times):.3f} |"
        )
    ratios = [mine.elapsed_s / theirs.elapsed_s for mine, theirs in zip(found["pipeline"], found["airbench"], strict=True)]
    return "\n".join([*lines, "", f"pipeline by airbench, time: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun", description=__doc__)
    parser.add_argument("prepared", type=Path, help="the folder that the stage `prepare` made")
    parser.add_argument("--runs", type=int, default=20, help="of each, two at least")
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("--runs: two at least: a spread is told")
    here = Machine.claim(Environment.read())
    if here.device.type != "cuda":
        parser.error("airbench trains on a CUDA GPU, and there is none")
    prepared, params = Prepared.open(arguments.prepared), load(Document.read(PRESET), TrainParams)
    found: dict[str, list[Trained]] = {"pipeline": [], "airbench": []}
    with tempfile.TemporaryDirectory() as folder:
        write_for_airbench(prepared, Path(folder) / "cifar10")
        os.chdir(folder)
        for run in range(arguments.runs + 1):
            found["pipeline"].append(ours(params.model_copy(update={"seed": run}), prepared, here))
            found["airbench"].append(airbench(run))
            print(f"run {run}: pipeline {found['pipeline'][-1]}, airbench {found['airbench'][-1]}", flush=True)
    print(table({name: runs[1:] for name, runs in found.items()}))


if __name__ == "__main__":
    main()
