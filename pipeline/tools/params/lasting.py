"""Suits a recommended training to a machine without a GPU, and says how long it takes."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.core.inputs.image import ImageInputs
from pipeline.core.inputs.text import NUM_BYTES, NUM_SPECIAL, TextInputs, TokenizerDescription
from pipeline.core.inputs.text_pair import TextPairInputs
from pipeline.core.params import load
from pipeline.core.raw_dataset import TRAIN
from pipeline.core.spec import Inputs, Spec
from pipeline.core.tasks.language_modeling import NextTokenTargets
from pipeline.core.yaml_document import Document
from pipeline.inference import machine
from pipeline.prepare.pairs import PairSettings
from pipeline.prepare.params import PrepareParams
from pipeline.tools import training_time
from pipeline.tools.params.data import Finding
from pipeline.tools.params.recommending import num_models, num_samples
from pipeline.train.params import TrainParams

ENOUGH_S = 600.0
"""Without a GPU, a first training is to end within about this time."""
LEAST = 0.5
"""A faster model is taken before the training gets shorter than this share of what is recommended."""
Write = Callable[[int, int | None], str]
"""Returns the text of params.yaml for the number of a model, from the best to the fastest, and a largest number of epochs or steps."""


def suited(finding: Finding, write: Write, environment: Environment, *, own_model: bool) -> tuple[str, list[str]]:
    """Return the text of params.yaml for a first training on this machine, and lines about its time.

    With a GPU, the text is `write(0, None)`. Without, it is that of the best model whose training ends within ENOUGH_S seconds on a nominal
    CPU: the same data give the same parameters on every machine without a GPU. If `own_model` is True, the user has chosen the model, and only
    the training gets shorter. The time in the lines is measured here.
    """
    write = cache(write)
    text = write(0, None)
    if machine.choose_device(environment.device).type != "cpu":
        return text, []
    samples = num_samples(finding)
    for model in range(1 if own_model else num_models(finding)):
        text = write(model, None)
        params, spec = described(text, finding)
        cost = training_time.counted(params, spec)
        share = ENOUGH_S / cost.training_s(params, samples) if cost else 1.0
        if share >= LEAST:
            break
    length = params.train.epochs or params.train.num_steps(samples[TRAIN])
    if share < 1:
        text = write(model, max(1, round(share * length)))
        params, spec = described(text, finding)
    seconds = training_time.expected_s(params, spec, samples, environment)
    return text, [] if seconds is None else lines(params, seconds)


def lines(params: TrainParams, seconds: float) -> list[str]:
    """Return what to say about a training of so many seconds on a CPU."""
    found = [f"without a GPU, the training takes {training_time.in_words(seconds)} on this machine"]
    if seconds > 2 * ENOUGH_S:
        key, length = ("epochs", params.train.epochs) if params.train.epochs else ("steps", params.train.steps or 1)
        enough = int(length * ENOUGH_S / seconds)
        shorter = (
            f"train.{key}={enough} ends in about ten minutes" if enough else "not even one epoch ends in ten minutes: leave out samples"
        )
        found.append(f"{shorter}, or train on a machine with a GPU")
    return found


def described(text: str, finding: Finding) -> tuple[TrainParams, Spec]:
    """Return the parameters in `text`, and what `prepare` would say of the data, as far as it counts for the time of a training."""
    document = Document.of(text, Path("params.yaml"))
    source = load(document, PrepareParams).source
    side, channels = finding.image_shape
    inputs: Inputs
    if finding.inputs:
        inputs = finding.inputs
    elif side:
        side = getattr(source, "image_size", side)
        common = (0.5,) * channels
        inputs = ImageInputs(height=side, width=side, channels=channels, mean=common, std=common)
    else:
        num_tokens = getattr(source, "vocabulary", None) or NUM_SPECIAL + NUM_BYTES
        tokenizer = TokenizerDescription.model_construct(kind="word", vocabulary=tuple(map(str, range(num_tokens - NUM_SPECIAL))))
        length = getattr(source, "max_length", 1)
        if isinstance(source, PairSettings):
            inputs = TextPairInputs(length=length, target_length=source.target_length, tokenizer=tokenizer)
        else:
            inputs = TextInputs(length=length, tokenizer=tokenizer)
    return load(document, TrainParams), Spec(inputs=inputs, targets=finding.task or NextTokenTargets())
