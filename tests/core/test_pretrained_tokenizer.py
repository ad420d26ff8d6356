"""The tokenizers of pretrained models: their token numbers are those of the library, and their description is data that is validated."""

import json
from functools import cache

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer as Library

from pipeline.core import tokenizer as module
from pipeline.core.tokenizer import Tokenizer, parts
from pipeline.core.tokenizer_description import PretrainedDescription
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.reading import tokenizer_json
from tests.pretrained_tokenizers import FAMILIES, SIZE, file, hostile

NUM_TEXTS = 300


@cache
def library(kind):
    return Library.from_str(json.dumps(file(kind)))


@cache
def ours(kind):
    """Return our tokenizer, from its description as JSON."""
    data = TextInputs(length=64, tokenizer=tokenizer_json.convert(file(kind))).model_dump_json()
    return Tokenizer(TextInputs.model_validate_json(data).tokenizer)


def description(kind, **changes):
    return ours(kind).description.model_dump(mode="json") | changes


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_token_numbers_are_those_of_the_library(kind, monkeypatch):
    tokenizer, reference = ours(kind), library(kind)
    assert tokenizer.num_tokens == reference.get_vocab_size() >= SIZE
    texts = hostile(NUM_TEXTS)
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert [tokens.tolist() for tokens in tokenizer.encode_all(texts)] == expected
    monkeypatch.setattr(module, "PART_CHARACTERS", 20)
    assert [tokens.tolist() for tokens in tokenizer.encode_all(texts)] == expected, "a text that is cut has other tokens"


@pytest.mark.parametrize("kind", FAMILIES)
def test_rows_have_the_special_tokens_of_the_model_when_truncated_too(kind):
    texts, reference = ["Basel, 2024.", "a " * 40, ""], Library.from_str(json.dumps(file(kind)))
    rows, lengths = ours(kind).rows(texts, 12)
    assert lengths.tolist() == [len(reference.encode(texts[0]).ids), len(reference.encode(texts[1]).ids), 0]
    reference.enable_truncation(12)
    for row, text in zip(rows, texts, strict=True):
        assert row[row >= 0].tolist() == reference.encode(text).ids
    assert (rows[1] >= 0).all()
    assert TextInputs(length=12, tokenizer=ours(kind).description).lengths(rows[:2]).tolist() == [min(lengths[0], 12), 12]


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in ("bert", "bert-cased", "qwen2")])
def test_byte_level_tokens_give_the_text_back_and_count_its_characters(kind):
    tokenizer = ours(kind)
    for text in ("naïve 👩‍🚀\r\n\tof 123", " 中文\u0301 "):
        tokens = tokenizer.encode(text)
        decoded = tokenizer.decode(np.append(tokens, -1))
        assert decoded.removeprefix(" ") == text.removeprefix(" ")  # RoBERTa puts a space before a text
        assert tokenizer.num_characters[tokens].sum() == len(decoded)
        assert tokenizer.num_bytes[tokens].sum() == len(decoded.encode())


def test_words_of_wordpiece_come_back_with_single_spaces():
    tokenizer = ours("bert")
    tokens = tokenizer.encode("Bab  hello,\n☃")
    assert tokenizer.decode(tokens) == "bab hello ,"
    assert tokenizer.decode(tokens, show_unknown=True) == "bab hello , \ufffd"
    assert tokenizer.num_characters[tokens].sum() == len("babhello,") + 1


def test_special_tokens_are_left_out_and_the_end_has_no_characters():
    tokenizer = ours("qwen2")
    tokens = tokenizer.encode("<|im_start|>a<|endoftext|><tool_call>")
    assert tokenizer.decode(tokens) == "a<tool_call>"
    assert tokenizer.num_bytes[tokenizer.description.end] == 0


def test_a_long_text_without_spaces_is_cut_and_a_lone_surrogate_is_replaced(monkeypatch):
    assert list(map(len, parts("x" * 600_000, cut=module.BEFORE_SPACE))) == [2**18, 2**18, 600_000 - 2**19]
    tokenizer = ours("gpt2")
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    text = "ab12" * 70_000
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("kind", "end"), [("bert", "[SEP]"), ("roberta", "</s>"), ("gpt2", "<|endoftext|>"), ("llama3", "<|end_of_text|>")]
)
def test_the_end_is_a_token_and_padding_is_none(kind, end):
    described = ours(kind).description
    assert (described.tokens[described.end], described.pad) == (end, -1)


HOSTILE = {
    "a regular expression": ({"pre_tokenizer": "(a+)+$"}, "pre_tokenizer"),
    "an unknown normalization": ({"normalization": ["replace"]}, "normalization"),
    "a number that does not exist": ({"end": 200_000}, "does not exist"),
    "a merge of unknown tokens": ({"merges": ["a zzzzq"]}, "merge of tokens that are not"),
    "a byte without a token": ({"vocabulary": ["a"], "added": [], "merges": [], "end": None}, "each of the 256 bytes"),
    "numbers left out": ({"added": [{"number": 40_000, "content": "<x>"}]}, "next one after the vocabulary"),
    "long added tokens": (
        {"added": [{"number": at, "content": "a" * 1000 + str(at)} for at in range(SIZE, SIZE + 300)]},
        "added tokens of more than",
    ),
    "too many tokens": ({"vocabulary": [str(number) for number in range(262_145)]}, "at most 262144 items"),
}


@pytest.mark.parametrize(("changes", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_description_that_does_not_hold_together_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        PretrainedDescription.model_validate(description("qwen2", **changes))


def test_a_row_without_room_for_text_is_refused():
    with pytest.raises(ValidationError, match="as many tokens around a text as a row has"):
        TextInputs(length=2, tokenizer=ours("bert").description)
