"""Specs of small image and text datasets."""

from collections.abc import Sequence
from typing import Any

from pipeline.core.spec import Spec
from pipeline.core.tokenizer_description import BYTE_SIGNS, AnyDescription, PretrainedDescription, TokenizerDescription
from pipeline.inputs.image.description import ImageInputs
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text_pair.description import TextPairInputs
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.tasks.sequence.targets import SequenceTargets


def image_spec(*, shape: tuple[int, int, int], classes: Sequence[str], mean: Sequence[float], std: Sequence[float]) -> Spec:
    """Return the spec of images of `shape` (height, width, channels)."""
    height, width, channels = shape
    inputs = ImageInputs(height=height, width=width, channels=channels, mean=tuple(mean), std=tuple(std))
    return Spec(inputs=inputs, targets=ClassTargets(classes=tuple(classes)))


def text_spec(
    *, length: int = 12, letters: str = "abcdefgh", classes: Sequence[str] | None = None, tokenizer: AnyDescription | None = None
) -> Spec:
    """Return the spec of texts of at most `length` of these letters: a classification if there are `classes`, else a language model."""
    tokenizer = tokenizer or TokenizerDescription(kind="character", vocabulary=tuple(letters))
    targets = NextTokenTargets() if classes is None else ClassTargets(classes=tuple(classes))
    return Spec(inputs=TextInputs(length=length, tokenizer=tokenizer), targets=targets)


def pair_spec(*, length: int = 12, letters: str = "abcdefgh") -> Spec:
    """Return the spec of pairs of texts of at most `length` of these letters."""
    tokenizer = TokenizerDescription(kind="character", vocabulary=tuple(letters))
    return Spec(inputs=TextPairInputs(length=length, target_length=length + 2, tokenizer=tokenizer), targets=SequenceTargets())


def bytes_of_gpt2() -> PretrainedDescription:
    """Return the tokenizer of a pretrained model, with 256 bytes and the numbers 1 for the end and 0 for unknown tokens."""
    empty: dict[str, Any] = dict.fromkeys(("normalization", "before", "after", "added", "merges"), ())
    model = {"kind": "byte_level_bpe", "pre_tokenizer": "gpt2", "add_prefix_space": False, "ignore_merges": False}
    numbers = {"unknown": 0, "end": 1, "vocabulary": ("<unk>", "<end>", *BYTE_SIGNS)}
    return PretrainedDescription.model_validate(empty | model | numbers)
