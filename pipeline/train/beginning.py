"""Builds the state of a training before its first step, with fresh weights or those of a file, and chooses its memory format and its forward pass."""

import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn

from pipeline.core import files, seeding, untrusted
from pipeline.core.prepared import Prepared, Split
from pipeline.core.refusal import Refusal, listed
from pipeline.core.spec import Spec
from pipeline.inference import model_file, networks, precision, tensor_file
from pipeline.inference.model_file import HEADER_BYTES
from pipeline.inference.networks import Model, described, preprocessing
from pipeline.inference.params import ModelSettings
from pipeline.inference.precision import ChosenPrecision
from pipeline.inference.tensor_file import Tensors
from pipeline.train import blocks
from pipeline.train.engine import checkpoint, optimizers
from pipeline.train.engine.checkpoint import PROGRESS
from pipeline.train.engine.state import TrainState
from pipeline.train.engine.step import Forward
from pipeline.train.group import sharding
from pipeline.train.group.processes import Group
from pipeline.train.params import LoopSettings, TrainParams

KEY = "model.weights"
MOST_NAMED = 5
SMALLEST_SHARE = 0.5
"""At least this share of the network's values must fit, if the file does not describe its model."""


def load_weights(network: nn.Module, model: ModelSettings, spec: Spec) -> frozenset[str]:
    """Copy the tensors that fit from the file of `model.weights` into `network`, and print how many.

    Returns the names of the other tensors of `network`, which keep their initial values. If `model.weights` is null, copies nothing and
    returns an empty set.

    A tensor of the file fits if `network` has a tensor of the same name and shape. A tensor that belongs to classes of other data does not
    fit (see `of_other_data`). `spec` describes the data for which `network` was built.

    Raises Refusal if the file is missing or damaged, if its model has another architecture, or if no tensor fits.
    """
    path = model.weights_file
    if path is None:
        return frozenset()
    with model_file.refusing(KEY):
        tensors, before = read_weights(path, model)
        adapted = adapt(tensors, model, spec, path) if before is None else None
        tensors = adapted or tensors
        own = network.state_dict()
        others = of_other_data(model, before, spec) if before else of_classes(model, spec) if adapted else set()
        fitting = {
            name: tensor for name, tensor in tensors.items() if name in own and tensor.shape == own[name].shape and name not in others
        }
        if before is None and adapted is None:
            refuse_misfit(tensors, fitting, own, model, path)
        if not fitting:
            raise Refusal(f"{path}: none of its tensors fits this {model.title}: choose another file, or write `weights: null`")
    networks.load(network, fitting, strict=False)
    untrained = frozenset(own.keys() - fitting.keys())
    print(f"train: {len(fitting)} of {len(own)} tensors start from {path}{remaining(untrained, tensors, own)}", flush=True)
    return untrained


def read_weights(path: Path, model: ModelSettings) -> tuple[Tensors, Spec | None]:
    """Return the tensors of the file or folder `path`, and the description of the data that its model was trained on.

    The description is None if the file was not written by this pipeline, as in a folder. From a checkpoint, the weights are taken that its
    training would have exported. Raises Refusal if a file is missing or damaged, or if it is a model file of another architecture than
    `model`.
    """
    if path.is_dir():
        return read_folder(path), None
    refuse_missing(path)
    foreign = tensor_file.load_foreign(path, header_bytes=HEADER_BYTES)
    if foreign is not None:
        return foreign, None
    tensors, metadata = tensor_file.load(path, header_bytes=HEADER_BYTES)
    if PROGRESS in metadata:
        tensors, metadata = checkpoint.as_model(tensors, metadata, path)
    manifest = model_file.describe(metadata, path)
    try:  # with the data of the file, so that only the architecture can differ
        networks.compare(tensors, model, manifest.spec, bf16_weights=manifest.precision == "bf16-true")
    except RuntimeError as error:
        its = manifest.inference.model.title
        raise Refusal(
            f"{path}: its model, {its}, has another architecture than this {model.title} ({untrusted.reason(error)}): "
            "copy the section `model` from the params.yaml with which its model was trained, or choose another file"
        ) from None
    return tensors, manifest.spec


def read_folder(folder: Path) -> Tensors:
    """Return the tensors of all files of weights in `folder`. Raises Refusal if there is none, or if one is damaged or a model file."""
    tensors: Tensors = {}
    for path in weights_files(folder):
        found = tensor_file.load_foreign(path, header_bytes=HEADER_BYTES)
        if found is None:
            raise Refusal(f"{path}: is a model file of this pipeline: write its path, not that of its folder")
        tensors |= found
    return tensors


def weights_files(path: Path) -> list[Path]:
    """Return the files of weights of `path`, a file or a folder. Raises Refusal if there is none."""
    found = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not found:
        raise Refusal(
            f"{path}: has no `.safetensors` file: copy the weights into it, and convert a pickle first, as docs/fine-tuning.md shows"
        )
    numbered = [match for match in (re.search(r"-(\d+)-of-(\d+)$", each.stem) for each in found) if match]
    if numbered and (len(numbered) < len(found) or {int(match[1]) for match in numbered} != {*range(1, int(numbered[0][2]) + 1)}):
        raise Refusal(
            f"{path}: has {len(numbered)} of the {int(numbered[0][2])} files of its weights, or others beside them: download it again"
        )
    for each in found:
        refuse_missing(each)
    return found


