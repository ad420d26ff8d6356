"""Turns texts into rows of tokens, in several processes or on a cluster, and judges by their tokens whether a tokenizer suits the texts."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, tee
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.core.raw_dataset import TEST, TRAIN, VALID, RawDataset, SampleBlock
from pipeline.core.refusal import Refusal, counted
from pipeline.core.section import Column
from pipeline.core.spec import Targets
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.tokenizer_description import Normalization, TokenizerKind
from pipeline.prepare.inputs.text import Statistics, TextSettings, fit
from pipeline.prepare.reading.workers import CLUSTER, on_cluster, on_processes

if TYPE_CHECKING:
    from pipeline.prepare.reading.labelled_tables import Labelled

Item = TypeVar("Item")
Content = TypeVar("Content")
Result = TypeVar("Result")
MOST_TEXTS, MOST_CHARACTERS = 1000, 20_000
"""At most MOST_TEXTS texts are measured, and at most MOST_CHARACTERS of each."""
MOST = 0.98
"""The share of texts that should not be truncated."""
BLOCK_TEXTS, MANY_TEXTS = 4096, 100_000
"""BLOCK_TEXTS texts are read at once. From MANY_TEXTS on, several processes tokenize them, which take a second to start."""
LONG = 20
"""A text of so many characters beside white space is more than one word."""
MOST_UNKNOWN, MOST_MISSING = 0.5, 0.7
"""A larger share of tokens that are not in the vocabulary, or of characters in them, is too much. For few texts, rare words have half of the characters."""
LARGEST = {"vocabulary": 50_000, "min_count": 1}
"""With these values, a tokenizer of words or characters knows nearly all of train."""
FEWEST_TOKENS, MOST_TOKENS, MOST_SIGNS = 8, 512, 2048
"""Bounds of the recommended `max_length`: in tokens, and the upper one also in characters or bytes."""


def distance(total: int) -> int:
    """Return the distance of the texts to measure, of `total` texts. It is odd, because pairs have two texts each."""
    return max(1, -(-total // MOST_TEXTS)) | 1


def measured(texts: Sequence[str]) -> list[str]:
    """Return the texts to measure, of those that are in memory."""
    return [text[:MOST_CHARACTERS] for text in texts[:: distance(len(texts))]]


def lengths(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Return the numbers of tokens of the texts, sorted. The tokens that the tokenizer puts around each text are counted."""
    num_around = len(tokenizer.description.before) + len(tokenizer.description.after)
    return sorted(len(tokens) + num_around for tokens in tokenizer.encode_all(texts))


