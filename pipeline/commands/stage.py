"""`python -m pipeline STAGE`, the command of a stage in dvc.yaml: read the stage's sections of params.yaml and call the stage."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module

from pipeline.params.load import adding_lines, load
from pipeline.params.yaml_document import Document
from pipeline.paths import Paths
from pipeline.runtime import checkout_lock, interruption, parent_watch
from pipeline.runtime.environment import Environment
from pipeline.stages.stage_inputs import RefuseChanges, StageInputs, record_nothing


def run(stage: str, paths: Paths | None = None, arguments: Sequence[str] = ()) -> int:
    """Run the stage, by default on the paths of the checkout, and return its exit code. It stops cleanly and raises Interrupted if a signal arrives, or if the DVC process that started the stage ends."""
    with interruption.raise_on_signal():
        parent_watch.start()
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
        params = load(document, getattr(import_module(f"pipeline.params.{stage}"), f"{stage.capitalize()}Params"))
        function = getattr(import_module(f"pipeline.stages.{stage}"), stage)
    interrupted.pause()  # after the block: from its end on, a signal raises Interrupted
    with checkout_lock.held(environment.root) if environment.dvc_stage and not environment.is_rank else nullcontext():
        if stage == "train" and environment.processes != 1:
            launch = import_module("pipeline.runtime.launch")  # no import of this module: it decides nothing in a result
            if (count := launch.num_processes(environment)) > 1:
                return int(launch.run(["-m", "pipeline", *arguments], count, environment))
        with adding_lines(document):
            sections = {} if stage == "prepare" else {"sections": document.data}
            function(params, paths, environment, **sections, refuse_changes=refuse_changes)
    return 0
