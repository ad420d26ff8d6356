"""Run one stage, as dvc.yaml does: read its sections of params.yaml and call it."""

from contextlib import nullcontext
from importlib import import_module

from pipeline.params.document import Document
from pipeline.params.load import load, with_lines
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime import checkout_lock, interruption, parent_watch
from pipeline.runtime.environment import Environment


def run(stage: str) -> None:
    """Run the stage. A signal, or the end of DVC, stops it cleanly with Interrupted."""
    with interruption.raise_on_signal():
        parent_watch.start()
        call(stage)


def call(stage: str) -> None:
    """Validate the parameters before importing the stage's module, which may import torch, then call it."""
    environment, paths = Environment.read(), Paths()
    document = Document.read(paths.params)
    params = load(document, getattr(import_module(f"pipeline.params.{stage}"), f"{stage.capitalize()}Params"))
    function = getattr(import_module(f"pipeline.stages.{stage}"), stage)
    with checkout_lock.held(environment.root) if environment.dvc_stage else nullcontext():
        try:
            function(params, paths, environment, **({} if stage == "prepare" else {"sections": document.data}))
        except Refusal as refusal:
            raise with_lines(document, refusal) from None
