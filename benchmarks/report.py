"""Write the measurements as a table, a JSON file and a figure."""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.job import Job
from benchmarks.worker import Block

FLOOR = "floor"


@dataclass(frozen=True)
class Measurement:
    """The results for one model: the blocks of each loop, and its mean loss and memory."""

    job: Job
    blocks: dict[str, list[Block]]
    results: dict[str, dict[str, Any]]


def ratios(measurement: Measurement, loop: str, base: tuple[str, ...] = (FLOOR,), spent: str = "elapsed_s") -> tuple[float, float, float]:
    """Return median, minimum and maximum over rounds of the time of a loop's block, divided by the summed time of the bases' blocks."""
    taken = {name: [getattr(block, spent) for block in blocks] for name, blocks in measurement.blocks.items()}
    shares = [
        own / sum(others) if sum(others) else math.nan for own, *others in zip(taken[loop], *(taken[name] for name in base), strict=True)
    ]
    return statistics.median(shares), min(shares), max(shares)


def table(measurement: Measurement) -> str:
    job = measurement.job
    lines = [
        f"{job.model}: {job.rounds} rounds of {job.block_steps} steps of {job.batch_size}",
        "",
        f"| {'loop':27} | ms a step | / floor | minimum | maximum | CPU time / floor | images/s | MB | loss |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for loop, blocks in measurement.blocks.items():
        step_s = statistics.median(block.elapsed_s for block in blocks) / job.block_steps
        median, least, most = ratios(measurement, loop)
        loss = measurement.results[loop]["loss"]
        lines.append(
            f"| {loop:27} | {1000 * step_s:.2f} | {median:.3f} | {least:.3f} | {most:.3f} | {ratios(measurement, loop, spent='processor_s')[0]:.3f} "
            f"| {job.batch_size / step_s:,.0f} | {measurement.results[loop]['megabytes']:,.0f} | {'' if loss is None else f'{loss:.3f}'} |"
        )
    if "data" in measurement.blocks:
        for spent, name in (("elapsed_s", "time"), ("processor_s", "CPU time")):
            median, least, most = ratios(measurement, "pipeline", (FLOOR, "data"), spent)
            lines += ["", f"pipeline / (floor + data), {name}: {median:.3f} ({least:.3f} to {most:.3f})"]
    return "\n".join([*lines, ""])


def machine() -> dict[str, Any]:
    """Return the fingerprint of the machine, without its host name."""
    from pipeline.core.environment import Environment
    from pipeline.inference.machine import Machine

    return Machine.set_up(Environment.read()).fingerprint()


def write(path: Path, measurements: list[Measurement]) -> None:
    """Write `path` with the suffixes .json, .md and .png."""
    models = {
        measurement.job.model: {
            "batch_size": measurement.job.batch_size,
            "block_steps": measurement.job.block_steps,
            "blocks": {loop: [block._asdict() for block in blocks] for loop, blocks in measurement.blocks.items()},
            "results": measurement.results,
        }
        for measurement in measurements
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({"machine": machine(), "models": models}, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(map(table, measurements)), encoding="utf-8")
    plot(path.with_suffix(".png"), measurements)


def plot(path: Path, measurements: list[Measurement]) -> None:
    """Plot one bar per loop and model: its speed relative to the floor, with minimum and maximum as a line."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(
        1, len(measurements), figsize=(3.4 * len(measurements), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, measurement in zip(all_axes[0], measurements, strict=True):
        loops = [loop for loop in measurement.blocks if loop not in (FLOOR, "data")]
        for position, loop in enumerate(loops):
            median, least, most = ratios(measurement, loop)
            axes.barh(position, 1 / median, color="tab:blue" if loop.startswith("pipeline") else "lightgray")
            axes.plot([1 / most, 1 / least], [position, position], color="black", linewidth=1)
        axes.set_yticks(range(len(loops)), loops)
        axes.set(title=measurement.job.model, xlim=(0, 1.1))
        axes.axvline(1, color="black", linewidth=0.5)
    all_axes[0][0].invert_yaxis()  # once: the axes share y
    figure.supxlabel("speed relative to the floor")
    figure.savefig(path, dpi=120)
