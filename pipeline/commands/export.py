"""`python -m pipeline export`: write a model as a program for other runtimes, once its outputs were found equal to those of the model."""

import sys
from pathlib import Path

from pipeline.paths import Paths
from pipeline.runtime.environment import Environment


def run(subject: str, format: str, output: str | None) -> int:  # noqa: A002  # the names of the command line
    """Write a model to a file in another format. Print the path of this file, and the largest difference between its outputs and those of
    the model.

    `subject` is the path of a model file, a run, or the address of a model in MLflow. `format` is "onnx", "pt2" or "aoti". `output` is the
    path to write. If it is None, the file is written beside the model file or, for a run or a model in MLflow, in `models/`. Returns 0; but
    returns 1 and writes no file if an output differs by more than the tolerance (TOLERANCE), or if the file cannot be run.
    """
    from pipeline.export import exporting  # late: torch takes seconds to import, and `--help` does not need it
    from pipeline.tracking import model_source

    paths, environment = Paths(), Environment.read()
    try:
        with model_source.located(subject, paths, environment) as model:
            # a model of MLflow is in a temporary folder, and that of a run in its journal
            beside = model if Path(subject).is_file() else paths.model
            target = Path(output) if output else exporting.default_output(beside, format)
            for line in exporting.export(model, format, target, paths, environment):
                print(f"export: {line}", flush=True)
    except exporting.Unequal as unequal:
        print(f"error: {unequal}", file=sys.stderr)
        return 1
    return 0
