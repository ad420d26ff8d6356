"""Tokenizers: texts survive the way to token numbers and back, and a description of a stranger is validated."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer import Tokenizer, normalize, pieces
from pipeline.core.tokenizer_description import END, LONGEST_TOKEN, MOST_TOKENS, NUM_SPECIAL, PAD, UNKNOWN, TokenizerDescription
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.inputs.text import PARALLELISM, fit
from tests.imports import TOP

TEXTS = ["the cat sat on the mat", "the dog sat on the café's mat ☕☕", "def f(x):\n    return x + 10\n", "==" * 400]
FIT = """
import os
from pipeline.prepare.inputs.text import fit
threads = len(os.listdir("/proc/self/task"))
texts = [" ".join(str(n * n % 977) for n in range(4000)), "à la mode " * 50]
for kind in ("character", "byte", "word", "bpe"):
    numbers = (None, None) if kind == "byte" else (400, 1)
    print(fit(texts, kind, normalization=("nfc",), most_tokens=numbers[0], min_count=numbers[1]).model_dump_json())
assert len(os.listdir("/proc/self/task")) == threads, "threads are left, with which a fork is unsafe"
"""


def fitted(kind, texts=TEXTS, *, normalization=(), most_tokens=300, min_count=1):
    numbers = (None, None) if kind == "byte" else (most_tokens, min_count)
    return Tokenizer(fit(texts, kind, normalization=normalization, most_tokens=numbers[0], min_count=numbers[1]))


BYTE, BPE, CHARACTER, WORD = (fitted(kind) for kind in ("byte", "bpe", "character", "word"))


@settings(max_examples=20, deadline=None)
@given(st.text())
def test_bytes_and_bpe_give_every_text_back(text):
    for tokenizer in (BYTE, BPE):
        tokens = tokenizer.encode(text)
        assert tokens.dtype == np.int32
        assert tokenizer.decode(tokens) == text
        assert tokenizer.num_characters[tokens].sum() == len(text)
        assert tokenizer.num_bytes[tokens].sum() == len(text.encode())


def test_pieces_are_bounded_and_make_up_the_text():
    text = "a" * 2500 + " " * 2500 + "x" + "1" * 1998 + " 1" + "_-" * 1000 + "\n" * 1000 + "é"
    found = list(pieces(text))
    assert "".join(found) == text
    assert max(map(len, found)) <= 1000
    assert BPE.decode(BPE.encode(text)) == text


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet="".join(TEXTS)))
def test_characters_of_the_vocabulary_come_back(text):
    tokens = CHARACTER.encode(text)
    assert len(tokens) == len(text)
    assert CHARACTER.decode(tokens) == text
    assert CHARACTER.num_bytes[tokens].sum() == len(text.encode())


@pytest.mark.parametrize("tokenizer", [BPE, WORD])
def test_a_tokenizer_is_rebuilt_from_its_description_as_json(tokenizer):
    text = TokenizerDescription.model_validate_json(tokenizer.description.model_dump_json())
    assert text == tokenizer.description
    rebuilt = Tokenizer(text)
    assert type(rebuilt) is type(tokenizer)
    for sentence in (*TEXTS, "unseen 123 été"):
        assert rebuilt.encode(sentence).tolist() == tokenizer.encode(sentence).tolist()


@pytest.mark.parametrize("tokenizer", [BYTE, CHARACTER, WORD])
def test_special_tokens_are_left_out_of_the_text_and_counted_as_documented(tokenizer):
    tokens = tokenizer.encode("the cat")
    assert tokenizer.decode([END, *tokens.tolist(), UNKNOWN, END, PAD, PAD]) == tokenizer.decode(tokens) == "the cat"
    assert tokenizer.num_characters[[PAD, UNKNOWN, END]].tolist() == tokenizer.num_bytes[[PAD, UNKNOWN, END]].tolist() == [0, 1, 0]
    assert len(tokenizer.num_characters) == len(tokenizer.num_bytes) == tokenizer.num_tokens
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode("").tolist() == []


@pytest.mark.parametrize(
    ("tokenizer", "expected"), [(CHARACTER, "the\ufffd\ufffdcat"), (WORD, "the \ufffd \ufffd cat"), (BYTE, "the\ufffd\ufffdcat")]
)
def test_unknown_tokens_are_shown_on_request(tokenizer, expected):
    tokens = [END, *tokenizer.encode("the").tolist(), UNKNOWN, UNKNOWN, *tokenizer.encode("cat").tolist(), PAD]
    assert tokenizer.decode(tokens, show_unknown=True) == expected


def test_bpe_remembers_a_bounded_number_of_pieces(monkeypatch):
    monkeypatch.setattr("pipeline.core.tokenizer.MOST_CACHED", 2)
    tokenizer = Tokenizer(BPE.description)
    assert tokenizer.encode("a b c d a e").tolist() == BPE.encode("a b c d a e").tolist()
    assert 1 <= len(tokenizer.cache) <= 2


def test_bytes_that_are_no_utf8_become_replacement_characters():
    assert BYTE.decode([NUM_SPECIAL + 0xC3, NUM_SPECIAL + ord("a")]) == "\ufffda"
    assert BPE.decode([NUM_SPECIAL + 0xFF]) == "\ufffd"


def test_a_lone_surrogate_becomes_a_replacement_character():
    assert BYTE.decode(BYTE.encode("a\ud800b")) == "a\ufffdb"
    assert fitted("bpe", ["\udfff"]).decode(BPE.encode("\udfff")) == "\ufffd"


def test_what_is_not_in_the_vocabulary_becomes_unknown():
    assert CHARACTER.encode("c☃t").tolist()[1] == UNKNOWN
    assert WORD.encode("the zebra sat").tolist()[1] == UNKNOWN
    assert WORD.decode(WORD.encode("the  cat's")) == "the cat ' s"


def test_the_vocabulary_has_the_most_frequent_tokens_that_occur_often_enough():
    assert fitted("word", ["b b a a c d"], most_tokens=NUM_SPECIAL + 3).description.vocabulary == ("a", "b", "c")
    assert fitted("word", ["b b a a c d"], min_count=2).description.vocabulary == ("a", "b")
    assert fitted("character", ["bbbaac"], min_count=2).description.vocabulary == ("b", "a")
    assert fitted("word", ["x" * (LONGEST_TOKEN + 1) + " y z"]).description.vocabulary == ("y", "z")


MARKED = {
    "vowel signs of Hindi": ("यह हिन्दी में।", ["यह", "हिन्दी", "में", "।"]),
    "separate accents": ("lo\u0323\u0301jo\u0301 ni\u0301", ["lo\u0323\u0301jo\u0301", "ni\u0301"]),
    "a joiner in Persian": ("\u0645\u06cc\u200c\u0631\u0648\u0645", ["\u0645\u06cc\u200c\u0631\u0648\u0645"]),
    "a sign with a mark": ("ok ❤\ufe0f!", ["ok", "❤", "\ufe0f", "!"]),
}


@pytest.mark.parametrize(("text", "expected"), MARKED.values(), ids=MARKED)
def test_marks_of_letters_belong_to_the_words_of_new_tokenizers_only(text: str, expected: list[str]) -> None:
    tokenizer = fitted("word", [text, "b c"])
    assert sorted(tokenizer.description.vocabulary) == sorted({*expected, "b", "c"})
    assert UNKNOWN not in tokenizer.encode(text)
    old = Tokenizer(tokenizer.description.model_copy(update={"joins_marks": False}))
    assert len(old.encode(text)) > len(expected) or text.startswith("ok")
    assert "joins_marks" not in old.description.model_dump()


@pytest.mark.parametrize(("kind", "texts", "count"), [("character", ["aaaa"], 1), ("word", [], 0)])
def test_a_vocabulary_of_less_than_two_is_refused(kind, texts, count):
    with pytest.raises(
        Refusal, match=rf"^source\.min_count: only {count} different {kind}s of at most \d+ characters occur at least 2 times"
    ):
        fitted(kind, texts, min_count=2)


def test_bpe_joins_the_most_frequent_pairs_up_to_the_number_of_tokens():
    merges = fitted("bpe", ["ab ab ab cd cd"], most_tokens=NUM_SPECIAL + 256 + 3).description.merges
    assert merges[0] == "a b"
    assert len(merges) == 3
    assert BPE.num_tokens == 300
    assert len(BPE.encode(TEXTS[0])) < len(TEXTS[0])
    assert fitted("bpe", ["ab ab cd"], min_count=2).description.merges == ("a b",)


def test_no_token_of_bpe_is_longer_than_the_bound():
    tokenizer = fitted("bpe", ["=" * 5000] * 3, most_tokens=400)
    assert tokenizer.num_bytes.max() <= LONGEST_TOKEN
    assert tokenizer.decode(tokenizer.encode("=" * 999)) == "=" * 999


def test_rows_are_truncated_and_padded():
    rows, lengths = BYTE.rows(["abc", "", "a"], 2)
    assert rows.tolist() == [[100, 101], [PAD, PAD], [100, PAD]]
    assert lengths.tolist() == [3, 0, 1]
    inputs = TextInputs(length=2, tokenizer=BYTE.description)
    assert inputs.lengths(rows).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        (("nfc",), "e\u0301", "é"),
        (("nfkc",), "ﬁ\u00a0x²", "fi x2"),
        (("lowercase",), "ÉA Ð", "éa ð"),
        (("strip_accents",), "Éà ñ", "Ea n"),
        (("collapse_whitespace",), "  a \t\n b ", "a b"),
        (("lowercase", "nfkc"), "\u210c", "H"),
        (("strip_accents", "lowercase"), "É\nÀ\r\n", "e\na\r\n"),
    ],
)
def test_a_text_is_normalized_in_the_given_order(changes, text, expected):
    assert normalize(text, changes) == expected
    assert fitted("byte", normalization=changes).encode(text).tolist() == BYTE.encode(expected).tolist()


def test_fitting_gives_the_same_description_in_every_process_with_any_number_of_threads():
    environments = [
        {PARALLELISM: "true", "RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "1"},
        {"RAYON_NUM_THREADS": "2", "PYTHONHASHSEED": "2"},
    ]
    outputs = [
        subprocess.run([sys.executable, "-c", FIT], cwd=TOP, env=variables, capture_output=True, text=True, check=True)
        for variables in environments
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert len(outputs[0].stdout.splitlines()) == 4


HOSTILE = {
    "a merge of an unknown token": ({"kind": "bpe", "merges": ["a b", "ab cd"]}, "neither a byte nor the result"),
    "a merge twice": ({"kind": "bpe", "merges": ["a b", "a b"]}, "same pair twice"),
    "too many merges": ({"kind": "bpe", "merges": ["a b"] * 100_000}, f"at most {MOST_TOKENS} items"),
    "tokens that double": ({"kind": "bpe", "merges": [f"{'a' * 2**n} {'a' * 2**n}" for n in range(12)]}, "at most 257 characters"),
    "no vocabulary": ({"kind": "word", "vocabulary": []}, "must have tokens"),
    "too many tokens": ({"kind": "word", "vocabulary": [str(n) for n in range(MOST_TOKENS + 1)]}, f"at most {MOST_TOKENS} items"),
    "a token twice": ({"kind": "word", "vocabulary": ["a", "b", "a"]}, "same token twice"),
    "an empty token": ({"kind": "word", "vocabulary": [""]}, "at least 1 character"),
    "a huge token": ({"kind": "word", "vocabulary": ["a" * 2_000_000]}, "at most 256 characters"),
    "a character of two": ({"kind": "character", "vocabulary": ["a", "bc"]}, "more than one character"),
    "a regular expression": ({"kind": "byte", "pattern": "(a+)+$"}, "not permitted"),
    "too many normalizations": ({"kind": "byte", "normalization": ["nfc"] * 100_000}, "at most 8 items"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_description_that_does_not_hold_together_is_refused(data, message):
    with pytest.raises(ValidationError, match=message):
        TokenizerDescription.model_validate(data)
    with pytest.raises(ValidationError):
        TokenizerDescription.model_validate_json(json.dumps(data))


def test_two_pairs_may_make_one_token():
    description = TokenizerDescription(kind="bpe", merges=("a b", "b c", "ab c", "a bc"))
    assert description.tokens[256:] == ("ab", "bc", "abc")
    assert description.num_tokens == NUM_SPECIAL + 259
    assert Tokenizer(description).encode("abc").tolist() == [NUM_SPECIAL + 258]
