"""`profile`: how the time of a step is spent. With `--speedup`: which options make steps faster."""

import os
import sys
from pathlib import Path

from pipeline.core.environment import Environment, Paths
from pipeline.core.params import adding_lines, load
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.train.params import TrainParams


def run(*, steps: int | None, trace: str | None, speedup: bool) -> None:
    """Print the shares of a step's time, a remedy and the heaviest operations.

    With `speedup`, instead print a table of the training as configured and of each option.

    `steps` is the number of steps to time (with `speedup`: of a block), or None for as many as take some time. `trace` is the path of a trace
    to write. Nothing else is written. Raises Refusal if the parameters, the data or the options are invalid.
    """
    if steps is not None and steps < 1:
        raise Refusal(f"--steps: is {steps}: write 1 or more")
    if trace and speedup:
        raise Refusal("profile: --trace has no meaning with --speedup: leave it out")
    if trace and Path(trace).is_dir():
        raise Refusal(f"--trace: {trace}: is a folder: add the name of a file, such as trace.json.gz")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library writes to stderr
    paths, environment = Paths(), Environment.read()
    document = Document.read(paths.params)
    params = load(document, TrainParams)
    if environment.processes != 1:
        print("note: PIPELINE_PROCESSES: one process with the whole batch is measured", file=sys.stderr)
    with adding_lines(document):
        from pipeline.tools.profile.trial import set_up  # late, like the others: they import torch, which takes seconds

        prepared, machine = set_up(params, paths, environment)
        if speedup:
            from pipeline.tools.profile.speedup import print_comparison

            print_comparison(params, prepared, machine, steps=steps)
            return
        from pipeline.tools.profile.profile import profile_training

        result = profile_training(params, prepared, machine, steps=steps, trace=Path(trace) if trace else None)
        print("\n".join(result.lines()))
        if trace:
            print(f"trace: {trace}: open it at https://ui.perfetto.dev")
