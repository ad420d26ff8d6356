"""Run one stage as DVC does: read its own sections of params.yaml, and call it."""

from importlib import import_module

from pipeline.environment import Environment
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.load import load
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.paths import Paths

PARAMS = {"prepare": PrepareParams, "train": TrainParams, "evaluate": EvaluateParams}


def run(stage: str) -> None:
    """Bad parameters are refused before the stage's own module, and torch with it, is imported."""
    environment, paths = Environment.read(), Paths()
    params = load(paths.params, PARAMS[stage])
    function = getattr(import_module(f"pipeline.stages.{stage}"), stage)
    function(params, paths, environment)
