"""Write the measurements as a table, a JSON file and a figure."""

import json
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.__main__ import Measured

FLOOR = "floor"


def ratios(measured: "Measured", way: str, base: tuple[str, ...] = (FLOOR,), spent: str = "elapsed_s") -> tuple[float, float, float]:
    """Return median, minimum and maximum over rounds of the time of a way's block, divided by the summed time of the bases' blocks."""
    taken = {name: [getattr(block, spent) for block in blocks] for name, blocks in measured.blocks.items()}
    found = [
        own / sum(others) if sum(others) else math.nan for own, *others in zip(taken[way], *(taken[name] for name in base), strict=True)
    ]
    return statistics.median(found), min(found), max(found)


def table(measured: "Measured") -> str:
    job = measured.job
    lines = [
        f"{job.model}: {job.rounds} rounds of {job.block_steps} steps of {job.batch_size}",
        "",
        f"| {'way':27} | ms a step | times floor | from | to | times floor's processor time | images/s | MB | loss |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, blocks in measured.blocks.items():
        step_s = statistics.median(block.elapsed_s for block in blocks) / job.block_steps
        median, least, most = ratios(measured, way)
        loss = measured.said[way]["loss"]
        lines.append(
            f"| {way:27} | {1000 * step_s:.2f} | {median:.3f} | {least:.3f} | {most:.3f} | {ratios(measured, way, spent='processor_s')[0]:.3f} "
            f"| {job.batch_size / step_s:,.0f} | {measured.said[way]['megabytes']:,.0f} | {'' if loss is None else f'{loss:.3f}'} |"
        )
    if "data" in measured.blocks:
        for spent, name in (("elapsed_s", "time"), ("processor_s", "processor time")):
            median, least, most = ratios(measured, "pipeline", (FLOOR, "data"), spent)
            lines += ["", f"pipeline by floor + data, {name}: {median:.3f} ({least:.3f} to {most:.3f})"]
    return "\n".join([*lines, ""])


def machine() -> dict[str, Any]:
    """Return the fingerprint of the machine, without its host name."""
    from pipeline.runtime.environment import Environment
    from pipeline.runtime.machine import Machine

    return Machine.claim(Environment.read()).fingerprint()


def write(path: Path, found: list["Measured"]) -> None:
    """Write `path` with the suffixes .json, .md and .png."""
    models = {
        measured.job.model: {
            "batch_size": measured.job.batch_size,
            "block_steps": measured.job.block_steps,
            "blocks": {way: [block._asdict() for block in blocks] for way, blocks in measured.blocks.items()},
            "said": measured.said,
        }
        for measured in found
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({"machine": machine(), "models": models}, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(map(table, found)), encoding="utf-8")
    draw(path.with_suffix(".png"), found)


def draw(path: Path, found: list["Measured"]) -> None:
    """Plot one bar per way and model: its speed relative to the bare loop, with minimum and maximum as a line."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, len(found), figsize=(3.4 * len(found), 3.6), sharey=True, squeeze=False, layout="constrained")
    for axes, measured in zip(all_axes[0], found, strict=True):
        ways = [way for way in measured.blocks if way not in (FLOOR, "data")]
        for place, way in enumerate(ways):
            median, least, most = ratios(measured, way)
            axes.barh(place, 1 / median, color="tab:blue" if way.startswith("pipeline") else "lightgray")
            axes.plot([1 / most, 1 / least], [place, place], color="black", linewidth=1)
        axes.set_yticks(range(len(ways)), ways)
        axes.set(title=measured.job.model, xlim=(0, 1.1))
        axes.axvline(1, color="black", linewidth=0.5)
    all_axes[0][0].invert_yaxis()  # once: the axes share y
    figure.supxlabel("share of the bare loop's speed")
    figure.savefig(path, dpi=120)
