"""Files `tokenizer.json` in the formats of well-known models, with tokenizers of their size, and texts that are hard for them."""

import json
import random
import re
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

FITTED = {"tokenizer_file": None, "tokenizer_digest": None}
"""The keys of a source whose tokenizer is fitted."""
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
SIZE = 4_000
SPECIAL_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
AFTER = {
    "smollm": ("<|endoftext|>",),
    "llama3": ("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>"),
    "qwen2": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
}
"""The special tokens after the vocabulary."""
SCRIPTS = ("bcdfghklmnprstvwz", "aeiouy", "бвгдж", "аеиоу", "αβγδ", "中文字母表", "กขค", "éüñç")


@cache
def corpus() -> list[str]:
    """Return lines of words that are made of random syllables, always the same."""
    draw = random.Random(1)
    consonants, vowels = SCRIPTS[0], SCRIPTS[1]
    syllables = [a + b + c for a in consonants for b in vowels for c in ("", *consonants[:5])]
    syllables += ["".join(draw.choice(script) for _ in range(2)) for script in SCRIPTS[2:] for _ in range(20)]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(40_000)]
    signs = [" ", " ", " ", ", ", ". ", "'s ", " 19", " 2024 ", "\n", "  ", "\t"]
    return ["".join(word.title() + draw.choice(signs) for word in draw.choices(words, k=400)) for _ in range(80)]


@cache
def trained() -> tuple[dict[str, int], list[tuple[str, str]], dict[str, int]]:
    """Return the vocabulary and the merges of a byte-level BPE, and the vocabulary of a WordPiece, with SIZE tokens each."""
    bpe: Any = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(bpe.to_str())["model"]
    words: Any = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106  # no password
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=list(SPECIAL_WORDS), show_progress=False))
    return model["vocab"], [(left, right) for left, right in model["merges"]], words.get_vocab()


def added(numbers: dict[str, int], **flags: bool) -> list[dict[str, Any]]:
    """Return the entries of added tokens, which are given with their numbers."""
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return [{"id": number, "content": content, **common} for content, number in numbers.items()]


def template(before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """Return the post-processor that puts these tokens, given with their numbers, before and after a text."""
    first, last = ([{"SpecialToken": {"id": name, "type_id": 0}} for name in names] for names in (before, after))
    known = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in {**before, **after}.items()}
    single = [*first, {"Sequence": {"id": "A", "type_id": 0}}, *last]
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": known}


def sequence(name: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", name: list(parts)}


def file(kind: str) -> dict[str, Any]:
    """Return the contents of the `tokenizer.json` of a model of the kind, one of FAMILIES."""
    vocabulary, merges, words = trained()
    size = len(vocabulary)
    options = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    bpe = {"type": "BPE", **options, "byte_fallback": False, "ignore_merges": kind == "llama3", "vocab": vocabulary, "merges": merges}
    old = options | {"merges": [" ".join(pair) for pair in merges]}  # an older file, whose model has no type
    split = {"type": "Split", "pattern": {"Regex": LLAMA3 if kind == "llama3" else QWEN2}, "behavior": "Isolated", "invert": False}
    after_number = {name: size + number for number, name in enumerate(AFTER.get(kind, ()))}
    of_bert = {name: words[name] for name in SPECIAL_WORDS}
    word_piece = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": words}
    of_roberta = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    shifted = {**of_roberta, **{token: number + 4 for token, number in vocabulary.items()}, "<mask>": size + 4}
    bert = {
        "added_tokens": added(of_bert),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template({"[CLS]": words["[CLS]"]}, {"[SEP]": words["[SEP]"]}),
        "model": {"type": "WordPiece", **word_piece},
    }
    files: dict[str, dict[str, Any]] = {
        "bert": bert,
        "bert-cased": bert | {"normalizer": bert["normalizer"] | {"lowercase": False}},
        "gpt2": {
            "added_tokens": added({"<|endoftext|>": size}, normalized=True),
            "model": old | {"vocab": {**vocabulary, "<|endoftext|>": size}},
        },
        "roberta": {
            "added_tokens": [*added(of_roberta, normalized=True), *added({"<mask>": size + 4}, lstrip=True)],
            "pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True},
            "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
            "model": old | {"vocab": shifted, "unk_token": "<unk>"},
        },
        "smollm": {
            "added_tokens": [*added(after_number), *added({"   ": size + 1}, special=False, normalized=True)],
            "pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
            "post_processor": None,
        },
        "llama3": {
            "pre_tokenizer": sequence("pretokenizers", split, BYTE_LEVEL | {"use_regex": False}),
            "post_processor": sequence("processors", BYTE_LEVEL, template({"<|begin_of_text|>": size}, {})),
        },
        "qwen2": {
            "added_tokens": [*added(after_number), *added({"<tool_call>": size + 3}, special=False)],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": sequence("pretokenizers", split, BYTE_LEVEL | {"use_regex": False}),
        },
    }
    common = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "added_tokens": added(after_number), "model": bpe}
    return common | {"pre_tokenizer": BYTE_LEVEL, "post_processor": BYTE_LEVEL, "decoder": BYTE_LEVEL} | files[kind]


FAMILIES = ("bert", "bert-cased", "gpt2", "roberta", "smollm", "llama3", "qwen2")
SPECIAL = re.split("  ", "<|endoftext|>  <s>  </s>   <mask>  [MASK]  [CLS]  <|im_start|>  <tool_call>  <|begin_of_text|>  [UNK]  ##")
SPACES = re.split(r"\|", "\r\n|\n|\n\n|  \n |\t|   |\u00a0|\u3000|\u2028|\x85|\x00|\x1b[0m|\x1c|\ufeff|\ufffd|\u200b|\u200d|\u202e|\u00ad")
LETTERS = (
    "e\u0301|\u0301| \u0301|Å|A\u030a|ﬁ|\u017f|İ|ß|ς|a\u0323\u0308|한|\u1112|\u037a|ﷺ|'S|'ll|it's|\u2019s|_|__init__|中|文字|日本語|กำ"
)
SIGNS = "👩\u200d👩\u200d👧\u200d👦|👍🏽|🇩🇪|١٢٣|½|²|Ⅻ|1234567|3.14|()[]{}<>|!?!?|''|http://a.b/c?d=e|\U000e0001|\U0010ffff"
PIECES = [*SPECIAL, *SPACES, *re.split(r"\|", f"{LETTERS}|{SIGNS}"), "a" * 101, "x" * 300, "=" * 40]


def hostile(count: int) -> list[str]:
    """Return random texts of all planes of Unicode, PIECES, and words of the corpus, always the same."""
    draw, words = random.Random(2), corpus()[0].split(" ")

    def piece() -> str:
        kind = draw.random()
        if kind < 0.15:
            number = draw.randrange(0x110000)
            return chr(number) if not 0xD800 <= number < 0xE000 else "\ud7ff"
        return draw.choice(PIECES) if kind < 0.55 else draw.choice(words) + draw.choice(("", " ", "\n"))

    return ["", " ", "\n", *("".join(piece() for _ in range(draw.randint(1, 40))) for _ in range(count - 3))]
