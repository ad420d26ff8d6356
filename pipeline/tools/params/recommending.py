"""Chooses the parameters with which a first training on data of the user's own should do well, from what `data.look` has found.

Without a GPU, they suit the machine, and the time that the training takes is measured.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.core.params import load
from pipeline.core.raw_dataset import TRAIN, VALID
from pipeline.core.registry import INPUTS, TASKS
from pipeline.core.spec import Spec
from pipeline.core.tokenizer_description import NUM_BYTES, NUM_SPECIAL, TokenizerDescription
from pipeline.core.yaml_document import Document
from pipeline.inference import machine
from pipeline.prepare.params import PrepareParams
from pipeline.tools import training_time
from pipeline.tools.params.cell_values import IDEOGRAPHS, share
from pipeline.tools.params.commented_yaml import on_one_line
from pipeline.tools.params.findings import Finding
from pipeline.tools.params.images import LARGE
from pipeline.train.params import TrainParams

FEW = 1000
"""With fewer samples, larger shares are split off for validation and test."""
UNEVEN = 3
"""Classes are uneven if the most frequent one has so many times the samples of the rarest."""
SMALLEST_FOR_RESNET = 24
ROW = 128
SMALLER = 128
"""The side in pixels to which large images are resized for the fastest model."""


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
    for model in range(1 if own_model or not finding.image_shape[0] else len(models(finding))):
        text = write(model, None)
        params, spec = params_and_spec(text, finding)
        cost = training_time.counted(params, spec)
        share = ENOUGH_S / cost.training_s(params, samples) if cost else 1.0
        if share >= LEAST:
            break
    if share < 1:
        length = params.train.epochs or params.train.num_steps(samples[TRAIN])
        text = write(model, max(1, round(share * length)))
        params, spec = params_and_spec(text, finding)
    seconds = training_time.expected_s(params, spec, samples, environment)
    return text, [] if seconds is None else time_lines(params, seconds)


def time_lines(params: TrainParams, seconds: float) -> list[str]:
    """Return what to say about a training of so many seconds on a CPU."""
    found = [f"without a GPU, the training takes {training_time.in_words(seconds)} on this machine"]
    if seconds > 2 * ENOUGH_S:
        key, length = ("epochs", params.train.epochs) if params.train.epochs else ("steps", params.train.steps or 1)
        enough = int(length * ENOUGH_S / seconds)
        too_long = "not even one epoch ends in ten minutes: leave out samples"
        shorter = f"train.{key}={enough} ends in about ten minutes" if enough else too_long
        found.append(f"{shorter}, or train on a machine with a GPU")
    return found


def params_and_spec(text: str, finding: Finding) -> tuple[TrainParams, Spec]:
    """Return the parameters in `text`, and what `prepare` would say of the data, as far as it counts for the time of a training."""
    document = Document.of(text, Path("params.yaml"))
    source = load(document, PrepareParams).source
    channels, side = finding.image_shape[1], getattr(source, "image_size", finding.image_shape[0])
    common = (0.5,) * channels
    num_tokens = getattr(source, "vocabulary", None) or NUM_SPECIAL + NUM_BYTES
    tokenizer = TokenizerDescription.model_construct(kind="word", vocabulary=tuple(map(str, range(num_tokens - NUM_SPECIAL))))
    shape = {"height": side, "width": side, "channels": channels, "mean": common, "std": common} if side else {"tokenizer": tokenizer}
    example = source.example_inputs(INPUTS.module(source.inputs).Inputs.example())
    inputs = finding.inputs or example.model_copy(update=shape)
    return load(document, TrainParams), Spec(inputs=inputs, targets=finding.task or TASKS.module(source.targets_kind).Targets.example())


def num_samples(finding: Finding) -> dict[str, int]:
    """Return about how many samples train and valid will have. Those of a corpus are rows of ROW characters."""
    if finding.source["name"] == "text":
        return {TRAIN: finding.num_samples // ROW, VALID: finding.num_samples // (20 * ROW)}
    shares = 1.0 if VALID in finding.splits else 0.8
    return {TRAIN: round(shares * finding.num_samples), VALID: round(0.15 * finding.num_samples)}


def recommendation(finding: Finding, model: int = 0, most: int | None = None) -> tuple[str, list[str]]:
    """Return the name of the preset to begin with, and the assignments `KEY=VALUE` in which the parameters differ from it.

    `model` is the number of the model, from the best to the fastest. `most` is the largest number of epochs, or of the steps of a corpus.
    """
    source = {key: str(value) if isinstance(value, Path) else value for key, value in finding.source.items()}
    values = {"source": source.pop("name"), **{f"source.{key}": value for key, value in source.items()}}
    if finding.source["name"] == "text":
        return "shakespeare-transformer", written({"source.max_length": ROW, **values} | ({"train.steps": most} if most else {}))
    if finding.num_samples < FEW:
        values |= {"source.valid": 0.15, "source.test": 0.2}
    if finding.source["name"] == "text_pairs":
        values |= {"model.width": 128, "model.dropout": 0.1, "optimizer.learning_rate": 1e-3}
        return "dates-transformer", written(values | of_length(num_samples(finding)[TRAIN], large=False, texts=False, most=most))
    if finding.texts and finding.source["tokenizer"] in ("character", "byte") and share(finding.texts, IDEOGRAPHS) < 0.5:
        values["model.max_n"] = 4  # a pair of ideographs is a word, but a pair of letters is not
    values |= {} if finding.texts or finding.inputs else models(finding)[model]
    preset = "trec-ngrams" if finding.texts else "table" if finding.inputs else "image-folder"
    large, texts = finding.image_shape[0] > LARGE, bool(finding.texts)
    values |= of_length(num_samples(finding)[TRAIN], large=large, texts=texts, rows=finding.inputs is not None, most=most)
    if finding.inputs:  # a network is soon overfitted to few rows, and the loss tells more than the accuracy of few
        values |= {"train.metric": "valid/loss", "train.export_weights": "best"}
    counts = finding.class_counts
    if not counts:
        assert finding.task is not None
        values |= finding.task.recommended
        return preset, written(values)
    if not finding.inputs and max(counts) >= UNEVEN * max(1, min(counts)):
        values |= {"train.metric": "valid/macro_f1", "train.export_weights": "best"}
    values["evaluate.top_k"] = min(3, max(1, len(counts) - 1))
    return preset, written(values)


def models(finding: Finding) -> list[dict[str, object]]:
    """Return the values for images, from the best to the fastest model: small networks for small images, else pretrained ones."""
    side, _ = finding.image_shape
    if side > LARGE:
        small: dict[str, object] = {"augment.flip": "none", "model.architecture": "mobilenet_v3_small", "model.pretrained": "IMAGENET1K_V1"}
        smaller = [] if finding.source["name"] == "arrays" else [{**small, "source.image_size": SMALLER, "augment.crop_padding": 8}]
        return [{"augment.flip": "none"}, small, *smaller]
    names = ["resnet", "convnet"] if side >= SMALLEST_FOR_RESNET else ["convnet"]
    common = {"optimizer.learning_rate": 3e-3, "augment.crop_padding": max(1, side // 8), "augment.flip": "none"}
    return [{"model": name, "model.width": 32, **common} for name in names]


def of_length(num_samples: int, *, large: bool, texts: bool, rows: bool = False, most: int | None) -> dict[str, object]:
    """Return the batch size, the epochs, at most `most`, and how often to report and to validate.

    `large` is True for large images: their network is pretrained, and needs much memory. A bag of words of few texts is soon overfitted.
    `rows` is True for rows of a table, whose steps are cheap, and whose best weights are kept.
    """
    short, long = (1000, 60), (4000, 100)
    steps, most_epochs = (500, 15) if texts else (600, 60) if large else long if rows and num_samples >= 2000 else short
    batch_size = 32 if num_samples < 2000 else 64 if num_samples < 20_000 else 128
    epochs = min(most_epochs, max(5, round(steps * batch_size / num_samples)), most or most_epochs)
    steps = -(-epochs * num_samples // batch_size)
    return {
        "train.batch_size": batch_size,
        "train.micro_batch_size": min(batch_size, 32) if large else batch_size,
        "train.epochs": epochs,
        "train.report_every_steps": 10,
        "train.validate_every_steps": max(10, steps // 200 * 10),
    }


def written(values: dict[str, object]) -> list[str]:
    return [f"{key}={on_one_line(value)}" for key, value in values.items()]
