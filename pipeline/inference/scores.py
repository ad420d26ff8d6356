"""Scores that a validation and an evaluation compute alike: F1 from whole numbers of samples, and the loss of a language model per token, character and byte."""

import math

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def f1(support: Integers, predicted: Integers, hits: Integers) -> Floats:
    """Return the F1 of each class (classes,).

    The arguments (classes,) count the samples of each class, the samples that were predicted as this class, and the correct ones of these.
    A class without samples that is never predicted has an F1 of 0.
    """
    return share(2 * hits, predicted + support)


def macro_f1(support: Integers, predicted: Integers, hits: Integers) -> float:
    """Return the mean of the F1 of all classes, also of those without samples. The arguments are those of `f1`."""
    return float(f1(support, predicted, hits).mean())


def share(part: Integers, whole: Integers) -> Floats:
    """Return `part / whole` elementwise. Where `whole` is 0, `part` is 0 too, and the result is 0."""
    return part / np.maximum(whole, 1)


def rates(loss: float, num_tokens: float, *, characters: float, size_bytes: float) -> dict[str, float]:
    """Return the perplexity, the bits per character and the bits per byte of a text of `num_tokens` tokens.

    `loss` is the cross-entropy of all tokens in nats, summed. The text has `characters` characters and `size_bytes` bytes of UTF-8. If it
    has no characters, its bits per character are infinite; if it has no bytes, its bits per byte are.
    """
    bits = loss / math.log(2)
    mean = loss / num_tokens
    return {
        "perplexity": math.exp(mean) if mean < math.log(1e300) else math.inf,
        "bits_per_character": bits / characters if characters else math.inf,
        "bits_per_byte": bits / size_bytes if size_bytes else math.inf,
    }