def adapt(tensors: Tensors, model: ModelSettings, spec: Spec, path: Path) -> Tensors | None:
    """Return what `model.adapted` returns. Raises Refusal if the tensors belong to another architecture. Random numbers are left as they are."""
    with torch.random.fork_rng(devices=[]):
        try:
            return model.adapted(tensors, spec)
        except Exception as error:  # libraries raise exceptions of many types for tensors that they do not expect
            raise Refusal(
                f"{path}: its tensors belong to another architecture than this {model.title} ({untrusted.reason(error)}): choose another file"
            ) from None


def of_other_data(model: ModelSettings, before: Spec, spec: Spec) -> set[str]:
    """Return the names of the tensors that have a part for each class or token, such as the head, if the classes or tokens are others.

    `before` describes the data of the file of `model.weights`, and `spec` the new data. These tensors must not be copied, even if their shapes are equal
    because both datasets have equally many classes or tokens. They are found by building the network for one more class or token.
    """
    names: set[str] = set()
    for part in ("inputs", "targets"):
        enlarged = getattr(before, part).enlarged_if_other(getattr(spec, part))
        if enlarged is not None:
            built = [networks.build_on_meta(model, data) for data in (before, before.model_copy(update={part: enlarged}))]
            shapes = [{name: tensor.shape for name, tensor in network.state_dict().items()} if network else {} for network in built]
            names |= {name for name, shape in shapes[0].items() if shape != shapes[1].get(name)}
    return names


def of_classes(model: ModelSettings, spec: Spec) -> set[str]:
    """Return the names of the tensors that have a part for each class. Published ones belong to other classes, also if these are as many."""
    more = spec.targets.enlarged_if_other(None) if spec.targets.form == "class" else None
    return of_other_data(model, spec, spec.model_copy(update={"targets": more})) if more else set()


def inspect(model: ModelSettings) -> Spec | None:
    """Return the description of the data on which the model in the file of `model.weights` was trained.

    Returns None if `model.weights` is null, or if the file was not written by this pipeline. Raises Refusal if the file is missing or
    damaged, or if its model has another architecture than `model`.
    """
    with model_file.refusing(KEY):
        return None if model.weights_file is None else read_weights(model.weights_file, model)[1]


def weights_digest(path: Path | None) -> str | None:
    """Return the SHA-256 of the file that `model.weights` names, or one digest of the files of weights in this folder; None for None.

    Raises Refusal if there is no such file.
    """
    if path is None:
        return None
    with model_file.refusing(KEY):
        digests = {each.name: files.digest(each) for each in weights_files(path)}
        return files.digest_of(digests) if path.is_dir() else digests[path.name]


def refuse_missing(path: Path) -> None:
    if not path.is_file():
        raise Refusal(
            f"{path}: is missing: copy the file to this path, or write `weights: null`; `python -m pipeline set model=timm:NAME` and "
            "`model=transformers:NAME` download it"
        )


def refuse_misfit(tensors: Tensors, fitting: Tensors, own: Tensors, model: ModelSettings, path: Path) -> None:
    """Raise Refusal if a file that was not written by this pipeline has the tensors of another architecture than the network.

    `tensors` are the tensors of the file, and `own` those of the network. `fitting` are the tensors of the file that can be copied. The
    architecture counts as the same if `tensors` and `own` have the same names, and if `fitting` covers at least the share SMALLEST_SHARE of
    the values in `own`.
    """
    share = sum(own[name].numel() for name in fitting) / max(1, sum(tensor.numel() for tensor in own.values()))
    if tensors.keys() != own.keys() or share < SMALLEST_SHARE:
        different = networks.differences(tensors, own)
        raise Refusal(f"{path}: its tensors belong to another architecture than this {model.title} ({different}): choose another file")


def remaining(untrained: Collection[str], tensors: Tensors, own: Tensors) -> str:
    """Return a text that names the tensors of the network that are not copied, with the reasons; "" if all are copied.

    `untrained` contains the names of these tensors. `tensors` are the tensors of the file, and `own` those of the network.
    """
    if not untrained:
        return ""
    names = [name for name in own if name in untrained]
    return f"; untrained, because the file lacks them or the data differ: {listed([f'{name} ({misfit(tensors.get(name), own[name])})' for name in names], MOST_NAMED)}"


def misfit(found: Tensor | None, own: Tensor) -> str:
    """Describe why a tensor of the file is not taken."""
    same = found is not None and found.shape == own.shape
    return "of other classes or tokens" if same else f"{described(found)} in the file, not {described(own)}"


def example_inputs(model: Model, split: Split, count: int) -> torch.Tensor:
    """Return `count` preprocessed inputs of `split`, or all inputs if the split has fewer.

    The inputs are evenly spaced over the split, because a source may be sorted by class.
    """
    count = min(count, len(split))
    rows = torch.arange(count) * len(split) // count
    preprocessed: torch.Tensor = model.preprocessing(torch.from_numpy(split.inputs[rows.numpy()]))
    return preprocessed


