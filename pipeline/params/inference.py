"""The parameters of a model file that inference needs."""

from collections.abc import Mapping
from typing import Annotated, Any

from pipeline.params.model import ModelSettings
from pipeline.params.section import Section
from pipeline.registry import MODELS


class InferenceLoopSettings(Section):
    """The keys of the section `train` that inference needs."""

    deterministic: bool
    channels_last: bool


class InferenceParams(Section):
    """The sections of `params.yaml` that inference needs; the others may be those of another version of this pipeline."""

    model: Annotated[ModelSettings, MODELS]
    train: InferenceLoopSettings

    @classmethod
    def selected(cls, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what inference needs of the parameters that a training recorded."""
        train = params.get("train")
        known = {name: train[name] for name in InferenceLoopSettings.model_fields if name in train} if isinstance(train, Mapping) else train
        return {"model": params.get("model"), "train": known}
