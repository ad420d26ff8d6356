"""Refuse bad input before DVC deletes or runs anything."""

import re
from collections.abc import Callable
from typing import TypeVar

from pipeline import dvc_locks
from pipeline.collection import TEST, TRAIN, VALID
from pipeline.environment import Environment
from pipeline.params.document import Document
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.load import glance, load, placed
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.refusal import Refusal

Found = TypeVar("Found")


def run() -> None:
    """Says what will run where, or everything that is wrong at once."""
    paths, problems = Paths(), Problems()
    for mended in dvc_locks.mend(paths.top / ".dvc/tmp"):
        print(f"check: {mended}")
    environment = problems.gather(Environment.read)
    document = problems.gather(lambda: Document.read(paths.params))
    plan = look_over(document, environment, problems) if document else None
    problems.refuse()
    print(f"check: {paths.params} is fine: {plan}")


class Problems:
    """What is wrong, line by line, each once."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def gather(self, attempt: Callable[[], Found]) -> Found | None:
        try:
            return attempt()
        except Refusal as refusal:
            self.lines |= dict.fromkeys(str(refusal).splitlines())
            return None

    def refuse(self) -> None:
        if self.lines:
            raise Refusal("\n".join(sorted(self.lines, key=line_number)))


def line_number(text: str) -> int:
    """Of a problem, for the order of the file; what is said of no line comes first."""
    number = re.match(r"[^:=]+:(\d+): ", text)
    return int(number[1]) if number else 0


def look_over(document: Document, environment: Environment | None, problems: Problems) -> str:
    """What would run where. Raises Refusal for all that is wrong without torch before that is imported, which takes seconds."""
    prepare = problems.gather(lambda: load(document, PrepareParams))
    train = problems.gather(lambda: glance(document, TrainParams))
    evaluate = problems.gather(lambda: load(document, EvaluateParams))
    if prepare:
        problems.gather(lambda: dataset_is_usable(prepare, train, evaluate, document))
    problems.refuse()
    assert prepare
    assert train
    assert environment
    problems.gather(lambda: load(document, TrainParams))
    place = problems.gather(lambda: machine_can(train, environment, document))
    return f"{document.data['model']['name']} on {prepare.source.name}, {place}"


def dataset_is_usable(prepare: PrepareParams, train: TrainParams | None, evaluate: EvaluateParams | None, document: Document) -> None:
    """What names and targets alone can tell of files of the user's own; of published data, only that its place is there."""
    from pipeline.stages import prepare as stage  # late: a typing error is said without numpy

    try:
        if prepare.source.foreign:
            collection, assigned = stage.survey(prepare, workers=1)
            num_classes: int | None = len(collection.classes)
            splits = {str(name) for names in assigned.values() for name in names}
        else:
            stage.refuse_missing_root(prepare.source)
            num_classes = prepare.source.num_classes()
            splits = {TRAIN, TEST} | ({VALID} if prepare.source.valid else set())
        if train:
            train.train.refuse_missing_validation(splits)
        if evaluate and num_classes is not None:
            evaluate.evaluate.refuse_rank_beyond(num_classes)
    except Refusal as refusal:
        raise placed(document, refusal) from None


def machine_can(params: TrainParams, environment: Environment, document: Document) -> str:
    """The device and precision that training would use."""
    from pipeline.engine import precision  # late: torch takes seconds, and a typing error is said without it
    from pipeline.machine import Machine

    machine = Machine.claim(environment)
    try:
        used = precision.choose(params.train.precision, machine.device)
    except Refusal as refusal:
        raise placed(document, refusal) from None
    return f"training on {machine.device} ({machine.name}) in {used}"
