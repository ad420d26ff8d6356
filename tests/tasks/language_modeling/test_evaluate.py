"""The evaluator of a language model: fed in pieces of any size, it gives the scores of the whole split, tables, and generated texts. Its loss and metrics."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.core.tokenizer_description import END, NUM_SPECIAL, PAD, TokenizerDescription
from pipeline.inference.batch import IGNORED, num_targets
from pipeline.inference.scores import rates
from pipeline.inputs.text.description import TextInputs
from pipeline.losses.cross_entropy import Settings as CrossEntropy
from pipeline.models.recurrent import Settings as Recurrent
from pipeline.tasks.language_modeling.evaluate import Evaluator, Settings, surprising
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.tasks.language_modeling.train import Objective
from tests.models.text_models import LANGUAGE_MODELS

LENGTH, NUM_ROWS = 6, 5
SPEC = Spec(
    inputs=TextInputs(length=LENGTH, tokenizer=TokenizerDescription(kind="character", vocabulary=tuple("abcdé"))),
    targets=NextTokenTargets(),
)
TEXTS = {"temperatures": (0.0, 1.0), "sample_tokens": 7, "prompt": "ab", "sample_seed": 3}
SETTINGS = Settings(
    name="language_modeling", batch_size=2, test_time_augmentation="none", metrics=(), passage_tokens=4, passages=3, **TEXTS
)
GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(NUM_SPECIAL, SPEC.num_outputs, (NUM_ROWS * LENGTH + 1,), generator=GENERATOR)
TOKENS[-4:] = PAD
TARGETS = torch.where(TOKENS[1:] == PAD, IGNORED, TOKENS[1:]).view(NUM_ROWS, LENGTH)
LOGITS = torch.randn(NUM_ROWS, LENGTH, SPEC.num_outputs, generator=GENERATOR)
HISTORY = [{"step": 1, "learning_rate": 0.1, "train/objective": 1.0, "valid/loss": 1.0}]


def fed(size: int, logits: torch.Tensor = LOGITS) -> Evaluator:
    evaluator = Evaluator(SPEC, SETTINGS)
    for start in range(0, len(logits), size):
        evaluator.add(logits[start : start + size], TARGETS[start : start + size])
    return evaluator


def test_the_size_of_the_pieces_changes_no_score_and_padding_counts_nowhere() -> None:
    scores = fed(2).scores()
    assert fed(1).scores() == scores == fed(5).scores()
    counted = TARGETS != IGNORED
    loss = cross_entropy(LOGITS[counted], TARGETS[counted]).item()
    assert scores["loss"] == pytest.approx(loss, rel=1e-6)
    assert scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)
    assert scores["tokens"] == int(counted.sum())
    assert scores["samples"] == NUM_ROWS
    assert scores["accuracy"] == pytest.approx((LOGITS.argmax(-1) == TARGETS)[counted].float().mean().item())
    assert scores["bits_per_character"] == pytest.approx(loss / math.log(2))
    assert scores["bits_per_byte"] < scores["bits_per_character"], "é has two bytes"


def test_each_row_has_its_summed_loss_and_the_number_of_its_targets() -> None:
    samples = fed(2).sample_scores()
    loss = cross_entropy(LOGITS.flatten(0, 1), TARGETS.flatten(), ignore_index=IGNORED, reduction="none").view(TARGETS.shape)
    assert samples.loss == pytest.approx(loss.sum(1).numpy(), rel=1e-6)
    assert np.array_equal(samples.correct, (LOGITS.argmax(-1) == TARGETS).sum(1))
    assert np.array_equal(samples.num_targets, (TARGETS != IGNORED).sum(1))


def test_logits_that_are_not_finite_are_refused_though_nan_marks_the_padding() -> None:
    for value in (math.nan, math.inf):
        logits = LOGITS.clone()
        logits[1, 2] = value
        with pytest.raises(Refusal, match="loss is not finite on the test split"):
            fed(2, logits).scores()


def test_a_prompt_that_fills_the_window_is_refused_before_anything_is_scored() -> None:
    with pytest.raises(Refusal, match=r"evaluate\.prompt: has 6 tokens, and a text of this model has at most 6"):
        Evaluator(SPEC, SETTINGS.model_copy(update={"prompt": "abcabc"}))


def test_the_most_surprising_passages_come_first_and_do_not_overlap() -> None:
    losses = np.array([1, 1, 1, 9, 0, 0, 5, 5, np.nan, np.nan], np.float32)
    assert surprising(losses, 4, 9) == [(0, 4, 3.0), (4, 4, 2.5)]
    assert surprising(losses, 3, 2) == [(6, 2, 5.0), (3, 3, 3.0)]


def test_tables_figures_and_texts_are_written_and_repeat(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Recurrent(**LANGUAGE_MODELS[0]).build(SPEC)
    model = torch.nn.Module()
    model.network = network
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        fed(2).write(folder, inputs=TOKENS[:-1].view(NUM_ROWS, LENGTH).numpy(), history=HISTORY, model=model.eval())
    names = {"history.png", "loss_by_position.csv", "loss_by_position.png", "samples.md", "surprising.csv"}
    assert {path.name for path in (tmp_path / "one").iterdir()} == names
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)
    with (tmp_path / "one/surprising.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == SETTINGS.passages
    whole = "".join("abcdé"[token - NUM_SPECIAL] for token in TOKENS.tolist() if token != PAD)
    losses = cross_entropy(LOGITS.flatten(0, 1), TARGETS.flatten(), reduction="none")
    for row in rows:  # the loss at a position is that of the token that follows
        first = int(row["token"]) - 1
        assert float(row["loss"]) == pytest.approx(losses[first : first + len(row["passage"])].mean().item(), rel=1e-5)
    assert all(whole[int(row["token"]) :].startswith(row["passage"]) for row in rows)
    assert all(whole[: int(row["token"])].endswith(row["before"]) for row in rows)
    text = (tmp_path / "one/samples.md").read_text(encoding="utf-8")
    assert "## Temperature 0\n" in text
    assert "## Temperature 1\n" in text
    assert text.count("\nab") == 2


WORDS = Spec(
    inputs=TextInputs(length=4, tokenizer=TokenizerDescription(kind="word", vocabulary=("a", "bb", "éé"))), targets=NextTokenTargets()
)
A, BB, EE = range(NUM_SPECIAL, NUM_SPECIAL + 3)
WORD_TARGETS = torch.tensor([[A, BB, EE, END], [BB, IGNORED, IGNORED, IGNORED]])


def objective() -> Objective:
    return Objective(WORDS, CrossEntropy(name="cross_entropy", class_weights="none", label_smoothing=0.0))


def test_a_model_has_an_output_for_each_token_and_guessing_costs_its_logarithm() -> None:
    assert WORDS.num_outputs == NUM_SPECIAL + 3
    loss = objective().loss(torch.zeros(2, 4, WORDS.num_outputs), WORD_TARGETS)
    assert loss.item() / num_targets(WORD_TARGETS).item() == pytest.approx(objective().chance_loss) == pytest.approx(math.log(6))


def test_characters_and_bytes_are_those_of_the_targets_that_count() -> None:
    logits = torch.nn.functional.one_hot(WORD_TARGETS.clamp(min=0), WORDS.num_outputs).float()
    sums = {name: value.item() for name, value in objective().sums(logits, WORD_TARGETS).items()}
    assert sums == {"correct": 5, "characters": 1 + 2 + 2 + 2, "bytes": 1 + 2 + 4 + 2}


def test_a_diverged_model_and_a_text_of_no_characters_give_infinite_rates() -> None:
    assert rates(1e9, 2, characters=2, size_bytes=2)["perplexity"] == math.inf
    assert rates(1.0, 1, characters=0, size_bytes=0)["bits_per_character"] == math.inf
