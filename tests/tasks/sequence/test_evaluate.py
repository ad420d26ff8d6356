"""The evaluator of texts: fed in batches of any size, it gives the scores of all tokens, and compares the texts that the model writes."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pipeline.core.registry import MODELS
from pipeline.core.tokenizer import Tokenizer
from pipeline.evaluate import text_scores
from pipeline.evaluate.generation import decode
from pipeline.inference.batch import IGNORED
from pipeline.inference.batches import loader
from pipeline.inference.networks import Model
from pipeline.tasks.sequence.evaluate import Evaluator, Settings
from tests import texts

DATA, CPU = texts.pairs(), torch.device("cpu")
SETTINGS = Settings(name="sequence", batch_size=8, test_time_augmentation="none", metrics=(), beam=1, confidence_level=0.9, samples=3)
HISTORY = [{"step": 1, "learning_rate": 0.1, "train/objective": 1.0, "valid/loss": 1.0, "valid/accuracy": 0.1}]


@pytest.fixture
def model() -> Model:
    torch.manual_seed(1)
    return Model(MODELS.settings("transformer")(**texts.ENCODER_DECODER).build(DATA.spec), nn.Identity()).eval()


@torch.inference_mode()
def fed(model: Model, size: int) -> Evaluator:
    evaluator = Evaluator(DATA.spec, SETTINGS)
    for batch, real in loader.scoring(loader.SplitTensors(DATA.splits["test"], CPU), batch_size=size):
        evaluator.add(model(batch.inputs)[:real], batch.targets[:real])
    evaluator.write_texts(model, DATA.splits["test"].inputs, size, CPU)
    return evaluator


def test_the_scores_are_those_of_all_tokens_and_texts_for_batches_of_any_size(model: Model) -> None:
    scores = fed(model, 7).scores()
    pairs, rows = DATA.spec.inputs, torch.from_numpy(DATA.splits["test"].inputs)
    sources, targets = pairs.texts(rows)
    wanted = torch.where(targets[:, 1:] == pairs.pad, IGNORED, targets[:, 1:].long())
    with torch.inference_mode():
        logits = model(rows).double()
    assert scores["loss"] == pytest.approx(float(cross_entropy(logits.flatten(0, 1), wanted.flatten())), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    assert scores["accuracy"] == pytest.approx(float((logits.argmax(-1) == wanted)[wanted >= 0].double().mean()))
    tokenizer = Tokenizer(pairs.tokenizer)
    written, expected = ([tokenizer.decode(tokens) for tokens in side] for side in (decode(model, sources, pairs), targets.numpy()))
    assert scores["exact_match"] == np.mean([one == other for one, other in zip(written, expected, strict=True)])
    assert scores["chrf"] == text_scores.chrf(written, expected)
    whole = fed(model, 20).scores()
    assert {**whole, "loss": 0, "perplexity": 0} == {**scores, "loss": 0, "perplexity": 0}


def test_an_unknown_token_of_a_target_is_written_by_no_model(model: Model) -> None:
    evaluator, rows = Evaluator(DATA.spec, SETTINGS), DATA.splits["test"].inputs[:2].copy()
    rows[:, 0, DATA.spec.inputs.widths[0] + 1] = 1
    evaluator.write_texts(model, rows, 2, CPU)
    assert all("\N{REPLACEMENT CHARACTER}" in text for text in evaluator.targets)


def test_the_pairs_with_the_highest_loss_are_listed(model: Model, tmp_path: Path) -> None:
    evaluator = fed(model, 20)
    evaluator.write(tmp_path, inputs=DATA.splits["test"].inputs, history=HISTORY, model=model)
    with (tmp_path / "texts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == SETTINGS.samples
    losses = [float(row["loss"]) for row in rows]
    samples = evaluator.sample_scores()
    assert losses == sorted(samples.loss / samples.num_targets)[: -SETTINGS.samples - 1 : -1]
    assert all(row["source"][::-1] == row["target"] for row in rows)
