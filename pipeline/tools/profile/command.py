"""`profile`: how the time of a step is spent. `speedup`: which options make steps faster. `fit-batch`: which micro-batch fits."""

import os
import time
from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.core.params import adding_lines, load
from pipeline.core.paths import Paths
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.tools.profile import timing
from pipeline.train.params import TrainParams


def run(steps: int | None, trace: str | None, log_to_run: bool) -> None:
    """Print the shares of a step's time, a remedy, the heaviest operations and the memory.

    `steps` is the number of steps to time, or None for as many as take some seconds. `trace` is the path of a trace to write. With
    `log_to_run`, the profile becomes artifacts of the run that trained the model file. Nothing else is written. Raises Refusal if the
    parameters or the data are invalid, if `trace` is a folder, or if there is no such run.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library writes to stderr
    timing.refuse_steps_below_one(steps)
    if trace and Path(trace).is_dir():
        raise Refusal(f"--trace: {trace}: is a folder: add the name of a file, such as trace.json.gz")
    paths, environment = Paths(), Environment.read()
    with timing.ready(paths, environment) as (params, prepared, machine):
        from pipeline.tools.profile import profile, run_artifacts  # late: they take seconds to import

        if log_to_run:
            run_artifacts.refuse_other_run(params, prepared, paths, environment)
        result = profile.profile_training(params, prepared, machine, steps=steps)
        print("\n".join(result.lines()))
        if trace:
            result.traced.write(Path(trace))
            print(f"trace: {trace}: open it at https://ui.perfetto.dev")
        if log_to_run:
            print(f"profile: added to the run {run_artifacts.log(result, paths, environment)}, as artifacts below {run_artifacts.FOLDER}/")


def run_speedup(steps: int | None, output: str | None) -> None:
    """Print a table of the training as configured and of each option, and how it was measured.

    `steps` is the number of steps of a block, or None for as many as take half a second. `output` is a folder for the table, its numbers as
    JSON and a figure; if it is None, nothing is written. Raises Refusal if the parameters or the data are invalid, or if `output` is no folder.
    """
    timing.refuse_steps_below_one(steps)
    if output and Path(output).exists() and not Path(output).is_dir():
        raise Refusal(f"--output: {output}: is not a folder: give another path")
    with timing.ready(Paths(), Environment.read()) as (params, prepared, machine):
        from pipeline.tools.profile import speedup  # late: it takes seconds to import

        samples, rows = params.train.batch_size, []
        title = f"{params.model.title} on {machine.device} ({machine.name})"
        on_gpu = machine.device.type == "cuda"
        print("\n".join([title, *speedup.head(on_gpu=on_gpu)]))
        start_s, start_wait_s = time.perf_counter(), timing.cpu_wait_s()
        for row in speedup.compare_options(params, prepared, machine, steps=steps):
            print(speedup.line(speedup.cells(row, samples), on_gpu=on_gpu), flush=True)
            rows.append(row)
        note = timing.note((timing.cpu_wait_s() - start_wait_s) / (time.perf_counter() - start_s))
        method = "\n\n".join(filter(None, (speedup.method(params, machine.device), note)))
        print(f"\n{method}")
        faster = speedup.always_faster(rows)
        print(f"\nFaster here in every round: {faster}." if faster else "\nNo option was faster in every round.")
        if output:
            from pipeline.tools.profile import speedup

            speedup.write(Path(output), rows, title=title, method=method, samples=samples)
            print(f"speedup: written to {output}")


def run_fit_batch() -> None:
    """Print a table of micro-batch sizes, the effect of another size on BatchNorm and dropout, and the command that writes the proposed size
    to params.yaml.

    The sizes divide the batch, so that all micro-batches are equal. Raises Refusal if the parameters or the data are invalid, or if no size
    fits in memory.
    """
    document = Document.read(Paths().params)
    params = load(document, TrainParams)
    from pipeline.tools.profile import fit_batch  # late: it takes seconds to import

    with adding_lines(document):
        print("\n".join(fit_batch.measure_sizes(params.train).lines()))
