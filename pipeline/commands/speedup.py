"""`python -m pipeline speedup`: compare the steps of the training with each option that could make them faster."""

import time
from pathlib import Path

from pipeline.paths import Paths
from pipeline.profiling import cpu_contention, setup
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment


def run(steps: int | None, output: str | None) -> None:
    """Print a table of the training as configured and of each option, and how it was measured.

    `steps` is the number of steps of a block, or None for as many as take half a second. `output` is a folder for the table, its numbers as
    JSON and a figure; if it is None, nothing is written. Raises Refusal if the parameters or the data are invalid, or if `output` is no folder.
    """
    setup.refuse_steps_below_one(steps)
    if output and Path(output).exists() and not Path(output).is_dir():
        raise Refusal(f"--output: {output}: is not a folder: give another path")
    with setup.ready(Paths(), Environment.read()) as (params, prepared, machine):
        from pipeline.profiling import speedup  # late: it takes seconds to import

        samples, rows = params.train.batch_size, []
        title = f"{params.model.title} on {machine.device} ({machine.name})"
        on_gpu = machine.device.type == "cuda"
        print("\n".join([title, *speedup.head(on_gpu=on_gpu)]))
        start_s, start_wait_s = time.perf_counter(), cpu_contention.cpu_wait_s()
        for row in speedup.compare_options(params, prepared, machine, steps=steps):
            print(speedup.line(speedup.cells(row, samples), on_gpu=on_gpu), flush=True)
            rows.append(row)
        note = cpu_contention.note((cpu_contention.cpu_wait_s() - start_wait_s) / (time.perf_counter() - start_s))
        method = "\n\n".join(filter(None, (speedup.method(params, machine.device), note)))
        print(f"\n{method}")
        faster = speedup.always_faster(rows)
        print(f"\nFaster here in every round: {faster}." if faster else "\nNo option was faster in every round.")
        if output:
            from pipeline.profiling import speedup_report

            speedup_report.write(Path(output), rows, title=title, method=method, samples=samples)
            print(f"speedup: written to {output}")
