"""`python -m pipeline profile`: run some steps of the training, and print how their time is spent."""

import os
from pathlib import Path

from pipeline.paths import Paths
from pipeline.profiling import setup
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment


def run(steps: int | None, trace: str | None, log_to_run: bool) -> None:
    """Print the shares of a step's time, a remedy, the heaviest operations and the memory.

    `steps` is the number of steps to time, or None for as many as take some seconds. `trace` is the path of a trace to write. With
    `log_to_run`, the profile becomes artifacts of the run that trained the model file. Nothing else is written. Raises Refusal if the
    parameters or the data are invalid, if `trace` is a folder, or if there is no such run.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library writes to stderr
    setup.refuse_steps_below_one(steps)
    if trace and Path(trace).is_dir():
        raise Refusal(f"--trace: {trace}: is a folder: add the name of a file, such as trace.json.gz")
    paths, environment = Paths(), Environment.read()
    with setup.ready(paths, environment) as (params, prepared, machine):
        from pipeline.profiling import profile, run_artifacts  # late: they take seconds to import

        if log_to_run:
            run_artifacts.refuse_other_run(params, prepared, paths, environment)
        result = profile.profile_training(params, prepared, machine, steps=steps)
        print("\n".join(result.lines()))
        if trace:
            result.traced.write(Path(trace))
            print(f"trace: {trace}: open it at https://ui.perfetto.dev")
        if log_to_run:
            print(f"profile: added to the run {run_artifacts.log(result, paths, environment)}, as artifacts below {run_artifacts.FOLDER}/")
