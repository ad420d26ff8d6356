"""Measure how well `prepare` uses the CPU cores: its rate divided by (cores x the rate of one thread that only decodes and resizes).

    python -m benchmarks.prepare

It creates JPEGs of two sizes in a temporary folder, which needs half a gigabyte. The two rates are measured in turn; the output is the
median of all rounds, with minimum and maximum. A value of 1.0 means that every core decodes all the time. The second share is the CPU
time of decoding alone divided by the CPU time of the stage. It depends little on other load of the machine, and the
first share cannot exceed it for long.
"""

import contextlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from pipeline.core import limits

ROUNDS = 5
CLASSES, DIFFERENT = 2, 50


@dataclass(frozen=True)
class Case:
    name: str
    images: int
    width: int
    height: int
    goal: int
    """Side in pixels of the square to which each image is resized."""


class Spent(NamedTuple):
    """Wall-clock seconds, and CPU seconds of all threads and child processes."""

    elapsed_s: float
    processor_s: float


CASES = (Case("photos", 1600, 500, 375, 224), Case("small images", 60_000, 32, 32, 32))


def main() -> None:
    cores = limits.usable_cpus()
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            files = make(Path(folder) / "images", case)
            rounds = [measure(files, Path(folder), case) for _ in range(ROUNDS)]
        busy = shown([alone.elapsed_s / stage.elapsed_s / cores for alone, stage in rounds])
        decoding = shown([alone.processor_s / stage.processor_s for alone, stage in rounds])
        size = f"{case.width}x{case.height} to {case.goal}"
        print(f"{case.name}: {case.images} of {size}: {busy} of {cores} cores; {decoding} of the CPU time", flush=True)


def shown(shares: Sequence[float]) -> str:
    return f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"


def make(folder: Path, case: Case) -> list[Path]:
    """Write JPEGs with about the detail of photographs: copies of a few different images."""
    random = np.random.default_rng(0)
    originals = [random_image(random, case) for _ in range(DIFFERENT)]
    files: list[Path] = []
    for number in range(case.images):
        path = folder / str(number % CLASSES) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < DIFFERENT:
            originals[number].save(path, quality=90)
        else:
            path.write_bytes(files[number % DIFFERENT].read_bytes())
        files.append(path)
    return files


def random_image(random: np.random.Generator, case: Case) -> Image.Image:
    coarse = Image.fromarray(random.integers(0, 256, (case.height // 16 + 2, case.width // 16 + 2, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((case.width, case.height), Image.Resampling.BICUBIC)).astype(np.int64)
    return Image.fromarray((smooth + random.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8))


def measure(files: list[Path], top: Path, case: Case) -> tuple[Spent, Spent]:
    """Run one round; return the time of decoding alone on one thread, and that of the stage."""
    alone = spent(lambda: decode_and_resize(files, case.goal))
    return alone, spent(lambda: run_stage(files[0].parents[1], top, case.goal))


def spent(work: Callable[[], None]) -> Spent:
    elapsed_s, before_s = time.perf_counter(), processor_s()
    work()
    return Spent(time.perf_counter() - elapsed_s, processor_s() - before_s)


def processor_s() -> float:
    """Return the CPU seconds so far of this process and its terminated children."""
    return sum(os.times()[:4])


def decode_and_resize(files: list[Path], size: int) -> None:
    """Decode and resize on one thread: the minimal work of any preparation."""
    for path in files:
        with Image.open(path) as image:
            image.draft(None, (2 * size, 2 * size))
            ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)


def run_stage(root: Path, top: Path, size: int) -> None:
    from pipeline.core.environment import (
        Environment,  # late: each worker process of the stage imports this file when it starts
        Paths,
    )
    from pipeline.core.params import from_data
    from pipeline.prepare.params import PrepareParams
    from pipeline.prepare.stage import prepare

    source = {
        "name": "image_folder",
        "root": str(root),
        "valid": 0.1,
        "test": 0.1,
        "seed": 1,
        "folds": None,
        "fold": 0,
        "duplicates": "keep",
        "image_size": size,
        "channels": 3,
    }
    params = from_data({"source": {**source, "on_corrupt": "fail", "max_pixels": 10**8, "white": None}}, PrepareParams, "benchmark")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        prepare(params, Paths(top), Environment())


if __name__ == "__main__":
    main()
