"""The parameters in a model file that inference needs."""

from collections.abc import Mapping
from typing import Annotated, Any

from pipeline.params.model import ModelSettings
from pipeline.params.section import Section
from pipeline.registry import MODELS


class InferenceLoopSettings(Section):
    """The keys of the section `train` that inference needs."""

    deterministic: bool
    """Raise an error for operations whose result differs from run to run."""
    channels_last: bool
    """Use the channels-last memory format."""


class InferenceParams(Section):
    """The sections of `params.yaml` that inference needs. They are read from a model file, which also contains other sections.

    The other sections are not validated, so the model file may come from another version of this pipeline in which they differ.
    """

    model: Annotated[ModelSettings, MODELS]
    """The architecture: a module of `pipeline/models/`."""
    train: InferenceLoopSettings

    @classmethod
    def selected(cls, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of `params` that inference needs. `params` are all parameters that a model file records."""
        selected = {name: params[name] for name in cls.model_fields if name in params}
        if isinstance(model := selected.get("model"), Mapping):
            selected["model"] = {**model, "weights": None}  # a trained model needs no file that its training started from
        if isinstance(train := selected.get("train"), Mapping):
            selected["train"] = {name: train[name] for name in InferenceLoopSettings.model_fields if name in train}
        return selected
