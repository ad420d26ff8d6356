"""`python -m pipeline STAGE`, the command of a stage in dvc.yaml: read its parameters, call it with its observer, and refuse its result if its inputs changed."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module

from pipeline.core import interruption
from pipeline.core.environment import Environment, Paths
from pipeline.core.identity import RefuseChanges, StageInputs, record_nothing, refuse_other_source
from pipeline.core.observer import Observer, unfailing
from pipeline.core.params import adding_lines, load
from pipeline.core.yaml_document import Document
from pipeline.tools import checkout_lock


def run(stage: str, paths: Paths | None = None, arguments: Sequence[str] = ()) -> int:
    """Run the stage, by default on the paths of the checkout, and return its exit code. It stops cleanly and raises Interrupted if a signal arrives, or if the DVC process that started the stage ends."""
    with interruption.raise_on_signal():
        interruption.start()
        return call(stage, paths or Paths(), arguments or [stage])


def call(stage: str, paths: Paths, arguments: Sequence[str]) -> int:
    """Validate the parameters, then import the stage's module, which may import torch, and call the stage. Return the exit code.

    If several processes train together, each runs `python -m pipeline ARGUMENTS`. If DVC runs the stage, raise Refusal at its end if its
    parameters, its code or its data were changed meanwhile.
    """
    environment = Environment.read()
    document = Document.read(paths.params)
    # before any code of the stage is imported: an edit after that would have no effect on the result
    began = StageInputs.read(stage, document.data, paths) if environment.dvc_stage else None
    refuse_changes: RefuseChanges = partial(began.refuse_changes, paths) if began else record_nothing
    # an exception of the signal handler would be lost in torch's C code, which imports numpy and discards any exception of this import
    with interruption.deferred() as interrupted:
        params = load(document, getattr(import_module(f"pipeline.{stage}.params"), f"{stage.capitalize()}Params"))
        function = getattr(import_module(f"pipeline.{stage}.stage"), stage)
    interrupted.pause()  # after the block: from its end on, a signal raises Interrupted

    def observer() -> Observer:
        from pipeline.runs.observer import StageObserver  # late: it imports torch

        return StageObserver(document.data, paths, environment)

    if stage != "prepare":
        from pipeline.prepare.params import PrepareParams  # late: it is the code of a stage

        source = load(document, PrepareParams).source
        with adding_lines(document):
            refuse_other_source(source, paths.prepared)
    with checkout_lock.held(environment.root) if environment.dvc_stage and not environment.is_rank else nullcontext():
        if stage == "train" and environment.processes != 1:
            from pipeline.tools import torchrun  # late: it imports torch

            if (count := torchrun.num_processes(environment)) > 1:
                return torchrun.run(["-m", "pipeline", *arguments], count, environment)
        with adding_lines(document):
            function(params, paths, environment, observer=unfailing(observer), refuse_changes=refuse_changes)
    return 0
