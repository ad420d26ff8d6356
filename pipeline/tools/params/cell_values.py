"""Says what the cells of a column can be: texts, labels, numbers, names of images; and which tokenizer and length suit texts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, cast

import pyarrow as pa

from pipeline.core.cells import as_date, as_number, as_truth, is_missing, kind_of_format
from pipeline.core.registry import SOURCES
from pipeline.core.tokenizer_description import NUM_SPECIAL
from pipeline.prepare.inputs import tokens
from pipeline.prepare.inputs.pairs import PairSettings
from pipeline.prepare.inputs.text import TextSettings
from pipeline.prepare.reading import table_formats
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.formats import Formats
from pipeline.prepare.reading.formats import read as read_cells
from pipeline.prepare.reading.labels import labels_of_cell

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
    tsv = sorted(path for paths in settings.tables().values() for path in paths if table_formats.suffix_of(path) == ".tsv")
    if not tsv or 2 * sum(len(text) > 1 and text.startswith('"') and text.endswith('"') for text in texts) < len(texts):
        return []
    remedy = f"rename {tsv[0]} to {tsv[0].with_suffix('.csv')}, where they are read"
    return [f"warning: most texts are in quotes, which are kept in a .tsv: {remedy}"]


MOST_ROWS = 5000
"""The number of rows that are looked at, over the whole length of the table."""
MOST_LABELS = 1000
SAMPLED_TEXTS = 200
LONGEST_LABEL = 60
DELIMITERS = (";", "|", ",", " ")
FEWEST_SOURCES, MOST_REFERENCES = 10, 20
"""Source texts with several references: so many at least, and at most so many references for each on average."""
PHRASE, MANY = 3, 100
"""Names of classes have fewer words, and if they have one, there are fewer of them."""
MOST_OF_FORMAT = 7
"""A date, or a number with a unit, has no more words."""
LETTER = re.compile(r"[^\W\d_]|[^\x00-\x7f]")
QUANTITY = re.compile(r"\W*\d[\d.,]*\s?[^\W\d_]{1,3}\W*")
"""A number with a unit, such as `512 kg`."""


def filled(values: Sequence[Any]) -> list[Any]:
    """Return the cells that have a value."""
    return [value for value in values if value not in (None, "")]


def sampled(rows: list[Any], most: int = MOST_ROWS) -> list[Any]:
    """Return at most `most` of the rows at equal distances: a table may be sorted."""
    return rows[:: -(-len(rows) // most)] if rows else rows


def is_text(values: Sequence[Any]) -> bool:
    """Return True for texts: strings of two words or more on average, most of them different, and no names of image files, dates or numbers, in whatever format."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if len(texts) <= len(values) / 2 or are_image_names(texts) or not have_words(texts):
        return False
    words = sum(map(num_words, texts)) / len(texts)
    return words >= 2 and len(set(texts)) > len(texts) / 3 and (words > MOST_OF_FORMAT or not format_of(texts))


def have_words(texts: Sequence[str]) -> bool:
    """Return True if most of the texts have letters, or other signs beyond ASCII, and are no dates, no numbers with a unit and no rows of numbers."""

    def has_words(text: str) -> bool:
        are_numbers = all(as_number(word) is not None for word in text.split())
        return bool(LETTER.search(text)) and not QUANTITY.fullmatch(text) and as_date(text) is None and not are_numbers

    some = sampled([*texts], SAMPLED_TEXTS)
    return 2 * sum(map(has_words, some)) > len(some)


