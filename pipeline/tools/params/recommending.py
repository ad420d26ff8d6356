"""Chooses the parameters with which a first training on data of the user's own should do well, from what `data.look` has found."""

from pathlib import Path

from pipeline.core.raw_dataset import TRAIN, VALID
from pipeline.tools.params.commented_yaml import on_one_line
from pipeline.tools.params.data import LARGE, Finding
from pipeline.tools.params.readings import ARRAYS, CORPUS, PAIRS
from pipeline.tools.params.texts import IDEOGRAPHS, share

IMAGES_PRESET, TEXTS_PRESET, TABLE_PRESET, CORPUS_PRESET = "image-folder", "trec-ngrams", "table", "shakespeare-transformer"
PAIRS_PRESET = "dates-transformer"
FEW = 1000
"""With fewer samples, larger shares are split off for validation and test."""
UNEVEN = 3
"""Classes are uneven if the most frequent one has so many times the samples of the rarest."""
SMALLEST_FOR_RESNET = 24
ROW = 128
SMALLER = 128
"""The side in pixels to which large images are resized for the fastest model."""


OF_LABELS = {
    "loss": "binary_cross_entropy",
    "evaluate": "multi_label",
    "loss.threshold": "tuned",
    "train.metric": "valid/average_precision",
}
"""The values for several labels a sample."""


def num_samples(finding: Finding) -> dict[str, int]:
    """Return about how many samples train and valid will have. Those of a corpus are rows of ROW characters."""
    if finding.source["name"] == CORPUS:
        return {TRAIN: finding.num_samples // ROW, VALID: finding.num_samples // (20 * ROW)}
    shares = 1.0 if VALID in finding.splits else 0.8
    return {TRAIN: round(shares * finding.num_samples), VALID: round(0.15 * finding.num_samples)}


def num_models(finding: Finding) -> int:
    """Return how many models `recommendation` knows for such data, from the best to the fastest."""
    return len(models(finding)) if finding.image_shape[0] else 1


def recommendation(finding: Finding, model: int = 0, most: int | None = None) -> tuple[str, list[str]]:
    """Return the name of the preset to begin with, and the assignments `KEY=VALUE` in which the parameters differ from it.

    `model` is the number of the model, from the best to the fastest. `most` is the largest number of epochs, or of the steps of a corpus.
    """
    source = {key: str(value) if isinstance(value, Path) else value for key, value in finding.source.items()}
    values = {"source": source.pop("name"), **{f"source.{key}": value for key, value in source.items()}}
    if finding.source["name"] == CORPUS:
        return CORPUS_PRESET, written({"source.max_length": ROW, **values} | ({"train.steps": most} if most else {}))
    if finding.num_samples < FEW:
        values |= {"source.valid": 0.15, "source.test": 0.2}
    if finding.source["name"] == PAIRS:
        values |= {"model.width": 128, "model.dropout": 0.1, "optimizer.learning_rate": 1e-3}
        return PAIRS_PRESET, written(values | of_length(num_samples(finding)[TRAIN], large=False, texts=False, most=most))
    values |= of_texts(finding) if finding.texts else {} if finding.inputs else models(finding)[model]
    preset = TEXTS_PRESET if finding.texts else TABLE_PRESET if finding.inputs else IMAGES_PRESET
    large, texts = finding.image_shape[0] > LARGE, bool(finding.texts)
    values |= of_length(num_samples(finding)[TRAIN], large=large, texts=texts, most=most)
    if finding.inputs:  # a network is soon overfitted to few rows, and the loss tells more than the accuracy of few
        values |= {"train.metric": "valid/loss", "train.export_weights": "best"}
    counts = finding.class_counts
    if not counts:
        assert finding.task is not None
        metric = "r2" if len(finding.task.output_names) > 1 else "rmse"  # of columns with different units, no mean of errors means anything
        values |= OF_LABELS if finding.task.has_labels else {"loss": "mse", "evaluate": "regression", "train.metric": f"valid/{metric}"}
        return preset, written(values)
    if not finding.inputs and max(counts) >= UNEVEN * max(1, min(counts)):
        values |= {"train.metric": "valid/macro_f1", "train.export_weights": "best"}
    values["evaluate.top_k"] = min(3, max(1, len(counts) - 1))
    return preset, written(values)


def of_texts(finding: Finding) -> dict[str, object]:
    """Return the values for labelled texts beside those of `finding.source`."""
    # a pair of ideographs is a word, but a pair of letters is not
    is_alphabetic = finding.source["tokenizer"] in ("character", "byte") and share(finding.texts, IDEOGRAPHS) < 0.5
    return {"model.max_n": 4} if is_alphabetic else {}


def models(finding: Finding) -> list[dict[str, object]]:
    """Return the values for images, from the best to the fastest model: small networks for small images, else pretrained ones."""
    side, _ = finding.image_shape
    if side > LARGE:
        small: dict[str, object] = {"augment.flip": "none", "model.architecture": "mobilenet_v3_small", "model.pretrained": "IMAGENET1K_V1"}
        smaller = [] if finding.source["name"] == ARRAYS else [{**small, "source.image_size": SMALLER, "augment.crop_padding": 8}]
        return [{"augment.flip": "none"}, small, *smaller]
    names = ["resnet", "convnet"] if side >= SMALLEST_FOR_RESNET else ["convnet"]
    common = {"optimizer.learning_rate": 3e-3, "augment.crop_padding": max(1, side // 8), "augment.flip": "none"}
    return [{"model": name, "model.width": 32, **common} for name in names]


def of_length(num_samples: int, *, large: bool, texts: bool, most: int | None) -> dict[str, object]:
    """Return the batch size, the epochs, at most `most`, and how often to report and to validate.

    `large` is True for large images: their network is pretrained, and needs much memory. A bag of words of few texts is soon overfitted.
    """
    steps, most_epochs = (500, 15) if texts else (600, 60) if large else (1000, 60)
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
