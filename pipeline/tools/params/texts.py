"""Looks at texts: how many words they have in any script, and which tokenizer and length suit them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from pipeline.core.registry import SOURCES
from pipeline.core.tokenizer_description import NUM_SPECIAL
from pipeline.prepare.inputs import tokens
from pipeline.prepare.inputs.pairs import PairSettings
from pipeline.prepare.inputs.text import TextSettings
from pipeline.prepare.reading import tables

IDEOGRAPHS = re.compile(
    "[\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U0001f300-\U0001faff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words, a word of which has about two: Chinese and Japanese. Emoji count, too."""
SYLLABLES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf]")
"""Characters of scripts without spaces between words, a word of which has about five: Thai, Lao, Burmese, Khmer and their relatives."""
MOST_UNSPACED = 0.2
"""If such scripts have a larger share of the characters, words are no tokens."""
MOST_RARE = 0.01
"""A corpus with a larger share of characters outside the usual vocabulary gets a larger one."""
SHORT = 100
"""Pairs of texts of at most so many characters are divided into characters."""
FEWEST_SIGNS = 100
"""The vocabulary of characters for pairs has room for so many at least."""
VALUES: dict[str, dict[str, Any]] = {
    **{kind: {**tokens.LARGEST, "normalization": ["lowercase"]} for kind in ("word", "character")},
    "bpe": {"vocabulary": 8192, "min_count": 2, "normalization": ["lowercase"]},
    "byte": {"vocabulary": None, "min_count": None, "normalization": []},
    "pretrained": {"vocabulary": None, "min_count": None, "normalization": []},
}
"""The recommended values of the section `source` for each tokenizer."""


def num_words(text: str) -> float:
    """Return the number of words: runs between white space and, in scripts without it, what usually is one."""
    if text.isascii():
        return len(text.split())
    others, num_ideographs = IDEOGRAPHS.subn(" ", text)
    others, num_syllables = SYLLABLES.subn(" ", others)
    return len(others.split()) + num_ideographs / 2 + num_syllables / 5


def share(texts: Sequence[str], *scripts: re.Pattern[str]) -> float:
    """Return the share of the characters, white space not counted, that belong to `scripts`."""
    text = "".join("".join(texts).split())
    return sum(len(script.findall(text)) for script in scripts) / max(1, len(text))


def tokenizer_values(settings: TextSettings, given: Mapping[str, Any], texts: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the tokenizer and the length for `texts` as values of the section `source`, and lines about them.

    `settings` are those of the source. `given` has the keys that the user has set: another tokenizer is not chosen, but measured.
    """
    sample = tokens.measured(texts)
    new, known = sample[::5], [text for at, text in enumerate(sample) if at % 5] or sample
    unspaced, reason = share(sample, IDEOGRAPHS, SYLLABLES), ""
    if "tokenizer" in given:
        tokenizer = settings.fit_tokenizer(known)
    elif unspaced > MOST_UNSPACED:
        tokenizer, _ = tokens.first_suitable(["character"], known, new, settings.normalization)
        reason = f"{unspaced:.0%} of the characters are of scripts without spaces between words"
    else:
        tokenizer, reason = tokens.first_suitable(["word", "character"], known, new, settings.normalization)
    kind = str(given.get("tokenizer", tokenizer.description.kind))
    lengths = tokens.lengths(tokenizer, sample)
    values = {"tokenizer": kind, **VALUES[kind], "max_length": tokens.row_length(tokenizer, sample)}
    values |= {key: given[key] for key in values if key in given}
    lines = [
        f"tokenizer: {kind}{f', because {reason}' if reason else ''}",
        f"texts of {lengths[0]} to {lengths[-1]} tokens, {lengths[len(lengths) // 2]} in the middle, 98% of at most {tokens.long_text(tokenizer, sample)}",
    ]
    truncated = sum(length > values["max_length"] for length in lengths) / len(lengths)
    if truncated > 1 - tokens.MOST:
        lines.append(f"{truncated:.0%} of the texts are truncated to {values['max_length']} tokens (source.max_length)")
    return values, lines


def pair_values(settings: TextSettings, given: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
    """Return the tokenizer and the two lengths for pairs of texts as values of the section `source`, and lines about them.

    The tokenizer is `character` for texts of at most SHORT characters, else `bpe`. The arguments are those of `tokenizer_values`.
    """
    sample = pairs[:: max(1, -(-len(pairs) // tokens.MOST_TEXTS))]
    sides = [tokens.measured(side) for side in zip(*sample, strict=True)]
    kind = str(given.get("tokenizer", "character" if max(len(text) for side in sides for text in side) <= SHORT else "bpe"))
    num_signs = len(set(chain.from_iterable(chain.from_iterable(pairs))))
    sizes = {"character": max(FEWEST_SIGNS, num_signs + NUM_SPECIAL), "bpe": PairSettings.RECOMMENDED["vocabulary"]}
    values = {"tokenizer": kind, **VALUES[kind], "normalization": []} | ({"vocabulary": sizes[kind]} if kind in sizes else {})
    values |= {key: given[key] for key in VALUES[kind] if key in given}
    tokenizer = settings.model_copy(update=values).fit_tokenizer([text for side in sides for text in side])
    lines = [f"tokenizer: {kind}"]
    for key, side, num_ends in zip(("max_length", "target_length"), sides, (0, 2), strict=True):
        lengths, usual = tokens.lengths(tokenizer, side), tokens.row_length(tokenizer, side)
        values[key] = given.get(key, (lengths[-1] if usual < lengths[-1] <= 2 * usual else usual) + num_ends)
        title = "target" if num_ends else "source"
        lines.append(f"{title} texts of {lengths[0]} to {lengths[-1]} tokens; rows have {values[key]} (source.{key})")
    return values, lines


def vocabulary_values(given: Mapping[str, Any], texts: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the vocabulary for a corpus as a value of the section `source`, and a line about it: {} and none if the usual one is enough.

    `given` has the keys that the user has set: with a tokenizer or a vocabulary, nothing is chosen.
    """
    counts = Counter(chain.from_iterable(texts))
    corpus = SOURCES.settings("text")
    usual = corpus.recommended(name="text", task=corpus.TASK)["vocabulary"]
    rare = sum(count for _, count in counts.most_common()[usual - NUM_SPECIAL :])
    if {"tokenizer", "vocabulary"} & set(given) or rare <= MOST_RARE * sum(counts.values()):
        return {}, []
    size = min(len(counts) + NUM_SPECIAL, tokens.LARGEST["vocabulary"])
    reason = f"{rare / sum(counts.values()):.0%} of the characters are none of the {usual - NUM_SPECIAL} most frequent"
    return {"vocabulary": size}, [f"vocabulary: {size}, because {reason}"]


def quoted(settings: Any, texts: Sequence[str]) -> list[str]:
    """Return a line about texts of a `.tsv` in quotes, as pandas writes them, if most are."""
    tsv = sorted(path for paths in settings.tables().values() for path in paths if tables.suffix_of(path) == ".tsv")
    if not tsv or 2 * sum(len(text) > 1 and text.startswith('"') and text.endswith('"') for text in texts) < len(texts):
        return []
    remedy = f"rename {tsv[0]} to {tsv[0].with_suffix('.csv')}, where they are read"
    return [f"warning: most texts are in quotes, which are kept in a .tsv: {remedy}"]
