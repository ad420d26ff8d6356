"""The model file: the weights and all metadata needed to rebuild, evaluate and verify the model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.core import untrusted
from pipeline.core.params import from_data, upgraded
from pipeline.core.refusal import Problem, Refusal, rewording
from pipeline.core.registry import MODELS
from pipeline.core.section import Section, Steps
from pipeline.core.spec import MOST_BYTES, Spec
from pipeline.inference import networks, tensor_file
from pipeline.inference.networks import Model, preprocessing
from pipeline.inference.params import ModelSettings
from pipeline.inference.precision import ChosenPrecision
from pipeline.inference.tensor_file import Tensors


class InferenceLoopSettings(Section):
    """The keys of the section `train` that inference needs."""

    deterministic: bool
    """Raise an error for operations whose result differs from run to run."""


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


HEADER_BYTES = MOST_BYTES
"""Size limit of a model file's header: enough for a tokenizer of 32 MiB, and for 10,000 tensor names and shapes, or as many class names."""
ChangeKey = Annotated[str, Field(pattern="^(step|micro_batch_size)$")]
RecordedChange = Annotated[dict[ChangeKey, Steps], Field(min_length=2)]


class Manifest(BaseModel):
    """The metadata of a model file. They record all that the weights depend on, such as the parameters, the data and the code.

    They contain no time, host name or absolute path. When a model file is opened, only the sections of `params` that inference needs are
    validated. The other sections may come from another version of this project.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["pipeline-model-2"] = "pipeline-model-2"
    params: dict[str, Any]
    """The sections of `params.yaml` that the stage `train` read for this model."""
    spec: Spec
    precision: ChosenPrecision
    channels_last: bool
    """True if the training used the channels-last memory format."""
    step: int
    """The step after which the weights were taken."""
    switches: list[RecordedChange] = Field(default_factory=list)
    """Changes of the micro-batch size after OOM. In each record, `micro_batch_size` applies from `step` on."""
    ended_at: int | None = Field(None, exclude_if=lambda step: step is None)
    """The step after which a non-finite value ended the training early, with `train.on_nonfinite: finish`. Left out of other files."""
    inputs: dict[str, str]
    """SHA-256 of the prepared data, the code and the lock file, by name; also of the file of `model.weights` (`weights`), if there is one."""
    fingerprint: dict[str, str | int | dict[str, str | int | None]]

    @model_validator(mode="before")
    @classmethod
    def add_channels_last(cls, data: Any) -> Any:
        """Take `channels_last` from the parameters if `data` lacks it, as files of earlier versions do."""
        with suppress(LookupError, TypeError):
            return {"channels_last": data["params"]["train"]["channels_last"], **data}
        return data

    @cached_property
    def inference(self) -> InferenceParams:
        """Return the parameters that inference needs. Keys that were added since the file was written have the values in `Section.ADDED`.

        Raises Refusal if the code of this checkout cannot build a model from them.
        """
        params, _ = upgraded(self.params, InferenceParams)
        return from_data(InferenceParams.selected(params), InferenceParams, "the model file")


def export(path: Path, weights: Tensors, manifest: Manifest) -> None:
    tensor_file.save(path, weights, manifest.model_dump(mode="json"))


def load(path: Path, *, complete: bool = False) -> tuple[Model, Manifest]:
    """Rebuild a model for inference, on the CPU, from its model file alone. Return the model and the metadata of the file.

    With `complete`, the model ends with the last layer of its task, if there is one (`networks.postprocessing`), as for predictions. Scores are those of
    the outputs of the network.

    Raises Refusal if the file is damaged, is not a model file, or describes a model that the code of this checkout cannot build.
    """
    weights, metadata = tensor_file.load(path, header_bytes=HEADER_BYTES)
    manifest = describe(metadata, path)
    model = rebuild(weights, manifest, path)
    if complete:
        model.postprocessing = networks.postprocessing(manifest.spec.targets)
    return model, manifest


def describe(metadata: Mapping[str, Any], path: Path) -> Manifest:
    """Convert `metadata`, read from the model file `path`, to a Manifest.

    Raises Refusal if the metadata is not a Manifest, or describes a model that the code of this checkout cannot build.
    """
    with refusing(path):
        manifest = Manifest.model_validate(metadata)
        _ = manifest.inference  # raises Refusal if this checkout cannot build a model from the parameters
        return manifest


def rebuild(weights: Tensors, manifest: Manifest, path: Path) -> Model:
    """Build the model of `manifest` with `weights`, for inference. `path` is used only in the error message.

    Raises Refusal if the code of this checkout cannot build the model, or if `weights` do not match it.
    """
    spec, bf16_weights = manifest.spec, manifest.precision == "bf16-true"
    with refusing(path):
        settings = manifest.inference.model
    try:
        with refusing(path):
            networks.compare(weights, settings, spec, bf16_weights=bf16_weights)
            model = Model(
                settings.build(spec),
                preprocessing(settings.normalized(spec.inputs), channels_last=manifest.channels_last),
                bf16_weights=bf16_weights,
                channels_last=manifest.channels_last,
            )
            networks.load(model.network, weights)
    except RuntimeError as error:
        raise Refusal(
            f"{path}: its weights do not match the model {settings.title} of this checkout ({untrusted.reason(error)}): train the model again with `dvc repro`"
        ) from None
    return model.eval().requires_grad_(False)


@contextmanager
def refusing(place: Path | str) -> Iterator[None]:
    """Within this context, turn pydantic's ValidationError into a Refusal, and begin each line of a Refusal with `place`, a file or a key."""
    try:
        with rewording(lambda problem: Problem.read(f"{place}: {problem}")):
            yield
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",) and str(first["input"]).startswith("pipeline-model-"):
            raise Refusal(
                f"{place}: has the format {untrusted.shown(first['input'], 30)} of another version of this pipeline: train the model again with `dvc repro`"
            ) from None
        what = untrusted.shown(f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}")
        raise Refusal(f"{place}: is not a model file of this pipeline ({what}): run `dvc repro`, or choose another file") from None