def long_text(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Return the number of tokens that the share MOST of the texts does not exceed."""
    found = lengths(tokenizer, texts)
    return found[int(MOST * (len(found) - 1))]


def row_length(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Return the recommended `max_length` for texts like these."""
    most = MOST_SIGNS if tokenizer.description.kind in ("character", "byte") else MOST_TOKENS
    return min(most, max(FEWEST_TOKENS, long_text(tokenizer, texts)))


def misfit(tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    """Return in words why the tokenizer does not suit `texts`, to which it was not fitted, or "" if it does.

    It does not if it makes one token of most texts of LONG characters or more, or if most tokens are not in its vocabulary, or those that
    have most characters.
    """
    encoded = tokenizer.encode_all(texts)
    long = [tokens for text, tokens in zip(texts, encoded, strict=True) if len("".join(text.split())) >= LONG]
    num_whole = sum(len(tokens) == 1 for tokens in long)
    if 2 * num_whole > len(long):
        return f"makes one token of {num_whole} of {counted(len(long), 'text')} with {LONG} characters or more"
    tokens = np.concatenate([*encoded, np.zeros(0, np.int32)])
    known = tokens[tokens != tokenizer.description.unknown]
    num_characters = max(1, sum(len("".join(text.split())) for text in texts))
    unknown, missing = 1 - len(known) / max(1, len(tokens)), 1 - int(tokenizer.num_characters[known].sum()) / num_characters
    if len(tokens) and (unknown > MOST_UNKNOWN or (missing > MOST_MISSING and unknown)):
        return f"does not know {unknown:.0%} of the tokens, which have {missing:.0%} of the characters"
    return ""


def first_suitable(
    kinds: Sequence[TokenizerKind], known: Sequence[str], new: Sequence[str], normalization: tuple[Normalization, ...]
) -> tuple[Tokenizer, str]:
    """Return a tokenizer of the first of `kinds`, or else the last, that suits the texts `new` if it is fitted to the texts `known`.

    It has the values LARGEST. Also returns why the first kind was not taken, or "".
    """
    reason = ""
    for kind in kinds:
        most, fewest = LARGEST["vocabulary"], LARGEST["min_count"]
        tokenizer = Tokenizer(fit(known, kind, normalization=normalization, most_tokens=most, min_count=fewest))
        if not (found := misfit(tokenizer, new)):
            break
        reason = reason or f"`{kind}` {found}"
    return tokenizer, reason


def warning(settings: TextSettings, tokenizer: Tokenizer, known: Sequence[str], new: Sequence[str]) -> str:
    """Return a sentence with the remedy if the tokenizer does not suit the texts `new`, or "". `known` are some of those to which it was fitted."""
    if not (found := misfit(tokenizer, new)):
        return ""
    beginning = f"warning: outside train, the tokenizer `{settings.tokenizer}` {found}"
    if settings.tokenizer == "pretrained":
        return f"{beginning}: choose a pretrained model for their language"
    kinds: tuple[TokenizerKind, ...] = ("character",) if settings.tokenizer == "character" else ("word", "character")
    better, _ = first_suitable(kinds, known, new, settings.normalization)
    values: dict[str, Any] = {"tokenizer": better.description.kind, **LARGEST}
    if settings.targets_kind != "language_modeling":
        values["max_length"] = max(settings.max_length, row_length(better, known))
    return f"{beginning}: `python -m pipeline set {' '.join(f'source.{key}={value}' for key, value in values.items())}` chooses one that knows more"


class Texts(NamedTuple):
    """Some samples of one split, at most BLOCK_TEXTS. `positions` (n,) are those in the split, and `places` say where they were found.

    `columns` has their texts or, for pairs, the source texts and the target texts that a model should write for them.
    """

    split: str
    positions: NDArray[np.int64]
    columns: Sequence[Sequence[str]]
    places: Sequence[str]


ReadTexts = Callable[[], Iterable[Texts]]
"""Reads the texts of all splits, from the beginning at each call."""
RowsOf = Callable[[Tokenizer, Any], Callable[[Any], tuple[NDArray[Any], ...]]]
"""Returns, for a tokenizer and the description of the inputs, a function from texts, or from the columns of pairs, to their rows and, for each column, the
numbers of tokens (n,)."""


def texts_of(labelled: "Labelled", *columns: Column) -> Iterator[Texts]:
    """Yield the texts in some columns of labelled rows."""
    for samples in labelled.samples(columns):
        found = [samples.texts(column) for column in columns]
        for start in range(0, len(samples.lines), BLOCK_TEXTS):
            chosen = slice(start, start + BLOCK_TEXTS)
            yield Texts(samples.split, samples.positions[chosen], [texts[chosen] for texts in found], samples.places(chosen))


class TokenizedTexts:
    """Turns the texts of a dataset into rows of tokens. `fit` must be called before `blocks`: it fits the tokenizer.

    `targets` are those of the samples of each split. `fewest` has for each column of texts the key of its most tokens, and how many an empty text has.
    `rows_of` makes the rows, in `workers` processes for MANY_TEXTS, and `describe(tokenizer=...)` their description.
    """

    def __init__(
        self,
        settings: TextSettings,
        read: ReadTexts,
        targets: Mapping[str, NDArray[Any]],
        *,
        describe: Callable[..., Any],
        rows_of: RowsOf,
        fewest: Mapping[str, int],
        workers: int = 1,
    ) -> None:
        self.settings, self.read, self.targets, self.rows_of, self.fewest = settings, read, targets, rows_of, fewest
        self.num_samples = sum(map(len, targets.values()))
        self.workers = workers if len(fewest) * self.num_samples >= MANY_TEXTS else 1
        self.statistics = Statistics(describe)

    def dataset(self, task: Targets, *, drawing_keys: Callable[[], Iterable[bytes]] | None = None, **options: Any) -> RawDataset:
        """Return the dataset, with the `options` of RawDataset. If `drawing_keys` is None, the keys are the texts, of pairs the source texts."""
        keys = drawing_keys or self.of_train
        return RawDataset(task, self.statistics, self.targets, self.blocks, self.fit, drawing_keys=keys, **options)

    def of_train(self) -> Generator[bytes]:
        for samples in self.read():
            if samples.split == TRAIN:
                yield from (text.encode("utf-8", "surrogatepass") for text in samples.columns[0])

    def fit(self, assigned: Mapping[str, NDArray[np.str_]]) -> None:
        """Fit the tokenizer to the samples that are assigned to train. Print a warning if it does not suit those of valid, or else of test."""
        columns, counts = len(self.fewest), Counter(str(name) for splits in assigned.values() for name in splits)
        other = VALID if counts[VALID] else TEST
        sampled, seen = {TRAIN: list[str](), other: list[str]()}, Counter[str]()
        distances = {split: distance(columns * counts[split]) for split in sampled}

        def of_train() -> Iterator[str]:
            for samples in self.read():
                splits = np.repeat(assigned[samples.split][samples.positions], columns).tolist()
                for text, split in zip(chain.from_iterable(zip(*samples.columns, strict=True)), splits, strict=True):
                    if split in sampled and seen[split] % distances[split] == 0:
                        sampled[split].append(text[:MOST_CHARACTERS])
                    seen[split] += 1
                    if split == TRAIN:
                        yield text

        remaining = of_train()
        self.tokenizer = self.settings.fit_tokenizer(remaining)
        for _ in remaining:  # of a tokenizer that is not fitted
            pass
        self.statistics.tokenizer = self.tokenizer.description
        print(f"prepare: the tokenizer `{self.settings.tokenizer}` has {self.tokenizer.num_tokens} tokens")
        if told := warning(self.settings, self.tokenizer, sampled[TRAIN], sampled[other]):
            print(f"prepare: {told}")

    def blocks(self) -> Generator[SampleBlock]:
        """Yield all samples, block by block. At the end, print how many texts were truncated, if any were.

        Raises Refusal if the tokenizer finds no token in a text.
        """
        truncated, rows_of = Counter[str](), self.rows_of(self.tokenizer, self.statistics.inputs())
        texts = ((samples, samples.columns if len(self.fewest) > 1 else samples.columns[0]) for samples in self.read())
        for samples, (rows, *lengths) in spread(rows_of, texts, workers=self.workers):
            for (key, fewest), found in zip(self.fewest.items(), lengths, strict=True):
                if (empty := np.flatnonzero(found == fewest)).size:
                    problem = "has a text in which the tokenizer finds no token: change it or remove the row or file"
                    raise Refusal(f"source.root: {samples.places[empty[0]]}: {problem}")
                truncated[key] += int((found > getattr(self.settings, key)).sum())
            yield SampleBlock(samples.split, samples.positions, rows)
        for key, number in truncated.items():
            if number:
                most = f"more than {getattr(self.settings, key)} tokens (source.{key})"
                print(f"prepare: {number} of {self.num_samples} texts have {most} and were truncated")


def spread(function: Callable[[Content], Result], items: Iterable[tuple[Item, Content]], *, workers: int) -> Iterator[tuple[Item, Result]]:
    """Yield each item and `function(content)`, in the order of the items: computed on the workers of CLUSTER, or else in `workers` processes; in this one if it is 1."""
    items, ahead = tee(items)
    contents = (content for _, content in ahead)
    found: Iterable[tuple[Content, Result]]
    if cluster := CLUSTER.get():
        found = on_cluster(function, contents, cluster=cluster, prepare=nothing)
    elif workers > 1:
        found = on_processes(function, contents, workers=workers, prepare=nothing)
    else:
        found = ((content, function(content)) for content in contents)
    for (item, _), (_, result) in zip(items, found, strict=True):
        yield item, result


def nothing() -> None:
    """Prepare a process for which there is nothing to prepare."""
