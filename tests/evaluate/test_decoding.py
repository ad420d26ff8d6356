"""A beam search finds what an exhaustive search finds, with a cache as without one. chrF and BLEU equal those of sacrebleu 2.6.0."""

import itertools

import pytest
import torch
from torch import nn

from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS
from pipeline.evaluate.generation import decode
from pipeline.evaluate.text_scores import bleu, chrf
from pipeline.inference.networks import Model
from tests import texts
from tests.specs import pair_spec

PAIRS = pair_spec(length=6, letters="abc").inputs
END = 2


@pytest.fixture(params=[1, 3])
def model(request: pytest.FixtureRequest) -> Model:
    """Return an encoder and decoder with random weights, so large that each token depends on all before it."""
    torch.manual_seed(request.param)
    settings = MODELS.settings("transformer")(**texts.ENCODER_DECODER | {"tied_embeddings": False})
    network = settings.build(pair_spec(length=6, letters="abc")).eval()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    return Model(network, nn.Identity()).eval()


def sources() -> torch.Tensor:
    return torch.tensor([[3, 4, 5, 3, 0, 0], [5, 0, 0, 0, 0, 0], [4, 4, 3, 5, 5, 3]], dtype=torch.int32)


def log_probabilities(model: Model, source: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Return the log-probabilities (length + 1, num_tokens) of the tokens after each beginning of `tokens`, without a cache."""
    network = model.network
    target = torch.tensor([[END, *tokens]], dtype=torch.int32)
    memory = network.encode(source[None])
    logits = network.head(network.decoder(target, memory.keys, None, memory.states))[0]
    logits[:, :2] = -torch.inf  # neither padding nor unknown
    return logits.log_softmax(-1)


@torch.inference_mode()
def test_a_beam_that_is_wide_enough_finds_the_text_with_the_best_mean(model: Model) -> None:
    short = PAIRS.model_copy(update={"target_length": 4})
    num_steps = short.target_length - 1
    for source, found in zip(sources(), decode(model, sources(), short, beam=64), strict=True):
        scores = {}
        for length in range(num_steps + 1):
            for tokens in itertools.product((3, 4, 5), repeat=length):
                ended = [*tokens, END][:num_steps]
                steps = log_probabilities(model, source, list(tokens))
                scores[tokens] = float(sum(steps[at, token] for at, token in enumerate(ended)) / len(ended))
        assert tuple(found) == max(scores, key=scores.__getitem__)


@torch.inference_mode()
def test_a_narrow_beam_keeps_the_beginnings_with_the_best_means(model: Model) -> None:
    for source, found in zip(sources(), decode(model, sources(), PAIRS, beam=2), strict=True):
        kept: list[tuple[float, list[int]]] = [(0.0, [])]
        for _ in range(PAIRS.target_length - 1):
            longer = [each for each in kept if END in each[1]]
            for total, tokens in (each for each in kept if END not in each[1]):
                steps = log_probabilities(model, source, tokens)[-1].tolist()
                longer += [(total + steps[token], [*tokens, token]) for token in (END, 3, 4, 5)]
            kept = sorted(longer, key=lambda each: -each[0] / len(each[1]))[:2]
        assert found == [token for token in kept[0][1] if token != END]


def test_a_text_does_not_depend_on_the_others_beside_it(model: Model) -> None:
    together = decode(model, sources(), PAIRS, beam=3)
    assert together == [decode(model, source[None], PAIRS, beam=3)[0] for source in sources()]


def test_a_diverged_model_is_refused(model: Model) -> None:
    with torch.no_grad():
        model.network.head.weight.fill_(torch.nan)
    with pytest.raises(Refusal, match="its training diverged"):
        decode(model, sources(), PAIRS)


TEXTS = ["the cat sat on the mat .", "A dog", "", "\u00fcn\u00efcode w\u00f6rds\there", "same text"]
REFERENCES = ["the cat is on the mat .", "A  dog barks, loudly!", "empty", "unicode words here", "same text"]


@pytest.mark.parametrize(
    ("texts", "references", "of_characters", "of_words"),
    [
        (TEXTS, REFERENCES, 49.09020410058549, 31.149672958460297),
        (["It costs $3,50 - or 4-x."], ["It costs $3.50 - or 4-y!"], 66.08836224548298, 37.99178428257963),
        (["same words in one text"], ["same words in one text"], 100.0, 100.0),
        ([""], ["ab"], 0.0, 0.0),
        (["one two three four-\n"], ["one two three four-"], 100.0, 100.0),
    ],
)
def test_scores_equal_those_of_sacrebleu(texts: list[str], references: list[str], of_characters: float, of_words: float) -> None:
    assert chrf(texts, references) == pytest.approx(of_characters, abs=1e-9)
    assert bleu(texts, references) == pytest.approx(of_words, abs=1e-9)
