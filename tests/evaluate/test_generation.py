"""Generated text: with the cache, the tokens are those of the whole network; draws follow the settings and the seed alone."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer_description import END, PAD, UNKNOWN, TokenizerDescription
from pipeline.evaluate import generation
from pipeline.evaluate.generation import GenerationSettings
from tests.models.text_models import LANGUAGE_MODELS, build, texts, title

generate = partial(generation.generate, tokenizer=TokenizerDescription(kind="byte"))
draw = partial(generation.draw, excluded=[PAD, UNKNOWN])
LENGTH = 40
_, LSTM, _, _, ROTARY, LEARNED = LANGUAGE_MODELS


def settings(**changes: Any) -> GenerationSettings:
    return GenerationSettings(**{"temperature": 0.0, "top_k": None, "top_p": None, "length": 30, "seed": 1} | changes)


def model_of(network: nn.Module) -> nn.Module:
    model = nn.Module()
    model.network = network
    return model.double().eval()


def endless(settings: dict[str, Any]) -> nn.Module:
    """Return the model of these settings, with large weights so that the text matters, and without a chance of END."""
    network = build(settings, length=LENGTH)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1 and "norm" not in name:
                parameter.mul_(5)
        network.get_parameter("head.bias")[END] = -1e6
    return model_of(network)


@pytest.mark.parametrize("model", [LSTM, ROTARY, LEARNED], ids=title)
def test_each_step_gives_the_logits_of_the_whole_text(model: dict[str, Any]) -> None:
    network = endless(model).network
    tokens = texts([12, 12], padded_to=12)
    expected, cache, found = network(tokens), None, []
    for part in (tokens[:, :5], *tokens[:, 5:].split(1, dim=1)):
        logits, cache = network.step(part, cache)
        found.append(logits)
    assert torch.allclose(torch.stack(found, dim=1), expected[:, 4:], rtol=0, atol=1e-10)
    assert (expected[0] - expected[1]).abs().max() > 0.1


@pytest.mark.parametrize("model", [LSTM, ROTARY], ids=title)
def test_a_text_ends_at_the_length_asked_for_or_at_that_of_a_transformer(model: dict[str, Any]) -> None:
    network = endless(model)
    bound = None if model["name"] == "recurrent" else LENGTH
    assert network.network.longest == bound
    for prompt in ([], [3] * (LENGTH - 1)):
        for length in (1, 2 * LENGTH):
            expected = length if bound is None else min(length, bound - max(1, len(prompt)))
            assert len(list(generate(network, prompt, settings=settings(length=length)))) == expected
    if bound:
        with pytest.raises(Refusal, match=r"the prompt has 41 tokens, and a text of this .*tokens, with its prompt: shorten the prompt"):
            next(generate(network, [3] * 41, settings=settings()))


class Scripted(nn.Module):
    """Gives the same logits at each step, and records the tokens that it reads."""

    longest = None

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.read: list[list[int]] = []
        self.caches: list[int | None] = []

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        self.read.append(tokens[0].tolist())
        self.caches.append(cache)
        return self.logits[None], len(self.read)


def test_an_empty_prompt_begins_after_the_end_of_a_text_and_each_token_is_read_once() -> None:
    network = Scripted([0.0, 0.0, 0.0, 1.0, 5.0])
    assert list(generate(model_of(network), [], settings=settings(length=3))) == [4, 4, 4]
    assert network.read == [[END], [4], [4]]
    assert network.caches == [None, 1, 2]


def test_a_text_ends_where_the_model_ends_it() -> None:
    assert list(generate(model_of(Scripted([9.0, 9.0, 5.0, 1.0])), [3], settings=settings())) == []


def test_the_seed_alone_decides_the_text() -> None:
    model = model_of(Scripted([0.0] * 2 + [-1e6] + [1.0] * 20))
    found = [list(generate(model, [3], settings=settings(temperature=1.0, seed=seed))) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    torch.manual_seed(5)  # and not torch's own state
    assert list(generate(model, [3], settings=settings(temperature=1.0))) == found[0]


NUM_DRAWS = 2000


def frequencies(logits: list[float], **changes: Any) -> Tensor:
    """Return the share of each token in many draws."""
    generator = torch.Generator().manual_seed(0)
    drawn = [draw(torch.tensor(logits), settings(**{"temperature": 1.0} | changes), generator) for _ in range(NUM_DRAWS)]
    return torch.bincount(torch.tensor(drawn), minlength=len(logits)) / len(drawn)


LOGITS = [50.0, 50.0, 0.0, 2.0, 1.0, 3.0]


def test_tokens_are_drawn_with_their_probabilities_at_the_temperature_and_never_padding_or_unknown() -> None:
    expected = torch.cat((torch.zeros(2), (torch.tensor(LOGITS[2:]) / 0.5).softmax(0)))
    assert torch.allclose(frequencies(LOGITS, temperature=0.5), expected, atol=0.04)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"top_k": 2}, {5, 3}),
        ({"top_p": 0.6}, {5}),  # its probability is 0.64
        ({"top_p": 0.7}, {5, 3}),
        ({"top_k": 2, "top_p": 0.7}, {5}),  # of the two most probable alone, it has 0.73
        ({"temperature": 1e-300}, {5}),
    ],
    ids=str,
)
def test_top_k_and_top_p_restrict_the_tokens(changes: dict[str, Any], tokens: set[int]) -> None:
    assert set(frequencies(LOGITS, **changes).nonzero().flatten().tolist()) == tokens


def test_outputs_that_are_not_finite_are_refused() -> None:
    for value in (float("nan"), float("-inf")):
        with pytest.raises(Refusal, match="the outputs of the model are not finite"):
            draw(torch.tensor([*LOGITS, value]), settings(), torch.Generator())
