"""Reads the tokenizer of a pretrained model of Hugging Face from its file `tokenizer.json`."""

import hashlib
import json
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer_description import BERT_OPTIONS, CONTINUED, LONGEST_WORD, NORMALIZERS, PATTERNS, PretrainedDescription

MOST_BYTES = 2**26
"""Upper bound for the size of the file. Those of Llama 3 and Qwen 3 have 9 to 17 MB."""
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "[SEP]")
"""The tokens that end a text, in the order in which they are looked for."""
KNOWN = "BERT, RoBERTa, GPT-2, Llama 3 and Qwen 2 and 3"
SHOWN = 120


def read(path: Path, digest: str | None) -> PretrainedDescription:
    """Return the description of the tokenizer in the file `path`.

    Raises Refusal if the file cannot be read, if its SHA-256 is not `digest`, or if it has a part that this pipeline does not support.
    """
    try:
        content = untrusted.read(path, MOST_BYTES)
    except OSError as error:
        remedy = "write the path of the `tokenizer.json` of a model, or download one by `python -m pipeline set model=transformers:NAME`"
        raise Refusal(f"source.tokenizer_file: {path}: cannot be read ({untrusted.reason(error)}): {remedy}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        remedy = f"run `python -m pipeline set source.tokenizer_digest={found}`, or restore the file"
        raise Refusal(f"source.tokenizer_digest: is {digest or 'null'}, but the SHA-256 of {path} is {found}: {remedy}")
    return described(content, str(path))


@lru_cache(maxsize=1)
def described(content: bytes, place: str) -> PretrainedDescription:
    """Return the description of the tokenizer with the file contents `content`. Raises Refusal, which names the file as `place`."""
    try:
        return convert(json.loads(content))
    except NotImplementedError as error:
        problem, remedy = f"has {error}", f"choose a model with a tokenizer like that of {KNOWN}, or fit one to your texts"
    except ValidationError as error:
        first = error.errors()[0]
        problem = untrusted.shown(f"{'.'.join(map(str, first['loc']))} {first['msg'].removeprefix('Value error, ')}".strip())
        problem, remedy = f"cannot be used ({problem})", f"choose a model with a tokenizer like that of {KNOWN}"
    except (ValueError, RecursionError):
        problem, remedy = "is not a complete JSON file", "copy or download it again"
    except (KeyError, TypeError, AttributeError, IndexError):
        problem, remedy = "is not the `tokenizer.json` of a model of Hugging Face", "write the path of such a file"
    raise Refusal(f"source.tokenizer_file: {place}: {problem}: {remedy}")


def convert(data: dict[str, Any]) -> PretrainedDescription:
    """Return the description of the tokenizer `data`. Raises NotImplementedError, with its name, for a part that is not supported.

    Raises ValidationError, KeyError, TypeError, AttributeError or IndexError if `data` does not describe a tokenizer.
    """
    model, added = data["model"], data["added_tokens"]
    kind = model_kind(model)
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if [model["vocab"][token] for token in vocabulary] != list(range(len(vocabulary))):
        raise NotImplementedError("a vocabulary that leaves out numbers")
    numbers = {token["content"]: token["id"] for token in added}
    before, after = around(data["post_processor"])
    pre_tokenizer, add_prefix_space = pre_tokenization(data["pre_tokenizer"])
    return PretrainedDescription.model_validate(
        {
            "kind": kind,
            "normalization": normalization(data["normalizer"]),
            "pre_tokenizer": pre_tokenizer,
            "add_prefix_space": add_prefix_space,
            "ignore_merges": bool(model.get("ignore_merges")),
            "unknown": model["vocab"].get(model.get("unk_token")),
            "end": next((numbers[name] for name in ENDS if name in numbers), None),
            "before": before,
            "after": after,
            "added": [{"number": token["id"], **{key: value for key, value in token.items() if key != "id"}} for token in added],
            "vocabulary": vocabulary,
            "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", ())],
        }
    )


def model_kind(model: dict[str, Any]) -> str:
    """Return the kind of the description for the model of a tokenizer. Files of older versions of the library do not name its type."""
    name = model.get("type") or ("BPE" if "merges" in model else "WordPiece" if "max_input_chars_per_word" in model else "Unigram")
    if name == "WordPiece":
        if (model["continuing_subword_prefix"], model["max_input_chars_per_word"]) != (CONTINUED, LONGEST_WORD):
            raise NotImplementedError("the model WordPiece with other options than those of BERT")
        return "wordpiece"
    if name != "BPE":
        raise NotImplementedError(f"the model {untrusted.shown(name, SHOWN)}")
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
    if used := [option for option in options if model.get(option)]:
        raise NotImplementedError(f"the model BPE with the option {used[0]}")
    return "byte_level_bpe"


def normalization(part: Any) -> list[str]:
    """Return the names of the normalizations in the order in which they are applied."""
    classes = {name: kind for kind, name in NORMALIZERS.items()}
    match part:
        case None:
            return []
        case {"type": "Sequence", "normalizers": [*several]}:
            return [name for each in several for name in normalization(each)]
        case {"type": "BertNormalizer"}:
            strips = part.get("strip_accents")  # null stands for the value of `lowercase`
            options = {**part, "strip_accents": part["lowercase"] if strips is None else strips}
            return [f"bert_{option}" for option in BERT_OPTIONS if options[option]]
        case {"type": str(name)} if name in classes:
            return [classes[name]]
    raise unsupported("normalizer", part)


def pre_tokenization(part: Any) -> tuple[str, bool]:
    """Return the name of the pre-tokenizer, and whether it adds a space before a text."""
    patterns = {pattern: name for name, pattern in PATTERNS.items()}
    match part:
        case {"type": "BertPreTokenizer"}:
            return "bert", False
        case {"type": "ByteLevel", "add_prefix_space": bool(prefix)} if part.get("use_regex", True) is True:
            return "gpt2", prefix
        case {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"} as last]}:
            return "gpt2_digits", pre_tokenization(last)[1]
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if pattern in patterns:
            return patterns[pattern], False
    raise unsupported("pre-tokenizer", part)


def around(part: Any) -> tuple[list[int], list[int]]:
    """Return the numbers of the tokens that the post-processor puts before and after a single text."""
    match part:
        case None | {"type": "ByteLevel"}:
            return [], []
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, first], "sep": [_, last]}:
            return [first], [last]
        case {"type": "Sequence", "processors": [*several]}:
            pairs = [around(each) for each in several]
            return [number for before, _ in reversed(pairs) for number in before], [number for _, after in pairs for number in after]
        case {"type": "TemplateProcessing", "single": [*pieces]}:
            texts = [at for at, piece in enumerate(pieces) if "Sequence" in piece]
            numbers = [[] if at in texts else part["special_tokens"][piece["SpecialToken"]["id"]]["ids"] for at, piece in enumerate(pieces)]
            if len(texts) == 1:
                return list(chain.from_iterable(numbers[: texts[0]])), list(chain.from_iterable(numbers[texts[0] :]))
    raise unsupported("post-processor", part)


def unsupported(noun: str, part: Any) -> NotImplementedError:
    """Return an exception that names the types in a part of a tokenizer, and shows the beginning of the part."""
    name = part.get("type", "of unknown type") if isinstance(part, dict) else "of unknown type"
    beginning = untrusted.shown(json.dumps(part), SHOWN)
    return NotImplementedError(f"the {noun} {untrusted.shown(name, SHOWN)}, which is not supported: {beginning}")
