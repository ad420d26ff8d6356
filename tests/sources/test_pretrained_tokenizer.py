"""Sources with the tokenizer of a pretrained model: prepared data, spec and model file agree, and an unusable file is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.inference import model_file
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.params import PrepareParams
from pipeline.prepare.reading import tokenizer_json
from pipeline.tools.check.command import describe_dataset
from tests import project
from tests.pretrained_tokenizers import BYTE_LEVEL, QWEN2, added, file, sequence

NAME = "data/weights/own/tokenizer.json"
UNFITTED = {"tokenizer": "pretrained", "tokenizer_file": NAME, "vocabulary": None, "min_count": None, "normalization": []}


def write(folder: Path, content: Any) -> dict[str, Any]:
    """Write the tokenizer's file, and return the keys of the source."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / NAME).parent.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(data)
    return UNFITTED | {"tokenizer_digest": hashlib.sha256(data).hexdigest()}


def made(folder: Path, kind: str, changes: dict[str, Any], *, setting: str) -> Path:
    keys = {f"source.{key}": value for key, value in write(folder, file(kind)).items()}
    return project.make(folder, keys | {"train.steps": 4, "train.validate_every_steps": 4} | changes, setting=setting)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_classifier_reads_texts_with_the_tokenizer_of_the_file(tmp_path: Path, kind: str) -> None:
    project.run(made(tmp_path, kind, {}, setting="texts"), "prepare", "train", "evaluate")
    prepared, (_, manifest) = Prepared.open(tmp_path / "data/prepared"), model_file.load(tmp_path / "models/model.safetensors")
    assert manifest.spec == prepared.spec
    library = Library.from_file(str(tmp_path / NAME))
    library.enable_truncation(12)
    lines = (tmp_path / project.TABLE).read_text().splitlines()
    texts = {tuple(library.encode(line.partition("\t")[2]).ids) for line in lines}
    found = [tuple(row[row >= 0].tolist()) for split in prepared.splits.values() for row in split.inputs]
    assert set(found) == texts
    (tmp_path / NAME).unlink()
    (prediction,) = (
        pytest.importorskip("pipeline.tools.predict.model").load_model(tmp_path / "models/model.safetensors").predict(["the red apple!"])
    )
    assert prediction.label in ("colour", "fruit", "metal")


def test_a_language_model_joins_documents_by_the_end_and_generates_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, "gpt2", {"train.batch_size": 4, "train.micro_batch_size": 4}, setting="code")
    project.run(folder, "prepare", "train", "evaluate")
    prepared = Prepared.open(tmp_path / "data/prepared")
    inputs = TextInputs.of(prepared.spec)
    assert prepared.train.inputs.ravel()[0] == inputs.tokenizer.end == inputs.num_tokens - 1
    rows = prepared.split("test").inputs
    assert np.count_nonzero(rows == inputs.tokenizer.end) >= 1
    assert 0 < np.count_nonzero(rows == -1) < rows.shape[1]
    scores = json.loads((tmp_path / "metrics/evaluate.json").read_text())["test"]
    assert scores["tokens"] in (np.count_nonzero(rows >= 0), np.count_nonzero(rows >= 0) - 1)
    pytest.importorskip("pipeline.tools.predict.generate")  # a fork may remove it
    capsys.readouterr()
    project.run(folder, "generate models/model.safetensors --length 5")
    assert capsys.readouterr().out


def params(root: Path, **changes: Any) -> PrepareParams:
    name = changes.get("name", "text_classification")
    fields: dict[str, Any] = {
        "name": name,
        "root": str(root),
        "valid": 0.0,
        "test": 0.4,
        "seed": 1,
        "folds": None,
        "fold": 0,
        "max_length": 8,
    }
    fields |= (
        {"pattern": "*", "divide": "position", "encoding": "utf-8"}
        if name == "text"
        else {
            "duplicates": "keep",
            "table": None,
            "text_column": 2,
            "task": "classification",
            "label_delimiter": None,
            "positive_class": None,
            "group_column": None,
            "divide": "random",
            "label_column": 1,
            "split_column": None,
            "encoding": "utf-8",
            "on_corrupt": "fail",
        }
    )
    return from_data({"source": fields | changes}, PrepareParams, "test")


