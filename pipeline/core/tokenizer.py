"""The tokenizers of texts, those of pretrained models among them: they normalize a text, divide it into words, pieces or parts, and number its tokens.

This module imports little, because MLflow's model of a text model includes this code.
"""

import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.tokenizer_description import (
    BERT_OPTIONS,
    BYTE_SIGNS,
    CONTINUED,
    LONGEST_WORD,
    NORMALIZERS,
    NUM_SPECIAL,
    PATTERNS,
    UNKNOWN,
    AnyDescription,
    Normalization,
    PretrainedDescription,
    TokenizerDescription,
)

Tokens = NDArray[np.int32]
BLOCK_CHARACTERS = 2**20
NUM_CODE_POINTS = 0x110000
MOST_CACHED = 200_000
"""Number of different pieces whose tokens `bpe` remembers."""
LATER_BYTES = bytes(range(0x80, 0xC0))
"""The bytes of a character in UTF-8 after its first one."""
UNKNOWN_SIGN = "\N{REPLACEMENT CHARACTER}"
BYTE_OF_SIGN = {ord(sign): byte for byte, sign in enumerate(BYTE_SIGNS)}
SIGN_OF_BYTE = dict(enumerate(BYTE_SIGNS))


class Tokenizer:
    """Turns texts into token numbers and back. `Tokenizer(description)` returns an instance of the subclass for the description's kind."""

    def __new__(cls, description: AnyDescription) -> "Tokenizer":
        return super().__new__(KINDS[description.kind])

    def __init__(self, description: AnyDescription) -> None:
        self.description = description
        self.num_tokens = description.num_tokens

    def __reduce__(self) -> Any:
        return Tokenizer, (self.description,)

    def encode(self, text: str) -> Tokens:
        """Normalize the text, and return its token numbers, (n,) int32. No special token is added.

        The result is empty if the normalized text is empty or, with `word` and `wordpiece`, only white space.
        """
        raise NotImplementedError

    def encode_all(self, texts: Iterable[str]) -> list[Tokens]:
        """Return the token numbers of each text."""
        return [self.encode(text) for text in texts]

    def rows(self, texts: Iterable[str], length: int) -> tuple[Tokens, NDArray[np.int64]]:
        """Return two arrays: one row of token numbers for each text, (n, length), and the number of tokens of each text, (n,).

        A text of more than `length` tokens is truncated in its row, and a shorter one is filled with padding. The number of tokens is that
        of the whole text, without padding. If the tokenizer puts special tokens around a text, they are counted, and never truncated; a
        text without tokens counts as 0.
        """
        encoded, description = self.encode_all(texts), self.description
        first, num_after = len(description.before), len(description.after)
        rows = np.full((len(encoded), length), description.pad, np.int32)
        for row, tokens in zip(rows, encoded, strict=True):
            last = min(first + len(tokens), length - num_after)
            row[:first] = description.before
            row[first:last] = tokens[: last - first]
            row[last : last + num_after] = description.after
        return rows, np.array([len(tokens) and first + len(tokens) + num_after for tokens in encoded], np.int64)

    @property
    def words(self) -> Container[int]:
        """Return the numbers of the tokens that begin a word, before which a decoded text has a space. The base class has none."""
        return ()

    def decode(self, tokens: Iterable[int] | NDArray[Any], *, show_unknown: bool = False) -> str:
        """Return the text of token numbers. Bytes that are not UTF-8 become U+FFFD.

        Special tokens are left out; with `show_unknown`, each unknown token becomes U+FFFD.
        """
        left_out = self.special - {self.description.unknown} if show_unknown else self.special
        kept = [number for number in (tokens.tolist() if isinstance(tokens, np.ndarray) else tokens) if number not in left_out]
        spaced = (b" " + self.contents[number] if at and number in self.words else self.contents[number] for at, number in enumerate(kept))
        return b"".join(spaced).decode("utf-8", "replace")

    @cached_property
    def contents(self) -> list[bytes]:
        """Return the bytes of each token, by its number; for an unknown one, those of U+FFFD."""
        raise NotImplementedError

    @cached_property
    def num_characters(self) -> NDArray[np.int64]:
        """Return the number of characters of each token, (num_tokens,). Padding and the end have 0. An unknown token counts as 1.

        If the bytes of a character are in several tokens, it counts for the token with its first byte. The sum over the tokens of a text is
        thus its number of characters. A tokenizer of the kind `word` or `wordpiece` does not count white space, and counts an unknown word
        as one character.
        """
        return self.sizes(len(content.translate(None, LATER_BYTES)) for content in self.contents)

    @cached_property
    def num_bytes(self) -> NDArray[np.int64]:
        """Return the number of UTF-8 bytes of each token, (num_tokens,). Padding and the end have 0. An unknown token counts as 1, because
        its real bytes are not known.
        """
        return self.sizes(map(len, self.contents))

    def sizes(self, of_contents: Iterable[int]) -> NDArray[np.int64]:
        found = np.fromiter(of_contents, np.int64)
        for number, size in ((self.description.end, 0), (self.description.unknown, 1)):
            if number is not None:
                found[number] = size
        return found

    @cached_property
    def special(self) -> set[int | None]:
        """Return the numbers of the tokens that are no text, and that `decode` leaves out."""
        special = (token.number for token in self.description.added if token.special)
        return {self.description.pad, self.description.unknown, self.description.end, *special}


