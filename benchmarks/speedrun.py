"""Compare the preset cifar10-speedrun with the package airbench: alternating runs on the same images and the same GPU.

    python -m benchmarks.speedrun data/prepared --runs 20

`data/prepared` is the output of the stage `prepare` with that preset. Each run has a different seed; the first run of each is discarded,
because it compiles and fills caches. Accuracies use six views of each test image (test-time augmentation). The package contains only
airbench's train94, which is older than the preset's recipe: SGD with Lookahead, 9.9 epochs, fp16, not compiled. Its time is measured by
airbench: whitening, steps and scoring. For the pipeline there are two times: steps and scoring; and the setup before, which builds the
network, whitens, and copies the images to the GPU. No time includes tracking, checkpoints or a model file.
"""

import argparse
import contextlib
import gc
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.job import SIDE
from pipeline.core import seeding
from pipeline.core.environment import Environment
from pipeline.core.params import load
from pipeline.core.prepared import Prepared
from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.evaluate import tta
from pipeline.inference.batches import loader
from pipeline.inference.machine import Machine, set_determinism
from pipeline.inference.networks import predict
from pipeline.train.engine import metrics
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.params import TrainParams
from pipeline.train.training import Training

PRESET = Path(__file__).parents[1] / "presets/cifar10-speedrun.yaml"
SCORED_AT_ONCE = 2000
SHAPE = (SIDE, SIDE, 3)


class Trained(NamedTuple):
    """One run: test accuracy (0 to 1), seconds, and the seconds of setup before the first step where they are measured separately."""

    accuracy: float
    elapsed_s: float
    before_s: float = 0.0


def train_pipeline(params: TrainParams, prepared: Prepared, machine: Machine) -> Trained:
    set_determinism(params.train.deterministic, training=True)
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        training = Training.begin(params, prepared, machine, Checkpoints(Path(folder), kept=1))
        synchronize(machine)
        first_s = time.perf_counter()
        for _ in training.reports():
            pass
    if training.progress.micro_batch_changes:
        raise Refusal("this run used smaller micro-batches, because the GPU's memory ran out: end other programs that use it")
    averaged, test = tta.Averaged(training.state.scored, "mirror_translate"), loader.SplitTensors(prepared.split(TEST), machine.device)
    batches = partial(loader.scoring, test, batch_size=min(SCORED_AT_ONCE, len(test)))
    predictions = predict(averaged, batches(), precision=training.state.precision, device=machine.device)
    scores = metrics.score(predictions, training.objective)
    return Trained(scores["accuracy"], time.perf_counter() - first_s, first_s - begin_s)


def synchronize(machine: Machine) -> None:
    if machine.device.type == "cuda":
        torch.cuda.synchronize(machine.device)


def train_airbench(run: int, folder: Path) -> Trained:
    """Run airbench once, with torch's default flags. airbench reads `cifar10/` in its working folder."""
    from airbench import train94  # late: its import needs a GPU and enables cuDNN autotuning

    set_determinism(False)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(run)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        train94(run=run)
    return last_row(printed.getvalue())


def last_row(printed: str) -> Trained:
    """Return the last two columns (accuracy, seconds) of the `eval` row of airbench's table. Raises Refusal for another table."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line.startswith("|")]
    matching = [row for row in rows if len(row) > 3 and row[1] == "eval"]
    if len(matching) != 1:
        raise Refusal(f"airbench printed another table than its version 0.1.8 does:\n{printed}")
    return Trained(float(matching[0][-2]), float(matching[0][-1]))


def write_for_airbench(prepared: Prepared, folder: Path) -> None:
    """Write the two files that airbench would make from its download.

    Rows are shuffled because airbench computes its whitening from the first train images, and prepared data may be sorted by class.
    """
    folder.mkdir()
    for name in (TRAIN, TEST):
        split = prepared.split(name)
        rows = seeding.generator(0, "airbench", name).permutation(len(split))
        tensors = {"images": torch.from_numpy(split.inputs[rows]), "labels": torch.from_numpy(split.targets[rows])}
        torch.save({**tensors, "classes": list(prepared.spec.targets.output_names)}, folder / f"{name}.pt")


def refuse_unfit(prepared: Prepared, machine: Machine) -> None:
    if machine.device != torch.device("cuda", 0):
        raise Refusal(
            f"airbench trains on the first CUDA GPU, and this is {machine.device}: choose it with CUDA_VISIBLE_DEVICES instead of PIPELINE_DEVICE"
        )
    shape, num_classes = prepared.spec.inputs.row_shape, prepared.spec.num_outputs
    if (shape, num_classes) != (SHAPE, 10):
        raise Refusal(f"airbench trains on 10 classes of {SHAPE}, these are {num_classes} of {shape}")
    if VALID in prepared.splits:
        raise Refusal("the prepared data has a valid split, on which only the pipeline would spend time: set source.valid to 0")


def in_turn(contestants: dict[str, Callable[[int], Trained]], runs: int) -> dict[str, list[Trained]]:
    """Run each contestant `runs` times after one discarded run. The order alternates, so that neither always runs second."""
    results: dict[str, list[Trained]] = {name: [] for name in contestants}
    for run in range(runs + 1):
        for name in contestants if run % 2 == 0 else reversed(contestants):
            gc.collect()  # do not charge one contestant for the other's garbage
            trained = contestants[name](run)
            print(f"run {run}: {name}: {trained.accuracy:.4f} in {trained.before_s:.3f} + {trained.elapsed_s:.3f} s", flush=True)
            results[name] += [trained] if run else []
    return results


def table(results: dict[str, list[Trained]]) -> str:
    lines = ["| | accuracy, mean | its standard error | seconds, median | minimum | maximum |", "| --- | --- | --- | --- | --- | --- |"]
    for name, runs in results.items():
        accuracies = [run.accuracy for run in runs]
        error = statistics.stdev(accuracies) / len(runs) ** 0.5
        lines.append(f"| {name} | {statistics.mean(accuracies):.4f} | {error:.4f} | {spread([run.elapsed_s for run in runs])} |")
    pairs = list(zip(results["pipeline"], results["airbench"], strict=True))
    steps = spread([mine.elapsed_s / theirs.elapsed_s for mine, theirs in pairs])
    whole = spread([(mine.before_s + mine.elapsed_s) / theirs.elapsed_s for mine, theirs in pairs])
    lines += [f"| steps and scoring / airbench | | | {steps} |", f"| with setup / airbench | | | {whole} |"]
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun", description=__doc__)
    parser.add_argument("prepared", type=Path, help="the output folder of the stage `prepare`")
    parser.add_argument("--runs", type=int, default=20, help="number of counted runs of each, at least 2")
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("--runs: at least 2, because the table shows the spread")
    try:
        print(compared(arguments.prepared, arguments.runs))
    except Refusal as refusal:
        parser.error(str(refusal))


def compared(folder: Path, runs: int) -> str:
    machine, prepared = Machine.set_up(Environment.read()), Prepared.open(folder)
    refuse_unfit(prepared, machine)
    params = load(Document.read(PRESET), TrainParams)
    print(f"{machine.name}, torch {torch.__version__}, airbench {metadata.version('airbench')}, data {prepared.digest}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        write_for_airbench(prepared, Path(place) / "cifar10")
        return table(
            in_turn(
                {
                    "pipeline": lambda run: train_pipeline(params.model_copy(update={"seed": run}), prepared, machine),
                    "airbench": lambda run: train_airbench(run, Path(place)),
                },
                runs,
            )
        )


if __name__ == "__main__":
    main()
