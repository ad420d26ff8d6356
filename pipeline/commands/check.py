"""Refuse bad input before DVC deletes or runs anything."""

from collections.abc import Callable

from pydantic import BaseModel

from pipeline.environment import Environment
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.load import load
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.refusal import Refusal


def run() -> None:
    """Says what will run where, or everything that is wrong at once."""
    paths, problems = Paths(), Problems()
    environment = problems.gather(Environment.read)
    prepare, _, train = (problems.gather(reading(paths, params)) for params in (PrepareParams, EvaluateParams, TrainParams))
    if isinstance(prepare, PrepareParams):
        problems.gather(lambda: source_is_there(prepare))
    place = None
    if isinstance(train, TrainParams) and isinstance(environment, Environment):
        place = problems.gather(lambda: machine_can(train, environment))
    problems.refuse()
    assert isinstance(prepare, PrepareParams)
    assert isinstance(train, TrainParams)
    print(f"check: {paths.params} is fine: {train.model.name} on {prepare.source.name}, {place}")


class Problems:
    """What is wrong, line by line, each once."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def gather(self, attempt: Callable[[], object]) -> object:
        try:
            return attempt()
        except Refusal as refusal:
            self.lines |= dict.fromkeys(str(refusal).splitlines())
            return None

    def refuse(self) -> None:
        if self.lines:
            raise Refusal("\n".join(self.lines))


def reading(paths: Paths, params: type[BaseModel]) -> Callable[[], object]:
    return lambda: load(paths.params, params)


def source_is_there(params: PrepareParams) -> None:
    if not params.source.root.exists():
        raise Refusal(f"source.root: {params.source.root} does not exist: name the folder or archive that holds the data")


def machine_can(params: TrainParams, environment: Environment) -> str:
    """The device and precision that training would use."""
    from pipeline.engine import precision
    from pipeline.machine import Machine

    machine = Machine.claim(environment)
    used = precision.choose(params.train.precision, machine.device)
    return f"training on {machine.device} ({machine.name}) in {used}"
