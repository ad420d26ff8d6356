"""Maps each stage to the sections of `params.yaml` that it reads."""

from pydantic import BaseModel

from pipeline.params.evaluate import EvaluateParams
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams

STAGE_PARAMS: dict[str, type[BaseModel]] = {"prepare": PrepareParams, "train": TrainParams, "evaluate": EvaluateParams}