def begin_state(params: TrainParams, prepared: Prepared, device: torch.device, group: Group) -> TrainState:
    """Build the model, optimizer, gradient scaler and EMA, and return them as the state before the first step.

    The initial weights are drawn from the seed, or taken from the file of `model.weights`. Raises Refusal if the settings do not fit the
    data, the model or the machine.
    """
    settings, spec = params.train, prepared.spec
    networks.refuse_too_large(params.model, spec)
    chosen = precision.choose(settings.precision, device)
    precision.refuse_lost_updates(chosen, device)
    precision.warn_of_wrong_gradients(chosen, device, channels_last=settings.channels_last is True)
    lanes = sharding.choose(settings, group, chosen)
    seeding.reseed_host(params.seed, "weights")
    network = params.model.build(spec)
    channels_last = choose_channels_last(settings, network, chosen, device)
    model = Model(
        network,
        preprocessing(params.model.normalized(spec.inputs), channels_last=channels_last),
        bf16_weights=chosen == "bf16-true",
        channels_last=channels_last,
    )
    params.model.initialize_weights(network, partial(example_inputs, model, prepared.train))
    untrained = load_weights(network, params.model, spec)
    params.model.add_updates(network, untrained)
    if settings.freeze:
        model.frozen_norms = optimizers.freeze(network, settings.freeze, untrained=untrained)
        model.train()
        print(f"train: {optimizers.frozen_summary(network)}", flush=True)
    state = TrainState.begin(
        model,
        params.optimizer,
        precision=chosen,
        ema_decay=settings.ema_decay,
        device=device,
        skip_nonfinite=settings.on_nonfinite == "skip",
        lanes=lanes,
    )
    if params.optimizer.layer_decay is not None or params.optimizer.groups:
        print(f"train: {optimizers.rates_summary(network, state.optimizer, params.optimizer.learning_rate)}", flush=True)
    if settings.activation_checkpointing and not blocks.apply(model.network):
        raise Refusal(
            f"train.activation_checkpointing: the model {params.model.title} has no blocks whose activations can be recomputed: write `train.activation_checkpointing: false`"
        )
    return state


def choose_channels_last(settings: LoopSettings, network: nn.Module, precision: ChosenPrecision, device: torch.device) -> bool:
    """Return True for channels_last: the value of `train.channels_last`, or what `is_channels_last_faster` returns if the value is `auto`.

    With `train.sharding: full`, `auto` is False, because FSDP2 needs weights in contiguous order.
    """
    if settings.channels_last == "auto":
        return settings.sharding == "none" and is_channels_last_faster(network, precision, device)
    return settings.channels_last


def is_channels_last_faster(network: nn.Module, precision: ChosenPrecision, device: torch.device) -> bool:
    """Return True if channels_last is expected to make the steps of `network` faster.

    On a CPU, oneDNN's convolutions take about half the time in channels_last, but in 16 bits oneDNN computes wrong gradients of some
    depthwise ones (see `precision.warn_of_wrong_gradients`). On a GPU, tensor cores read channels_last, so convolutions in 16 bits profit.
    cuDNN divides a depthwise one into many kernels then; a captured step starts them at once, and takes 0.7 of the time for MobileNetV3. A
    network with a single convolution is no convolutional one: in a vision transformer, this layer only cuts the image into patches.
    """
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    if len(convolutions) < 2:
        return False
    if device.type == "cuda":
        return precision != "fp32"
    return precision == "fp32" or not any(layer.groups == layer.in_channels > 1 for layer in convolutions)


MODES = {"default": "default", "graphs": "reduce-overhead"}
MOST_COMPILED = 4096
"""Upper bound for how often the compiler compiles a function, for other sizes or another layer. Eight lengths and few micro-batch sizes are usual."""


def compiled(model: Model, requested: Literal["off", "default", "graphs"], *, lanes: int) -> Forward:
    """Return `model` compiled by torch.compile, or `model` itself if `requested` is "off".

    `requested` is the value of `train.compile`; "graphs" also uses CUDA graphs. `lanes` is the value of `train.lanes`. With several, the
    model is compiled as a whole, as in one process. With one, the compiler cuts it where a bucket of DDP ends, so that gradients are
    exchanged during the backward pass; the code on both sides of a cut rounds differently. The compiler makes separate code for each micro-batch size
    and for each length of padded samples. Code for dynamic sizes is not used: it would depend on which sizes the process ran before, and
    could round differently after a restart.
    """
    if requested == "off":
        return model
    from torch._dynamo import config  # late: it takes seconds

    # this call also sets inductor's own deterministic flag
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    # beyond its limit of 8, the compiler would run further sizes uncompiled: those that came late, which are others after a restart
    config.recompile_limit = config.accumulated_recompile_limit = MOST_COMPILED
    config.fail_on_recompile_limit_hit = True
    config.optimize_ddp = lanes == 1
    return cast("Forward", torch.compile(model, mode=MODES[requested], dynamic=False))
