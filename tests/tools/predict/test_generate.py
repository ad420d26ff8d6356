"""`generate` streams a text, says why it ends, and refuses what it cannot continue."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.tokenizer_description import END, NUM_SPECIAL, TokenizerDescription
from pipeline.inference import model_file
from pipeline.inputs.text.description import TextInputs
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.tools.predict import generate
from tests.conftest import preset
from tests.models.text_models import CLASSIFIERS, LANGUAGE_MODELS

RECURRENT, TRANSFORMER = LANGUAGE_MODELS[1], LANGUAGE_MODELS[-2]
BYTES = TokenizerDescription(kind="byte")
LETTERS = TokenizerDescription(kind="character", vocabulary=tuple("abcdé\n\x1b"))
Model = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Return a function that writes the file of a model with random weights, without a chance of END, and returns its path.

    `likely` is a character that the model always takes.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")

    def write(settings: dict[str, Any], tokenizer: TokenizerDescription = LETTERS, *, likely: str = "", end: float = -1e6) -> str:
        targets = ClassTargets(classes=("a", "b")) if settings["pooling"] else NextTokenTargets()
        spec = Spec(inputs=TextInputs(length=20, tokenizer=tokenizer), targets=targets)
        params = preset({"model": settings})
        manifest = model_file.Manifest(params=params, spec=spec, precision="fp32", step=1, inputs={}, fingerprint={})
        torch.manual_seed(1)
        network = manifest.inference.model.build(spec)
        with torch.no_grad():
            if not settings["pooling"]:
                network.head.bias[END] = end
            for character in likely:
                network.head.bias[NUM_SPECIAL + tokenizer.tokens.index(character)] = 1e6
        model_file.export(tmp_path / "model.safetensors", network.state_dict(), manifest)
        return "model.safetensors"

    return write


@pytest.mark.parametrize("settings", [RECURRENT, TRANSFORMER], ids=["recurrent", "transformer"])
def test_the_prompt_and_the_text_are_printed_and_the_seed_alone_decides_it(model: Model, settings: dict[str, Any], capsys) -> None:
    path, found = model(settings), []
    for arguments in (["--seed", "1"], ["--seed", "1"], ["--seed", "2"], ["--temperature", "0", "--seed", "1"], ["--top-k", "1"]):
        assert main(["generate", path, "--prompt", "aé", "--length", "15", *arguments]) == 0
        output = capsys.readouterr()
        assert output.err == ""
        assert output.out.startswith("aé")
        assert len(output.out) == 2 + 15 + 1
        found.append(output.out)
    assert found[0] == found[1] != found[2]
    assert found[3] == found[4]


def test_a_text_that_ends_before_its_length_says_why(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", model(TRANSFORMER, likely="b"), "--prompt", "aaa", "--length", "99"]) == 0
    assert capsys.readouterr() == (
        "aaa" + "b" * 17 + "\n",
        "generate: stopped after 17 tokens: the model ended the text, or can read no more tokens\n",
    )
    assert main(["generate", model(TRANSFORMER, likely="b"), "--length", "99"]) == 0
    assert capsys.readouterr() == (  # an empty prompt is the end of the previous text
        "b" * 19 + "\n",
        "generate: stopped after 19 tokens: the model ended the text, or can read no more tokens\n",
    )
    assert main(["generate", model(TRANSFORMER, end=1e6)]) == 0
    assert capsys.readouterr() == ("\n", "generate: stopped after 0 tokens: the model ended the text, or can read no more tokens\n")
    assert main(["generate", model(RECURRENT, likely="b"), "--length", "99"]) == 0
    assert capsys.readouterr() == ("b" * 99 + "\n", "")


def test_tokens_of_the_prompt_that_the_model_does_not_know_are_counted(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", model(RECURRENT), "--prompt", "axyz", "--length", "3"]) == 0
    message = "3 of its 4 tokens are not in the model's vocabulary, so the model cannot tell them apart"
    assert capsys.readouterr().err == f"warning: --prompt: {message}\n"


def test_wrong_arguments_are_refused_with_a_line_for_each(model: Model, refused: Callable[..., list[str]]) -> None:
    path = model(TRANSFORMER)
    wrong = [*("--prompt", os.fsdecode(b"a\xff")), *("--temperature", "-1"), *("--top-k", "0"), *("--top-p", "0"), *("--length", "0")]
    assert refused("generate", path, *wrong) == [
        "--prompt: is not UTF-8",
        "--temperature: should be a number from 0, not -1.0",
        "--top-k: should be at least 1, not 0",
        "--top-p: should be above 0 and at most 1, not 0.0",
        "--length: should be at least 1, not 0",
    ]
    assert refused("generate", path, "--temperature", "nan", "--top-p", "1.5") == [
        "--temperature: should be a number from 0, not nan",
        "--top-p: should be above 0 and at most 1, not 1.5",
    ]


def test_the_bounds_of_the_arguments_are_accepted(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    bounds = ["--temperature", "0", "--top-k", "1", "--top-p", "1", "--length", "1"]
    assert main(["generate", model(TRANSFORMER, likely="b"), "--prompt", "a", *bounds]) == 0
    assert capsys.readouterr() == ("ab\n", "")


def test_a_prompt_that_is_too_long_is_refused_and_not_printed(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", model(TRANSFORMER), "--prompt", "a" * 20]) == 2
    message = "the prompt has 20 tokens, and a text of this model has at most 20 tokens, with its prompt: shorten the prompt"
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_a_classifier_is_refused_and_a_language_model_predicts_nothing(model: Model, refused: Callable[..., list[str]]) -> None:
    assert refused("generate", model(CLASSIFIERS[0])) == [
        "model.safetensors: is a model of the task classification, which generates no text: choose a language model"
    ]
    assert "this is a language model" in refused("predict", model(RECURRENT), "-")[0]


def test_weights_that_are_not_finite_are_refused(model: Model, refused: Callable[..., list[str]]) -> None:
    path = model(RECURRENT, end=float("nan"))
    assert refused("generate", path) == [
        "the outputs of the model are not finite: its training diverged; lower optimizer.learning_rate, or set a lower train.clip_norm, and train again"
    ]


def test_a_terminal_is_sent_no_control_characters(model: Model, capsys, monkeypatch) -> None:
    path = model(RECURRENT, likely="\x1b")
    assert main(["generate", path, "--length", "2"]) == 0
    assert capsys.readouterr().out == "\x1b\x1b\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["generate", path, "--prompt", "a\n", "--length", "2"]) == 0
    assert capsys.readouterr().out == "a\n\\x1b\\x1b\n"


TEXT = "Ein Ωmega, 漢字 und 👩‍🚀 am Ende 👍" * 9
TOKENIZERS = {
    "character": TokenizerDescription(kind="character", vocabulary=tuple(sorted(set(TEXT)))),
    "byte": BYTES,
    "bpe": TokenizerDescription(kind="bpe", merges=("Ã ©", "n d", "E n", "å Ń")),
    "word": TokenizerDescription(kind="word", vocabulary=tuple(sorted(set(TEXT.split()) | {",", "👩", "🚀", "👍Ein"}))),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_only_whole_characters_are_printed(kind: str) -> None:
    tokenizer = Tokenizer(TOKENIZERS[kind])
    tokens = [token for token in tokenizer.encode(TEXT).tolist() if token >= NUM_SPECIAL]
    for split in (0, 1, 21, 100):
        *pieces, rest = generate.pieces(tokens[:split], tokens[split:], tokenizer.decode)
        assert "".join(pieces) + rest == tokenizer.decode(tokens)[len(tokenizer.decode(tokens[:split]).removesuffix("\ufffd")) :]
        assert (len(pieces), rest) == (len(tokens[split:]), "")
        assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    tokenizer = Tokenizer(BYTES)
    content = bytes(torch.randint(0, 256, (500,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).tolist())
    printed = "".join(generate.pieces([], [NUM_SPECIAL + byte for byte in content], tokenizer.decode))
    assert printed == content.decode("utf-8", "replace")
