"""A training step without the pipeline, for comparison."""

from collections.abc import Callable

import torch

from pipeline.inference import precision
from pipeline.train.training import Training


def bare_step(training: Training) -> Callable[[], None]:
    """Return a function that makes one step of a loop without the pipeline, always on the first batch of `training`.

    It has the network, precision, loss, gradient scaler, clipping and optimizer of `training`, and no metrics, no EMA and no augmentation.
    """
    state, settings = training.state, training.params.train
    assert settings.micro_batch_size == settings.batch_size
    part = next(next(training.batches(0)).parts(settings.micro_batch_size))
    inputs = state.model.preprocessing(part.inputs)
    inputs = precision.as_bf16(inputs) if state.model.bf16_weights else inputs
    assert part.targets is not None
    targets = part.targets if part.targets.is_floating_point() else part.targets.flatten()

    def step() -> None:
        state.optimizer.zero_grad()
        with precision.autocast(state.precision, state.device):
            outputs = state.model.network(inputs).flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=training.params.loss.label_smoothing)
        state.scaler.scale(loss).backward()
        state.scaler.unscale_(state.optimizer)
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(state.parameters, settings.clip_norm)
        state.scaler.step(state.optimizer)
        state.scaler.update()

    return step
