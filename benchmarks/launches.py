"""Plot the operations that the host launches in a step of each preset, eager and captured: `python -m benchmarks.launches`.

The numbers are those of tests/gpu/fake/launches.csv, in bf16.
"""

import csv
from pathlib import Path

from pipeline.evaluate.reports.figures.canvas import BLUE, MUTED, figure

TABLE = Path(__file__).parents[1] / "tests/gpu/fake/launches.csv"
FIGURE = Path(__file__).parents[1] / "docs/images/launches.png"


def main() -> None:
    rows = [row for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()) if row["precision"] == "bf16"]
    rows.sort(key=lambda row: int(row["pipeline"]))
    with figure(FIGURE, width=8, height=4.2) as canvas:
        axes = canvas.subplots()
        for position, row in enumerate(rows):
            for name, offset, colour in (("pipeline", 0.2, MUTED), ("captured", -0.2, BLUE)):
                launches = int(row[name])
                axes.barh(position + offset, launches, height=0.36, color=colour, label=name if position == 0 else None)
                axes.text(launches, position + offset, f" {launches:,}", va="center", fontsize=8)
        axes.set_xscale("log")
        axes.set_xlim(1, 10_000)
        axes.set_yticks(range(len(rows)), [row["preset"] for row in rows])
        axes.grid(visible=False, axis="y")
        axes.legend(["eager", "captured as CUDA graphs"], loc="lower right")
        canvas.supxlabel("operations that the host launches in a step (logarithmic)", fontsize=9)


if __name__ == "__main__":
    main()
