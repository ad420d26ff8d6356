"""Writes a comparison of options as a table, JSON and a figure."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.io import files
from pipeline.profiling import speedup
from pipeline.profiling.speedup import Row
from pipeline.reports.figures.canvas import BLUE, GREEN, INK, MUTED, VERMILION, figure

STEM = "speedup"


def write(folder: Path, rows: Sequence[Row], *, title: str, method: str, samples: int) -> None:
    """Write `speedup.md`, `speedup.json` and `speedup.png` to `folder`. `samples` is the number of samples of a step."""
    folder.mkdir(parents=True, exist_ok=True)
    on_gpu = any(row.peak_bytes is not None for row in rows)
    table = [*speedup.head(on_gpu=on_gpu), *(speedup.line(speedup.cells(row, samples), on_gpu=on_gpu) for row in rows)]
    files.write_text(folder / f"{STEM}.md", "\n".join([f"# {title}", "", *table, "", method, ""]))
    record = {"title": title, "method": method, "samples": samples, "options": [as_json(row) for row in rows]}
    files.write_text(folder / f"{STEM}.json", json.dumps(record, indent=1) + "\n")
    plot(folder / f"{STEM}.png", [row for row in rows if row.speed], title)


def as_json(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "step_s": row.step_s,
        "speed": row.speed and row.speed._asdict(),
        "peak_bytes": row.peak_bytes,
        "obstacle": row.obstacle,
    }


def plot(path: Path, rows: Sequence[Row], title: str) -> None:
    """Plot a bar for the speed of each row, with minimum and maximum of all rounds as a line."""
    with figure(path, 7, 1.2 + 0.34 * len(rows)) as canvas:
        axes = canvas.subplots()
        for position, row in enumerate(rows):
            assert row.speed
            colour = (
                GREEN if row.speed.least > 1 else VERMILION if row.speed.most < 1 else BLUE if row.name == speedup.CONFIGURED else MUTED
            )
            axes.barh(position, row.speed.median, color=colour, height=0.7)
            axes.plot([row.speed.least, row.speed.most], [position, position], color=INK, linewidth=1)
            axes.text(row.speed.most, position, f"  {row.speed.median:.2f}", va="center")
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.invert_yaxis()
        axes.axvline(1, color=INK, linewidth=0.6)
        axes.set_xlim(0, 1.12 * max(row.speed.most for row in rows if row.speed))
        axes.grid(visible=False, axis="y")
        canvas.supxlabel("speed relative to the training as configured (lines: from the slowest to the fastest round)", fontsize=9)
        canvas.suptitle(title)
