"""Loss and metrics of a language model against their definitions."""

import math

import pytest
import torch

from pipeline.core.spec import Spec
from pipeline.core.tokenizer_description import END, NUM_SPECIAL, TokenizerDescription
from pipeline.inference.batch import IGNORED, num_targets
from pipeline.inference.scores import rates
from pipeline.inputs.text.description import TextInputs
from pipeline.losses.cross_entropy import Settings as CrossEntropy
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.tasks.language_modeling.train import Objective

SPEC = Spec(
    inputs=TextInputs(length=4, tokenizer=TokenizerDescription(kind="word", vocabulary=("a", "bb", "éé"))), targets=NextTokenTargets()
)
A, BB, EE = range(NUM_SPECIAL, NUM_SPECIAL + 3)
TARGETS = torch.tensor([[A, BB, EE, END], [BB, IGNORED, IGNORED, IGNORED]])


def objective() -> Objective:
    return Objective(SPEC, CrossEntropy(name="cross_entropy", class_weights="none", label_smoothing=0.0))


def test_a_model_has_an_output_for_each_token_and_guessing_costs_its_logarithm() -> None:
    assert SPEC.num_outputs == NUM_SPECIAL + 3
    loss = objective().loss(torch.zeros(2, 4, SPEC.num_outputs), TARGETS)
    assert loss.item() / num_targets(TARGETS).item() == pytest.approx(objective().chance_loss) == pytest.approx(math.log(6))


def test_characters_and_bytes_are_those_of_the_targets_that_count() -> None:
    logits = torch.nn.functional.one_hot(TARGETS.clamp(min=0), SPEC.num_outputs).float()
    sums = {name: value.item() for name, value in objective().sums(logits, TARGETS).items()}
    assert sums == {"correct": 5, "characters": 1 + 2 + 2 + 2, "bytes": 1 + 2 + 4 + 2}


def test_the_metrics_follow_from_the_sums() -> None:
    found = objective().averages({"loss": 8 * math.log(2), "correct": 1.0, "characters": 16.0, "bytes": 32.0}, 4)
    assert found == pytest.approx({"perplexity": 4.0, "bits_per_character": 0.5, "bits_per_byte": 0.25, "accuracy": 0.25})
    assert found.keys() | {"loss"} == NextTokenTargets.metrics.keys()


def test_a_diverged_model_and_a_text_of_no_characters_give_infinite_rates() -> None:
    assert rates(1e9, 2, characters=2, size_bytes=2)["perplexity"] == math.inf
    assert rates(1.0, 1, characters=0, size_bytes=0)["bits_per_character"] == math.inf
