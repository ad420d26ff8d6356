"""Gets what a measurement needs: the parameters of the training, the prepared data and the machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pipeline.params.load import load, with_lines
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
    """Validate the parameters, claim the machine and open the prepared data. A Refusal from the block is raised with lines of params.yaml.

    Only one process is measured. If the environment asks for several, a note on stderr says so. Raises Refusal like the stage `train`.
    """
    document = Document.read(paths.params)
    params = load(document, TrainParams)
    from pipeline.data.prepared import Prepared  # late: a typing error in params.yaml is reported before the import of torch
    from pipeline.runtime import machine

    if environment.processes != 1:
        print("note: PIPELINE_PROCESSES: one process with the whole batch is measured", file=sys.stderr)
    try:
        claimed = machine.Machine.claim(environment.model_copy(update={"local_world_size": 1}))
        machine.set_determinism(params.train.deterministic)
        yield Setup(params, Prepared.open(paths.prepared), claimed)
    except Refusal as refusal:
        raise with_lines(document, refusal) from None


def refuse_below(option: str, number: int | None, least: int = 1) -> None:
    """Raise Refusal if `number`, the value of the command line's `option`, is below `least`. None stands for the default."""
    if number is not None and number < least:
        raise Refusal(f"{option}: is {number}: write a number from {least} on")