class FittedTokenizer(Tokenizer):
    """A tokenizer that `prepare` fits to texts."""

    description: TokenizerDescription

    def encode(self, text: str) -> Tokens:
        return self.encode_normalized(normalize(text, self.description.normalization))

    def encode_normalized(self, text: str) -> Tokens:
        """Return the token numbers of a text that is normalized."""
        raise NotImplementedError

    @cached_property
    def contents(self) -> list[bytes]:
        as_bytes = from_signs if self.description.kind in ("byte", "bpe") else str.encode
        return [b"", UNKNOWN_SIGN.encode(), b"", *map(as_bytes, self.description.tokens)]  # in the order of PAD, UNKNOWN, END


class CharacterTokenizer(FittedTokenizer):
    """One token for each character (code point) of the vocabulary."""

    @cached_property
    def numbers(self) -> Tokens:
        """Return an array that maps each Unicode code point to its token number. Code points outside the vocabulary map to UNKNOWN."""
        numbers = np.full(NUM_CODE_POINTS, UNKNOWN, np.int32)
        numbers[code_points("".join(self.description.tokens))] = np.arange(NUM_SPECIAL, self.num_tokens)
        return numbers

    def encode_normalized(self, text: str) -> Tokens:
        tokens = np.empty(len(text), np.int32)
        for start in range(0, len(text), BLOCK_CHARACTERS):
            block = slice(start, start + BLOCK_CHARACTERS)
            tokens[block] = self.numbers[code_points(text[block])]
        return tokens


class ByteTokenizer(FittedTokenizer):
    """One token for each byte of the text in UTF-8."""

    def encode_normalized(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + np.int32(NUM_SPECIAL)


class BpeTokenizer(ByteTokenizer):
    """Byte-pair encoding. The text is first divided into pieces (`pieces`), such as a word with the space before it.

    Each piece starts as single bytes. Neighbouring tokens are joined in the order of the merges, but never across the border of a piece.
    """

    def __init__(self, description: TokenizerDescription) -> None:
        from tokenizers import models  # late: other kinds do not need it

        super().__init__(description)
        numbers = {token: number for number, token in enumerate(description.tokens, NUM_SPECIAL)}
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in description.merges)]
        self.model = models.BPE(numbers, pairs)
        self.cache: dict[str, bytes] = {}

    def encode_normalized(self, text: str) -> Tokens:
        tokens = bytearray()  # b"".join() would need 80 bytes for each piece
        for piece in pieces(text):
            tokens += self.encode_piece(piece)
        return np.frombuffer(tokens, np.int32)

    def encode_piece(self, piece: str) -> bytes:
        """Return the token numbers of a piece as the bytes of an int32 array. The results are cached, because pieces recur in a text."""
        known = self.cache.get(piece)
        if known is None:
            if len(self.cache) == MOST_CACHED:
                self.cache.clear()
            signs = piece.encode().decode("latin-1").translate(SIGN_OF_BYTE)  # the bytes in UTF-8 as BYTE_SIGNS
            known = self.cache[piece] = np.array([token.id for token in self.model.tokenize(signs)], np.int32).tobytes()
        return known


