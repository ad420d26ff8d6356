"""Count what a training step of a parameter file computes, moves and exchanges, on torch's meta device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from pipeline.core.params import from_data
from pipeline.core.refusal import Refusal
from pipeline.core.registry import SOURCES
from pipeline.core.spec import Spec, Targets
from pipeline.core.tokenizer_description import NUM_SPECIAL, TokenizerDescription
from pipeline.core.yaml_document import Document
from pipeline.inference import networks, precision
from pipeline.inputs.image.description import ImageInputs
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.params import PrepareParams, SourceSettings
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.train import blocks
from pipeline.train.engine import optimizers
from pipeline.train.params import TrainParams

PRESETS = Path(__file__).parents[1] / "presets"
IMAGE_SHAPES = {"digits": (8, 8, 1), "cifar": (32, 32, 3)}
CLASSES = 10
"""Number of classes where only the data determine it. It changes the result little."""
WITHOUT_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view"}
BILLION = {"width": 2048, "depth": 18, "heads": 16}
BILLION_TEXTS = {"vocabulary": 32_768, "max_length": 2048}


@dataclass(frozen=True)
class Work:
    """What a step computes and exchanges. A pass is the forward and backward pass of one micro-batch."""

    name: str
    batch_size: int
    micro_batch_size: int
    sample_flops: float
    sample_bytes: float
    """Memory traffic of a sample in a pass."""
    pass_bytes: float
    """Memory traffic of a pass that does not depend on its samples, such as reading the weights."""
    kernels: float
    """Kernels of a pass."""
    num_weights: int
    gradient_bytes: int
    blocks: int


class Operations(TorchDispatchMode):
    """Counts the kernels that run in it, their FLOPs and their memory traffic."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.flops, self.moved_bytes = 0, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        packet = function.overloadpacket
        if not function.is_view and packet.__name__ not in WITHOUT_KERNEL:
            self.kernels += 1
            self.moved_bytes += sum(leaf.nbytes for leaf in pytree.tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor))
            if packet in flop_registry:
                self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        return out


def count(network: nn.Module, spec: Spec, samples: int) -> Operations:
    """Count the operations of a forward and backward pass of `samples` samples through `network`, which is on the meta device."""
    if isinstance(spec.inputs, ImageInputs):
        height, width, channels = spec.inputs.row_shape
        inputs = torch.empty(samples, channels, height, width, dtype=torch.bfloat16, device="meta")
    else:
        inputs = torch.empty(samples, *spec.inputs.row_shape, dtype=torch.int64, device="meta")
    network.zero_grad()
    with Operations() as operations:
        outputs = network(inputs).flatten(0, -2).float()
        nn.functional.cross_entropy(outputs, torch.empty(len(outputs), dtype=torch.int64, device="meta")).backward()
    return operations


def work_of(name: str, params: TrainParams, spec: Spec) -> Work:
    """Count what a step computes and exchanges. Raises Refusal for a precision whose speed is not assumed here."""
    if params.train.precision not in ("auto", "bf16", "bf16-true"):
        raise Refusal(f"{name}: train.precision: the calculation is for bf16, not {params.train.precision}: write auto, bf16 or bf16-true")
    network = networks.build_on_meta(params.model, spec)
    if network is None:
        raise Refusal(f"{name}: model.name: this network cannot be built without memory, so its operations cannot be counted")
    optimizers.freeze(network, params.train.freeze)
    full = trained_bytes(network)
    precision.to_bf16(network)
    two, four = count(network, spec, 2), count(network, spec, 4)
    sample_bytes = (four.moved_bytes - two.moved_bytes) / 2
    return Work(
        name,
        params.train.batch_size,
        params.train.micro_batch_size,
        sample_flops=two.flops / 2,
        sample_bytes=sample_bytes,
        pass_bytes=two.moved_bytes - 2 * sample_bytes,
        kernels=two.kernels,
        num_weights=sum(parameter.numel() for parameter in network.parameters()),
        gradient_bytes=trained_bytes(network) if params.train.precision == "bf16-true" else full,
        blocks=len(blocks.blocks(network)),
    )


def trained_bytes(network: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in network.parameters() if parameter.requires_grad)


def calculated_presets() -> list[Path]:
    """Return the presets whose work can be calculated without `make setup-hub`, the files of a pretrained model, the columns of a table, and pairs."""
    named = {path: Document.read(path).data for path in sorted(PRESETS.glob("*.yaml"))}
    return [
        path
        for path, data in named.items()
        if data["model"]["name"] not in ("timm", "transformers")
        and SOURCES.settings(data["source"]["name"]).inputs not in ("table", "text_pair")
    ]


def spec_of(source: SourceSettings, name: str) -> Spec:
    """Return the description of data as `source` prepares them. Raises Refusal if only the data determine the shape of their inputs."""
    classes = [str(number) for number in range(source.num_classes() or CLASSES)]
    targets: Targets = NextTokenTargets() if source.targets_kind == "language_modeling" else ClassTargets(classes=tuple(classes))
    settings = source.model_dump()
    if source.inputs == "text":
        words = tuple(map(str, range(settings["vocabulary"] - NUM_SPECIAL)))
        texts = TextInputs(length=settings["max_length"], tokenizer=TokenizerDescription(kind="word", vocabulary=words))
        return Spec(inputs=texts, targets=targets)
    if "image_size" in settings:
        height, width, channels = settings["image_size"], settings["image_size"], settings["channels"]
    elif source.name in IMAGE_SHAPES:
        height, width, channels = IMAGE_SHAPES[source.name]
    else:
        raise Refusal(f"{name}: source.name: the shape of the inputs of {source.name} is not known here: add it to IMAGE_SHAPES")
    inputs = ImageInputs(height=height, width=width, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)
    return Spec(inputs=inputs, targets=targets)


def work_of_data(name: str, data: dict[str, Any]) -> Work:
    """Count the work of the parameters `data`. Raises Refusal if they are invalid."""
    sections = [{key: data[key] for key in kind.model_fields if key in data} for kind in (TrainParams, PrepareParams)]
    params, prepare = from_data(sections[0], TrainParams, name), from_data(sections[1], PrepareParams, name)
    return work_of(name, params, spec_of(prepare.source, name))


def billion() -> dict[str, Any]:
    """Return the parameters of a transformer of a billion weights with batches of a million tokens, as GPT-3 XL had."""
    data: dict[str, Any] = Document.read(PRESETS / "code-transformer.yaml").data
    model, source = {**data["model"], **BILLION}, {**data["source"], **BILLION_TEXTS}
    return {**data, "model": model, "source": source, "train": {**data["train"], "batch_size": 512, "micro_batch_size": 8}}