def is_label(values: Sequence[Any]) -> bool:
    """Return True for labels: at least two different strings, whole numbers or truth values, each of which three rows have on average."""
    known = filled(values)
    if not known or not all(isinstance(value, str | int) or (isinstance(value, float) and value.is_integer()) for value in known):
        return False
    return 2 <= len(set(known)) <= min(MOST_LABELS, max(2, len(known) // 3)) and not is_text(values) and not fraction(values)


def numbers(values: Sequence[Any]) -> list[float] | None:
    """Return the numbers in the cells that have a value, plain or in a format that fits all; None if one of them has something else."""
    found = [as_number(value) for value in values if not is_missing(value)]
    if None not in found:
        return cast("list[float]", found)
    written = format_of(values)
    if not written or kind_of_format(written) != "number":
        return None
    return read_cells(pa.array([str(value) for value in values if not is_missing(value)]), "number", written).tolist()  # type: ignore[no-any-return]


def format_of(values: Sequence[Any]) -> str:
    """Return a format of numbers or dates that fits all cells that have a value, or "" if none does, or if they are plain."""
    known = [str(value) for value in values if not is_missing(value)]
    formats = Formats.of(pa.array(known, pa.string())) if known and known[0] and any(map(str.isdigit, known[0])) else Formats()
    return next(iter(formats.found()), "") if not formats.words else ""


def fraction(values: Sequence[Any]) -> float | None:
    """Return the first number with a fraction, such as 0.5, if all cells that have a value are numbers."""
    return next((number for number in numbers(values) or () if number % 1), None)


def are_numbers(values: Sequence[Any]) -> bool:
    """Return True for numbers, at least three different ones, that do not just count the rows."""
    found = numbers(values) or []
    counts_rows = found == sorted(set(found)) and all(number.is_integer() for number in found)
    return len(set(found)) > 2 and not counts_rows


def are_image_names(values: Sequence[Any]) -> bool:
    names = [str(value).strip().lower() for value in sampled(filled(values), SAMPLED_TEXTS)]
    return sum(name.endswith(IMAGE_SUFFIXES) and "://" not in name for name in names) > len(names) / 2


def are_strings(values: Sequence[Any]) -> bool:
    """Return True for strings that are no numbers, dates or names of images, most of them different."""
    return is_varied(values) and have_words(filled(values))


def are_words(values: Sequence[Any]) -> bool:
    """Return True for strings that are no numbers, such as texts, names, or words that recur."""
    return all(isinstance(value, str) for value in filled(values)) and numbers(values) is None


def is_varied(values: Sequence[Any]) -> bool:
    """Return True for strings, most of them different, that are no names of images."""
    known = filled(values)
    return all(isinstance(value, str) for value in known) and len(set(known)) > len(known) / 3 and not are_image_names(known)


def recurs(values: Sequence[Any]) -> bool:
    """Return True for texts that stand in several rows each, but in fewer than a class does: phrases, or what stands in one run of rows."""
    known = filled(values)
    different = len(set(known))
    if not FEWEST_SOURCES <= different <= len(known) / 2 or len(known) > MOST_REFERENCES * different or not have_words(known):
        return False
    words = sum(map(num_words, known)) / len(known)
    num_runs = 1 + sum(one != other for one, other in pairwise(known))
    return words >= PHRASE or (num_runs <= 1.05 * different and (words >= 2 or different > MANY))


def are_objects(values: Sequence[Any]) -> bool:
    """Return True for objects of JSON, or lists of them."""
    known = filled(values)
    return bool(known) and all(isinstance(each, dict) for value in known for each in (value if isinstance(value, list) else [value]))


def is_mark(values: Sequence[Any]) -> bool:
    """Return True for truth values, such as 0 and 1, if both occur."""
    different = {*map(str, values)}
    return all(as_truth(value) is not None for value in different) and {*map(as_truth, different)} == {False, True}


def delimiter_of(values: Sequence[Any]) -> str | None:
    """Return what separates the labels in each cell; "" if the cells are lists of labels, and None if they are something else.

    Each label must occur in three cells on average, and twice in none, and there must be as many different cells as labels: some labels occur alone, or with
    several others. For words, there must be twice as many; texts are not divided, nor numbers with a decimal comma.
    """
    known = filled(values)
    if len({str(value).lstrip().startswith("[") for value in known}) > 1:  # texts, such as lines of code
        return None
    if known and all(labels_of_cell(value, None) != [value] for value in known):
        return "" if are_labels([labels_of_cell(value, None) for value in known]) else None
    if not known or not all(isinstance(value, str) for value in known):
        return None
    for sign in DELIMITERS:
        if not any(sign in value for value in known):
            continue
        cells = [labels_of_cell(value, sign) for value in known]
        most, num_labels = max(map(len, cells)), len({label for cell in cells for label in cell})
        are_decimals = sign == "," and most == 2 and all(label.isdigit() for cell in cells for label in cell)
        fewest = 2 * num_labels if sign == " " else num_labels  # names of classes, such as `good` and `very good`, share words
        if most > 1 and fewest <= len(set(known)) and are_labels(cells) and not are_decimals:
            return None if sign == " " and is_text(values) else sign
    return None


def are_labels(cells: Sequence[Sequence[Any]]) -> bool:
    """Return True if the items of the lists can be labels: short, each at most once in a list, and in three lists on average."""
    items = [item for cell in cells for item in cell]
    if not all(isinstance(item, str | int) and len(str(item)) <= LONGEST_LABEL for item in items):
        return False
    return 2 <= len(set(items)) <= min(MOST_LABELS, len(items) // 3) and all(len(set(cell)) == len(cell) for cell in cells)


def division(values: Sequence[Any]) -> tuple[int, ...]:
    """Return for each cell the position of the first one that equals it: the same for columns that divide the rows in the same way."""
    first = dict[Any, int]()
    return tuple(first.setdefault(value, position) for position, value in enumerate(values))
