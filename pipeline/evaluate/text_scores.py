"""Scores of texts beside reference texts, with the default values of sacrebleu: chrF by sequences of characters, BLEU by sequences of words."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

LONGEST_OF_CHARACTERS, LONGEST_OF_WORDS = 6, 4
"""Sequences of 1 to so many characters or words count."""
BETA = 2
"""The recall of chrF counts so many times as much as the precision."""
ENTITIES = {"<skipped>": "", "-\n": "", "\n": " ", "&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
SIGNS = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
"""Signs that become words of their own: a full stop or comma unless it is in a number, a hyphen after a digit."""


def chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return chrF2 (Popović, 2015, https://aclanthology.org/W15-3049) of texts, from 0 to 100.

    White space is left out. The precisions and the recalls are averaged over the lengths of sequences that both sides have.
    """
    sides = ["".join(text.split()) for text in texts], ["".join(text.split()) for text in references]
    rates = [(both / found, both / expected) for _, found, expected, both in counts(*sides, LONGEST_OF_CHARACTERS) if found and expected]
    precision, recall = (sum(side) / len(rates) for side in zip(*rates, strict=True)) if rates else (0.0, 0.0)
    denominator = BETA**2 * precision + recall
    return 100 * (1 + BETA**2) * precision * recall / denominator if denominator else 0.0


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU (Papineni et al., 2002, https://aclanthology.org/P02-1040) of texts, from 0 to 100.

    Words are those of `words`. A length of which no sequence is correct counts as half a correct one, the next such length as a quarter, and
    so on (Chen and Cherry, 2014).
    """
    sides = [words(text) for text in texts], [words(text) for text in references]
    num_words, num_expected = (sum(map(len, side)) for side in sides)
    precisions, divisor = list[float](), 1
    for found, _, _, correct in counts(*sides, LONGEST_OF_WORDS):
        if not correct:
            divisor *= 2
        precisions.append(correct / found if correct else 1 / (divisor * found) if found else 0.0)
    if not all(precisions) or divisor == 2**LONGEST_OF_WORDS:
        return 0.0
    brevity = 1 - num_expected / num_words if num_words < num_expected else 0.0
    return 100 * math.exp(brevity + sum(map(math.log, precisions)) / LONGEST_OF_WORDS)


def counts(texts: Sequence[Any], references: Sequence[Any], longest: int) -> list[tuple[int, int, int, int]]:
    """Return for each length the numbers of sequences: of all texts, of those whose reference has any, of the references, and of both sides."""
    rows = []
    for length in range(1, longest + 1):
        pairs = [(sequences(text, length), sequences(reference, length)) for text, reference in zip(texts, references, strict=True)]
        found = sum(ours.total() for ours, theirs in pairs if theirs)
        every, expected = (sum(each.total() for each in side) for side in zip(*pairs, strict=True))
        rows.append((every, found, expected, sum((ours & theirs).total() for ours, theirs in pairs)))
    return rows


def sequences(text: Any, length: int) -> Counter[Any]:
    """Return how often each sequence of `length` characters of a string, or words of a list, occurs."""
    return Counter(zip(*(text[start:] for start in range(length)), strict=False))


def words(text: str) -> list[str]:
    """Return the words of a text as the script mteval-v13a divides it, with signs as words of their own."""
    text = text.rstrip()  # as sacrebleu does: a hyphen at the end is not that of a divided word
    for sign, plain in ENTITIES.items():
        text = text.replace(sign, plain)
    text = f" {text} "
    for pattern, spaced in SIGNS:
        text = pattern.sub(spaced, text)
    return text.split()
