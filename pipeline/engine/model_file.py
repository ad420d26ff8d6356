"""The model file: the weights and all metadata needed to rebuild, evaluate and verify the model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipeline.engine import meta_model, precision
from pipeline.engine.classifier import Classifier
from pipeline.io import tensor_file, untrusted
from pipeline.io.tensor_file import Tensors
from pipeline.params.load import from_data
from pipeline.params.section import Steps
from pipeline.params.train import TrainParams
from pipeline.refusal import Refusal
from pipeline.spec import Spec

HEADER_BYTES = 2 * 2**20
"""Limit on the header: enough for about 15,000 tensor names and shapes, or as many class names."""
SwitchKey = Annotated[str, Field(pattern="^(step|micro_batch_size)$")]
SwitchRecord = Annotated[dict[SwitchKey, Steps], Field(min_length=2)]


class Manifest(BaseModel):
    """The metadata of a model file: everything that determines the bytes of the weights, and no time, path or host name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["pipeline-model-1"] = "pipeline-model-1"
    params: dict[str, Any]
    spec: Spec
    precision: precision.Used
    step: int
    """The step after which the weights were taken."""
    switches: list[SwitchRecord] = Field(default_factory=list)
    """Changes of the micro-batch size after OOM: `micro_batch_size` applies from `step` on."""
    inputs: dict[str, str]
    """SHA-256 of the prepared data, the code and the lock file."""
    fingerprint: dict[str, str | int | dict[str, str]]

    @field_validator("params")
    @classmethod
    def are_those_of_train(cls, params: dict[str, Any]) -> dict[str, Any]:
        if not params.keys() <= TrainParams.model_fields.keys():
            raise ValueError(f"has sections beside {', '.join(TrainParams.model_fields)}")
        return params

    @property
    def train_params(self) -> TrainParams:
        return from_data(self.params, TrainParams, "the model file")


def export(path: Path, weights: Tensors, manifest: Manifest) -> None:
    tensor_file.save(path, weights, manifest.model_dump(mode="json"))


def load(path: Path) -> tuple[Classifier, Manifest]:
    """Rebuild the model from the file alone, on the CPU, for inference. Raises Refusal where the file is damaged or no model file."""
    weights, metadata = tensor_file.load(path, header_bytes=HEADER_BYTES)
    manifest = describe(metadata, path)
    return rebuild(weights, manifest, path), manifest


def describe(metadata: Mapping[str, Any], path: Path) -> Manifest:
    """Validate the metadata. Raises Refusal where it is no Manifest or holds parameters that this checkout cannot train with."""
    with refusing(path):
        manifest = Manifest.model_validate(metadata)
        _ = manifest.train_params  # raises for parameters that this checkout cannot train with
        return manifest


def rebuild(weights: Tensors, manifest: Manifest, path: Path) -> Classifier:
    """Build the model with these weights, for inference. Raises Refusal where the weights do not fit the model."""
    params, half = manifest.train_params, manifest.precision == "bf16-true"
    try:
        with refusing(path):
            meta_model.compare(weights, params.model, manifest.spec, half=half)
            network = params.model.build(manifest.spec)
            classifier = Classifier(network, manifest.spec, channels_last=params.train.channels_last, half=half)
            classifier.network.load_state_dict(weights)
    except RuntimeError as error:
        raise Refusal(
            f"{path}: its weights do not fit the model {params.model.title} of this checkout: {untrusted.reason(error)}"
        ) from None
    return classifier.eval().requires_grad_(False)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn validation errors into Refusals, and prefix each line of a Refusal with the path of the file."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        what = untrusted.shown(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        raise Refusal(f"{path}: was not written by this pipeline, or is no model file ({what}): run `dvc repro`, or name another") from None
    except Refusal as refusal:
        raise Refusal("\n".join(f"{path}: {line}" for line in str(refusal).splitlines())) from None
