"""Run one stage as DVC does: read its own sections of params.yaml, and call it."""

from importlib import import_module

from pydantic import BaseModel

from pipeline.environment import Environment
from pipeline.params.document import Document
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.load import load, placed
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.refusal import Refusal

PARAMS: dict[str, type[BaseModel]] = {"prepare": PrepareParams, "train": TrainParams, "evaluate": EvaluateParams}


def run(stage: str) -> None:
    """Bad parameters are refused before the stage's own module, and torch with it, is imported."""
    environment, paths = Environment.read(), Paths()
    document = Document.read(paths.params)
    params = load(document, PARAMS[stage])
    function = getattr(import_module(f"pipeline.stages.{stage}"), stage)
    try:
        function(params, paths, environment)
    except Refusal as refusal:
        raise placed(document, refusal) from None