class WordTokenizer(FittedTokenizer):
    """One token for each word of the vocabulary. A decoded text has one space between words."""

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.description.tokens, NUM_SPECIAL)}

    def encode_normalized(self, text: str) -> Tokens:
        find, divided = self.numbers.get, words(text) if self.description.joins_marks else WORD.findall(text)
        return np.array([find(word, UNKNOWN) for word in divided], np.int32)

    @cached_property
    def words(self) -> Container[int]:
        return range(self.num_tokens)


class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a pretrained model. The library `tokenizers` encodes texts, in one thread; it is built at the first text."""

    description: PretrainedDescription

    @cached_property
    def library(self) -> Any:
        """Return the `tokenizers.Tokenizer` of the description. It adds no special tokens to a text."""
        import tokenizers  # late: most commands do not need it
        from tokenizers import models, normalizers

        numbers = {token: number for number, token in enumerate(self.description.vocabulary)}
        if self.description.kind == "wordpiece":
            assert self.description.unknown is not None
            unknown = self.description.vocabulary[self.description.unknown]
            model: Any = models.WordPiece(
                numbers, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD, continuing_subword_prefix=CONTINUED
            )
        else:
            pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in self.description.merges)]
            model = models.BPE(numbers, pairs, ignore_merges=self.description.ignore_merges)
        tokenizer: Any = tokenizers.Tokenizer(model)
        if self.description.normalization:
            tokenizer.normalizer = normalizers.Sequence([normalizer(name) for name in self.description.normalization])
        tokenizer.pre_tokenizer = pre_tokenizer(self.description)
        for token in sorted(self.description.added, key=lambda token: token.number):
            tokenizer.add_tokens([tokenizers.AddedToken(**token.model_dump(exclude={"number"}))])
        return tokenizer

    def encode(self, text: str) -> Tokens:
        tokens = bytearray()
        for part in parts(without_surrogates(text), cut=self.cut):
            tokens += np.array(self.library.encode(part, add_special_tokens=False).ids, np.int32).tobytes()
        return np.frombuffer(tokens, np.int32)

    @cached_property
    def cut(self) -> re.Pattern[str] | None:
        """Return the pattern of the places at which a text can be cut without a change of its tokens; None if there is none."""
        if not self.description.cuttable:
            return None
        return BEFORE_SPACE if self.description.add_prefix_space else BEFORE_SPACE_OR_AFTER_LINE

    @cached_property
    def words(self) -> Container[int]:
        tokens = enumerate(self.description.tokens)
        return {at for at, token in tokens if not token.startswith(CONTINUED)} if self.description.kind == "wordpiece" else set()

    @cached_property
    def contents(self) -> list[bytes]:
        """Return the bytes of each token, without the sign that continues a word."""
        added = {token.number for token in self.description.added}
        as_bytes = (lambda token: token.removeprefix(CONTINUED).encode()) if self.description.kind == "wordpiece" else from_signs
        found = [token.encode() if at in added else as_bytes(token) for at, token in enumerate(self.description.tokens)]
        if self.description.unknown is not None:
            found[self.description.unknown] = UNKNOWN_SIGN.encode()
        return found


KINDS: dict[str, type[Tokenizer]] = {
    "character": CharacterTokenizer,
    "byte": ByteTokenizer,
    "bpe": BpeTokenizer,
    "word": WordTokenizer,
    "wordpiece": PretrainedTokenizer,
    "byte_level_bpe": PretrainedTokenizer,
}


def code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def from_signs(token: str) -> bytes:
    """Return the bytes of a token in characters of BYTE_SIGNS. If it has other characters, they are the text itself."""
    try:
        return token.translate(BYTE_OF_SIGN).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def normalize(text: str, changes: tuple[Normalization, ...]) -> str:
    """Return the text with each of `changes` applied in order. A lone surrogate becomes U+FFFD."""
    text = without_surrogates(text)
    for name in changes:
        text = " ".join(text.split()) if name == "collapse_whitespace" else by_lines(text, name)
    return text


def without_surrogates(text: str) -> str:
    """Return the text with U+FFFD in place of each lone surrogate, which no file in UTF-8 has."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def by_lines(text: str, name: Normalization) -> str:
    """Return the text after the change `name`, such as `nfc`. Each line is changed separately.

    The result is the same as for the whole text at once, because no character changes together with one on another line. This saves memory:
    the library `tokenizers` needs 80 bytes for each byte of the text that it gets.
    """
    if text.isascii():
        return text.lower() if name == "lowercase" else text
    return "".join(map(change_of_line(name), text.splitlines(keepends=True)))