def refusal(folder: Path, content: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> str:
    """Return what `check` says before anything runs."""
    monkeypatch.chdir(folder)
    project.write_table(folder / "texts.tsv")
    with pytest.raises(Refusal) as caught:
        describe_dataset(params(Path("texts.tsv"), **write(folder, content) | changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


UNKNOWN_PATTERN = {"type": "Split", "pattern": {"Regex": QWEN2.replace("{L}", "{M}")}, "behavior": "Isolated", "invert": False}
BAD = {
    "a pattern": (
        {"pre_tokenizer": sequence("pretokenizers", UNKNOWN_PATTERN, BYTE_LEVEL)},
        "has the pre-tokenizer Sequence, which is not supported: {",
    ),
    "SentencePiece": ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "has the model Unigram: choose a model with"),
    "metaspace": ({"pre_tokenizer": {"type": "Metaspace"}}, "has the pre-tokenizer Metaspace, which is not supported"),
    "a normalizer": ({"normalizer": {"type": "Replace", "content": ""}}, "has the normalizer Replace"),
    "a post-processor": ({"post_processor": {"type": "TemplateProcessing", "single": []}}, "has the post-processor TemplateProcessing"),
    "byte fallback": ({"model": {"type": "BPE", "byte_fallback": True}}, "has the model BPE with the option byte_fallback"),
    "numbers left out": ({"added_tokens": added({"<x>": 99_999})}, "cannot be used (has an added token whose number"),
    "a truncated file": (b'{"version": "1.0", "model": {"type": "WordPie', "is not a complete JSON file: copy or download it again"),
    "deep nesting": (b"[" * 200_000, "is not a complete JSON file"),
    "a foreign file": (b'{"architectures": []}', "is not the `tokenizer.json` of a model of Hugging Face: write the path of such a file"),
    "no object": (b"[1]", "is not the `tokenizer.json`"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_a_file_that_is_not_supported_is_refused_before_anything_runs(tmp_path: Path, monkeypatch, content, message: str) -> None:
    content = content if isinstance(content, bytes) else file("qwen2") | content
    assert refusal(tmp_path, content, monkeypatch).startswith(f"source.tokenizer_file: {NAME}: {message}")


def test_a_file_with_another_digest_is_refused_with_the_digest_to_write(tmp_path: Path, monkeypatch) -> None:
    digest = hashlib.sha256(b"{}").hexdigest()
    for before in (None, "0" * 64):
        message = refusal(tmp_path, b"{}", monkeypatch, tokenizer_digest=before)
        assert f"is {before or 'null'}, but the SHA-256 of {NAME} is {digest}" in message
        assert f"`python -m pipeline set source.tokenizer_digest={digest}`" in message
    assert "cannot be read (" in refusal(tmp_path, b"{}", monkeypatch, tokenizer_file="data/none.json")


def test_a_corpus_needs_an_end_and_a_row_room_for_text_and_a_file_of_limited_size(tmp_path: Path, monkeypatch) -> None:
    message = refusal(tmp_path, file("qwen2") | {"added_tokens": []}, monkeypatch, name="text")
    assert f"source.tokenizer_file: {NAME}: has none of the tokens <|endoftext|>, " in message
    monkeypatch.setattr("pipeline.prepare.inputs.text.PRETRAINED_BYTES", 2**16)
    assert "bytes as JSON, but at most 65536 are allowed: choose the tokenizer of" in refusal(tmp_path, file("gpt2"), monkeypatch)
    message = refusal(tmp_path, file("bert"), monkeypatch, max_length=2)
    assert message == "source.max_length: the tokenizer puts 2 tokens around each text: write at least 3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": 300}, "source.vocabulary: must be null for the tokenizer `pretrained`"),
        ({"normalization": ["nfc"]}, "source.normalization: must be [] for the tokenizer `pretrained`"),
        ({"tokenizer_file": None}, "source.tokenizer_file: must be a path for the tokenizer `pretrained`"),
        ({"tokenizer": "byte"}, "source.tokenizer_file: must be null for the tokenizer `byte`"),
        ({"tokenizer_digest": "abc"}, "source.tokenizer_digest: "),
    ],
)
def test_keys_that_do_not_fit_the_tokenizer_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=message.replace("[", r"\[")):
        params(Path("x"), **UNFITTED | {"tokenizer_digest": "0" * 64} | changes)


def test_a_bert_normalizer_strips_accents_where_it_lowers_the_case_unless_it_says_so() -> None:
    part = {"type": "BertNormalizer", "lowercase": True, "clean_text": False, "handle_chinese_chars": False}
    assert tokenizer_json.normalization({**part, "strip_accents": False}) == ["bert_lowercase"]
    assert {*tokenizer_json.normalization({**part, "strip_accents": None})} == {"bert_lowercase", "bert_strip_accents"}
