"""Gets what a measurement needs: the parameters of the training, the prepared data and the machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pipeline.params.load import adding_lines, load
from pipeline.params.train import TrainParams
from pipeline.params.yaml_document import Document
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment

if TYPE_CHECKING:
    from pipeline.data.prepared import Prepared
    from pipeline.runtime.machine import Machine


class Setup(NamedTuple):
    params: TrainParams
    prepared: "Prepared"
    machine: "Machine"


@contextmanager
def ready(paths: Paths, environment: Environment) -> Iterator[Setup]:
    """Validate the parameters, set up the machine and open the prepared data. A Refusal from the block is raised with lines of params.yaml.

    Only one process is measured. If the environment asks for several, a note on stderr says so. Raises Refusal like the stage `train`.
    """
    document = Document.read(paths.params)
    params = load(document, TrainParams)
    from pipeline.data.prepared import Prepared  # late: a typing error in params.yaml is reported before the import of torch
    from pipeline.runtime.machine import Machine, set_determinism

    if environment.processes != 1:
        print("note: PIPELINE_PROCESSES: one process with the whole batch is measured", file=sys.stderr)
    with adding_lines(document):
        machine = Machine.set_up(environment.model_copy(update={"local_world_size": 1}))
        set_determinism(params.train.deterministic)
        yield Setup(params, Prepared.open(paths.prepared), machine)


def refuse_steps_below_one(steps: int | None) -> None:
    """Raise Refusal if `steps`, the value of the option `--steps`, is below 1. None stands for the default."""
    if steps is not None and steps < 1:
        raise Refusal(f"--steps: is {steps}: write a number from 1 on")
