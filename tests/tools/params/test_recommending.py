"""The parameters that are recommended for data of the user's own, at the sizes where they change."""

from typing import Any

import pytest

from pipeline.core.tokenizer import Tokenizer
from pipeline.prepare.inputs.text import fit
from pipeline.prepare.inputs.tokens import row_length
from pipeline.tools.params.data import Finding
from pipeline.tools.params.recommending import recommendation

SPLITS = frozenset({"train"})


def found(
    num_samples: int, *, name: str = "image_folder", tokenizer: str = "", counts: tuple[int, ...] = (1, 1, 1), **more: Any
) -> tuple[str, dict[str, str]]:
    """Return the preset and the values that are recommended for data of `num_samples`."""
    finding = Finding(
        {"name": name} | ({"tokenizer": tokenizer} if tokenizer else {}), (), frozenset(), num_samples, SPLITS, counts, **more
    )
    preset, assignments = recommendation(finding)
    return preset, dict(assignment.split("=", 1) for assignment in assignments)


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        (23, {"model": "convnet", "model.width": "32", "augment.crop_padding": "2", "optimizer.learning_rate": "0.003"}),
        (24, {"model": "resnet", "model.width": "32", "augment.crop_padding": "3", "train.micro_batch_size": "64"}),
        (7, {"augment.crop_padding": "1", "augment.flip": "none"}),
        (96, {"model": "resnet", "train.batch_size": "64"}),
        (224, {"augment.flip": "none", "train.batch_size": "64", "train.micro_batch_size": "32"}),
    ],
)
def test_the_network_and_its_crops_depend_on_the_size_of_the_images(side: int, expected: dict[str, str]) -> None:
    preset, values = found(5000, image_shape=(side, 3))
    assert preset == "image-folder"
    assert {key: values.get(key) for key in expected} == expected
    assert ("model" in values) == (side <= 96)


@pytest.mark.parametrize(
    ("samples", "side", "expected"),
    [
        (999, 32, {"source.valid": "0.15", "source.test": "0.2", "train.batch_size": "32", "train.validate_every_steps": "40"}),
        (1000, 32, {"source.valid": None, "source.test": None, "train.batch_size": "32", "train.epochs": "40"}),
        (100, 32, {"train.epochs": "60"}),
        (2499, 32, {"train.batch_size": "32"}),
        (2500, 32, {"train.batch_size": "64"}),
        (24_999, 32, {"train.batch_size": "64"}),
        (25_000, 32, {"train.batch_size": "128", "train.epochs": "6", "train.report_every_steps": "10"}),
        (100_000, 32, {"train.epochs": "5", "train.validate_every_steps": "150"}),
        (1000, 224, {"train.epochs": "24"}),
    ],
)
def test_the_length_of_a_training_depends_on_the_number_of_samples(samples: int, side: int, expected: dict[str, str | None]) -> None:
    _, values = found(samples, image_shape=(side, 3))
    assert {key: values.get(key) for key in expected} == expected


def test_texts_are_cut_after_as_many_tokens_as_most_have_and_trained_shortly() -> None:
    tokenizer = Tokenizer(fit(["a b"] * 2, "word", normalization=(), most_tokens=9, min_count=1))
    assert [row_length(tokenizer, ["a " * words]) for words in (1, 20, 1000)] == [8, 20, 512]
    preset, values = found(500, name="text_classification", tokenizer="word", texts=("a b",))
    assert (preset, values["train.epochs"], values.get("model.max_n")) == ("trec-ngrams", "15", None)
    assert found(500, name="text_classification", tokenizer="character", texts=("a b",))[1]["model.max_n"] == "4"


def test_classes_of_uneven_size_are_measured_by_macro_f1() -> None:
    metrics = [found(1000, counts=counts, image_shape=(8, 1))[1].get("train.metric") for counts in ((300, 101), (300, 100), (3, 0))]
    assert metrics == [None, "valid/macro_f1", "valid/macro_f1"]
    assert [found(1000, counts=(1,) * count, image_shape=(8, 1))[1]["evaluate.top_k"] for count in (2, 3, 4, 9)] == ["1", "2", "3", "3"]


def test_a_corpus_is_cut_into_windows_of_128_tokens() -> None:
    assert found(10**6, name="text") == ("shakespeare-transformer", {"source.max_length": "128", "source": "text"})
