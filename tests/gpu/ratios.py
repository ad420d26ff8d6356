"""Time the training loop of each preset beside a bare loop, in turn in one process: `python -m tests.gpu.ratios --modes eager captured`.

The data are random, and of the size of the preset's own. Each block of steps ends when the GPU has finished. A ratio is the time of a block
divided by that of the bare loop's block in the same round; the table shows the median over the rounds, the least and the greatest. The bare
loop (bare.py) is neither compiled nor captured. `captured` has `PIPELINE_GRAPHS=on`, `eager` and the compiled ones `off`. `like torch` is the same with torch's own choice of kernels: not deterministic, and tuned by cuDNN.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from pipeline.core.environment import CaptureMode, Environment
from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.inference.machine import Machine, set_determinism
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.params import TrainParams
from pipeline.train.training import Training
from tests import texts
from tests.conftest import preset
from tests.gpu.bare import bare_step
from tests.gpu.presets import PRESETS, images, words

BARE, LIKE_TORCH = "bare", "like torch"
MODES: dict[str, tuple[str, CaptureMode]] = {
    "eager": ("off", "off"),
    "captured": ("off", "on"),
    "compiled": ("default", "off"),
    "compiled, captured": ("default", "on"),
    "compile: graphs": ("graphs", "off"),
}
"""The values of `train.compile` and of PIPELINE_GRAPHS."""
WARM_UP = 12
"""Steps before the first block, in which kernels are chosen, compiled and captured as graphs."""
FAR = 10**6
"""Steps of the training: too many for one to be the last, or to be followed by a validation."""
DATA: dict[str, Callable[[], Prepared]] = {
    "digits": partial(images, (8, 8, 1), samples=1257),
    "cifar10": partial(images, (32, 32, 3), samples=48_000),
    "trec": partial(words, 40, texts.CLASSES, samples=4900),
    "shakespeare": partial(words, 128, None, samples=7800),
}
"""Random data by the beginning of the preset's name."""


@dataclass(frozen=True)
class Contestant:
    step: Callable[[], object]
    begin_block: Callable[[], object]
    """Sets torch's flags for this contestant."""

    def block(self, num_steps: int) -> float:
        """Return the seconds of so many steps."""
        self.begin_block()
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        for _ in range(num_steps):
            self.step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin_s


@cache
def data_of(kind: str) -> Prepared:
    return DATA[kind]()


def contestants(name: str, modes: list[str], machine: Machine, folder: Path, changes: dict[str, Any]) -> dict[str, Contestant]:
    """Return the bare loops and, for each of the MODES, the pipeline's loop. `changes` are made to the preset."""
    data = data_of(name.partition("-")[0])

    def training(mode: str = "eager") -> Training:
        compiled, graphs = MODES[mode]
        long = {"train.steps": FAR, "train.epochs": None, "train.validate_every_steps": FAR, "train.compile": compiled}
        params = from_data(preset(long | changes, name), TrainParams, name)
        return Training.begin(params, data, replace(machine, graphs=graphs), Checkpoints(folder, kept=1))

    flags = partial(set_determinism, preset({}, name)["train"]["deterministic"], training=True)
    found: dict[str, Contestant] = {}
    found[BARE] = Contestant(bare_step(training()), flags)
    found[LIKE_TORCH] = Contestant(bare_step(training()), partial(set_determinism, False, training=True))
    for mode in modes:
        flags()
        found[mode] = Contestant(partial(next, training(mode).reports()), flags)
    return found


def row(name: str, modes: list[str], machine: Machine, *, changes: dict[str, Any], rounds: int, block_s: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        running = contestants(name, modes, machine, Path(folder), changes)
        seconds: dict[str, list[float]] = {each: [] for each in running}
        for contestant in running.values():
            contestant.block(WARM_UP)
        num_steps = max(1, round(block_s * WARM_UP / running[BARE].block(WARM_UP)))
        for number in range(rounds):
            for each in running if number % 2 == 0 else reversed(running):
                seconds[each].append(running[each].block(num_steps))
    cells = [f"{1000 * statistics.median(seconds[BARE]) / num_steps:.3f}"]
    for each, blocks in seconds.items():
        if each != BARE:
            ratios = [ours / bare for ours, bare in zip(blocks, seconds[BARE], strict=True)]
            cells.append(f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.ratios", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager", "captured"])
    parser.add_argument("--changes", type=json.loads, default={}, help='changes to the presets as JSON: {"train.precision": "fp32"}')
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-s", type=float, default=0.4, help="duration of a block of the bare loop in seconds")
    arguments = parser.parse_args()
    os.environ["PIPELINE_DEVICE"] = "cuda"
    try:
        machine = Machine.set_up(Environment.read())
    except Refusal as refusal:
        sys.exit(f"error: {refusal}")
    modes = arguments.modes
    print(f"| preset | {BARE}, ms a step | {' | '.join([LIKE_TORCH, *modes])} |", f"|{' --- |' * (len(modes) + 3)}", sep="\n")
    for name in arguments.presets:
        print(row(name, modes, machine, changes=arguments.changes, rounds=arguments.rounds, block_s=arguments.block_s), flush=True)


if __name__ == "__main__":
    main()