@cache
def change_of_line(name: Normalization) -> Callable[[str], str]:
    """Return what applies the change `name` to a line. Here, `strip_accents` also divides and joins accented letters before and after it."""
    from tokenizers import normalizers  # late: only texts beyond ASCII need it

    steps = ("nfd", "strip_accents", "nfc") if name == "strip_accents" else (name,)
    change: Callable[[str], str] = normalizers.Sequence([normalizer(step) for step in steps]).normalize_str
    return change


WORD = re.compile(r"\w+|[^\w\s]")
"""A run of letters, digits and underscores, or one other sign. White space only separates words."""
PIECE = re.compile(r" ?[^\W\d_]{1,999}| ?\d{1,999}| ?(?:[^\w\s]|_){1,999}|\s{1,999}(?!\S)|\s")
"""A piece, as in GPT-2, consists of letters, digits or signs with the space before them, or of white space. The pieces make up the whole text. They
are bounded, because `bpe` needs 150 bytes of memory for each byte of a piece."""


def words(text: str) -> list[str]:
    """Return the words of a text, and its other signs. Marks of letters, such as vowel signs of Hindi, and joiners within words belong to them."""
    if text.isascii() or marks().isdisjoint(text):
        return WORD.findall(text)
    return word_with_marks().findall(text)


@cache
def marks() -> frozenset[str]:
    """Return the marks and joiners that may follow a letter within a word, which are no letters for Python's regular expressions."""
    found = (chr(number) for number in (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)))
    return frozenset(("\u200c", "\u200d", *(sign for sign in found if unicodedata.category(sign).startswith("M"))))


@cache
def word_with_marks() -> re.Pattern[str]:
    return re.compile(rf"\w[\w{''.join(sorted(marks()))}]*|[^\w\s]")


def pieces(text: str) -> list[str]:
    return PIECE.findall(text)


PART_CHARACTERS, LONGEST_PART = 2**16, 2**18
"""The library needs up to 1,000 bytes of memory for each character, so it gets parts of a text: the first place after PART_CHARACTERS where a cut
changes no token ends a part. Without such a place, a part of LONGEST_PART is cut off."""
BEFORE_SPACE = re.compile(r"(?<=\w)(?= )")
BEFORE_SPACE_OR_AFTER_LINE = re.compile(r"(?<=\w)(?= )|(?<=\S\n)(?=\w)")


def parts(text: str, *, cut: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the text in parts of at most LONGEST_PART characters, cut at places of the pattern `cut`."""
    start = 0
    while len(text) - start > PART_CHARACTERS:
        place = cut.search(text, start + PART_CHARACTERS, start + LONGEST_PART) if cut else None
        stop = place.start() if place else start + LONGEST_PART
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def normalizer(name: str) -> Any:
    """Return the step `name` of a normalization from the library `tokenizers`, and nothing else: `strip_accents` finds separate accents only."""
    from tokenizers import normalizers

    if name in NORMALIZERS:
        return getattr(normalizers, NORMALIZERS[name])()
    return normalizers.BertNormalizer(**{option: name == f"bert_{option}" for option in BERT_OPTIONS})


def pre_tokenizer(description: PretrainedDescription) -> Any:
    from tokenizers import Regex, pre_tokenizers

    name, prefix = description.pre_tokenizer, description.add_prefix_space
    if name == "bert":
        return pre_tokenizers.BertPreTokenizer()
    if name == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True)
    first = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated") if name in PATTERNS else pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=name not in PATTERNS)])
