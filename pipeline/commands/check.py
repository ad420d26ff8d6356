"""Refuse bad input before DVC deletes or runs anything."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pipeline.io.untrusted import shown
from pipeline.params.document import Document
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.load import glance, load, placed
from pipeline.params.model import ModelSettings
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.raw_dataset import TEST, TRAIN, VALID
from pipeline.refusal import Refusal
from pipeline.runtime import checkout_lock, dvc_locks, interruption
from pipeline.runtime.environment import Environment

Found = TypeVar("Found")


def run() -> None:
    """Says what will run where, or everything that is wrong at once."""
    paths, problems = Paths(), Problems()
    if dvc_locks.records(temporary := paths.top / ".dvc/tmp"):  # otherwise nothing is written, which may be forbidden here
        with checkout_lock.held(paths.top):
            for said in dict.fromkeys(dvc_locks.mend(temporary)):
                print(f"check: {said}")
    problems.gather(lambda: refuse_unfit_path(paths.top))
    environment = problems.gather(Environment.read)
    document = problems.gather(lambda: Document.read(paths.params))
    plan = look_over(document, environment, problems) if document else None
    problems.refuse()
    print(f"check: {paths.params} is fine: {plan}")


def refuse_unfit_path(top: Path) -> None:
    """Raises Refusal for a checkout whose path ends every `dvc repro` after its first stage."""
    path = str(top.resolve())
    if "{" in path or "}" in path:
        raise Refusal(f"{shown(path)}: this path has a curly brace, which DVC takes for a format: move the checkout to a path without")


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
    if prepare and (found := problems.gather(lambda: placing(document, lambda: dataset(prepare)))):
        splits, num_classes = found
        if train:
            problems.gather(lambda: placing(document, lambda: train.train.refuse_missing_validation(splits)))
        if evaluate and num_classes is not None:
            problems.gather(lambda: placing(document, lambda: evaluate.evaluate.refuse_rank_beyond(num_classes)))
    problems.refuse()
    assert prepare
    assert train
    assert environment
    chosen = problems.gather(lambda: load(document, TrainParams))
    place = problems.gather(lambda: machine_can(train, environment, document))
    problems.refuse()  # before anything is downloaded
    assert chosen
    with interruption.raised():  # SIGTERM too removes what is half downloaded
        problems.gather(lambda: placing(document, lambda: fetch_data(prepare)))
        problems.gather(lambda: placing(document, lambda: fetch_weights(chosen.model)))
    return f"{chosen.model.title} on {prepare.source.name}, {place}"


def placing(document: Document, attempt: Callable[[], Found]) -> Found:
    """With the line of the file in front of what is refused."""
    try:
        return attempt()
    except Refusal as refusal:
        raise placed(document, refusal) from None


def dataset(prepare: PrepareParams) -> tuple[set[str], int | None]:
    """Returns splits and number of classes: of the user's own files as names and targets tell them, of published data without reading it."""
    from pipeline.stages import prepare as stage  # late: a typing error is said without numpy

    if not prepare.source.untrusted:
        stage.refuse_missing_root(prepare.source)
        return {TRAIN, TEST} | ({VALID} if prepare.source.valid else set()), prepare.source.num_classes()
    collection, assigned = stage.survey(prepare, workers=1)
    return {str(name) for names in assigned.values() for name in names}, len(collection.classes)


def fetch_data(prepare: PrepareParams) -> None:
    """Opens a published dataset where `prepare` would run, which downloads what is missing. Raises Refusal, with the remedy, where that fails."""
    from pipeline.stages import prepare as stage

    if prepare.source.downloaded and would_run("prepare"):
        stage.survey(prepare, workers=1)


def fetch_weights(model: ModelSettings) -> None:
    """Reads what the model begins with where `train` would run, and downloads what is missing. Raises Refusal, with the remedy, where that fails."""
    if model.downloaded and would_run("train"):
        model.fetch()


def would_run(stage: str) -> bool:
    """Returns whether DVC would run the stage or one before it; True where DVC cannot tell."""
    command = [sys.executable, "-m", "dvc", "status", "--json", "--with-deps", stage]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.returncode != 0 or answer.stdout.strip() != "{}"


def machine_can(params: TrainParams, environment: Environment, document: Document) -> str:
    """The device and precision that training would use."""
    from pipeline.engine import precision  # late: torch takes seconds, and a typing error is said without it
    from pipeline.runtime.machine import Machine

    machine = Machine.claim(environment)
    used = placing(document, lambda: precision.choose(params.train.precision, machine.device))
    placing(document, lambda: precision.refuse_lost_updates(used, machine.device))
    return f"training on {machine.device} ({machine.name}) in {used}"
