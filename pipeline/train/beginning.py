"""Builds the state of a training before its first step, with fresh weights or those of a file."""

from functools import partial

import torch

from pipeline.core import seeding
from pipeline.core.prepared import Prepared, Split
from pipeline.core.refusal import Refusal
from pipeline.inference import networks, precision
from pipeline.inference.networks import Model, preprocessing
from pipeline.train import blocks
from pipeline.train.engine import parameter_groups, starting_weights
from pipeline.train.engine.state import TrainState
from pipeline.train.group import sharding
from pipeline.train.group.processes import Group
from pipeline.train.params import TrainParams


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

    The initial weights are drawn from the seed, or taken from the file of `model.weights`. Raises Refusal if the settings do not fit the data, the model or the machine.
    """
    settings, spec = params.train, prepared.spec
    networks.refuse_too_large(params.model, spec)
    chosen = precision.choose(settings.precision, device)
    precision.refuse_lost_updates(chosen, device)
    precision.warn_of_wrong_gradients(chosen, device, channels_last=settings.channels_last)
    lanes = sharding.choose(settings, group, chosen)
    seeding.reseed(torch.device("cpu"), params.seed, "weights")
    network = params.model.build(spec)
    model = Model(
        network,
        preprocessing(spec.inputs, channels_last=settings.channels_last),
        bf16_weights=chosen == "bf16-true",
        channels_last=settings.channels_last,
    )
    params.model.initialize_weights(network, partial(example_inputs, model, prepared.train))
    untrained = starting_weights.load(network, params.model, spec)
    if settings.freeze:
        model.frozen_norms = parameter_groups.freeze(network, settings.freeze, untrained=untrained)
        model.train()
        print(f"train: {parameter_groups.frozen_summary(network)}", flush=True)
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
        print(f"train: {parameter_groups.summary(network, state.optimizer, params.optimizer.learning_rate)}", flush=True)
    if settings.activation_checkpointing and not blocks.apply(model.network):
        raise Refusal(
            f"train.activation_checkpointing: the model {params.model.title} has no blocks whose activations can be recomputed: write `train.activation_checkpointing: false`"
        )
    return state
