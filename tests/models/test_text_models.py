"""What every text model promises: padding changes nothing, no text gives NaN, and the network can be exported, compiled and cut."""

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS
from pipeline.models import ngrams, recurrent, transformer
from tests.models.text_models import CLASSES, CLASSIFIERS, LANGUAGE_MODELS, NGRAMS, build, spec_for, texts, title
from tests.specs import bytes_of_gpt2, text_spec

WITH_BLOCKS = [CLASSIFIERS[1], CLASSIFIERS[-1], LANGUAGE_MODELS[1], LANGUAGE_MODELS[-2]]
"""A bidirectional LSTM and a transformer that classify, and two language models with tied embeddings."""
ONE_OF_EACH = [*WITH_BLOCKS, NGRAMS]
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch's compiler hides it only if it is no error


@pytest.mark.parametrize("settings", [*ONE_OF_EACH, CLASSIFIERS[3], LANGUAGE_MODELS[3]], ids=title)
def test_texts_of_every_length_become_outputs_of_the_task_and_the_seed_alone_decides_them(settings: dict[str, Any]) -> None:
    first, second, other = (build(settings, seed=seed) for seed in (1, 1, 2))
    for length in (1, 5, 12):
        tokens = texts([length, 1], padded_to=length)
        outputs = first(tokens)
        assert outputs.shape == ((2, len(CLASSES)) if settings.get("pooling", True) else (2, length, 11))
        assert torch.equal(outputs, second(tokens))
        assert not torch.equal(outputs, other(tokens))


@pytest.mark.parametrize("settings", [*CLASSIFIERS, NGRAMS], ids=title)
def test_a_padded_text_has_the_outputs_of_the_text_alone(settings: dict[str, Any]) -> None:
    network = build(settings).double()
    lengths = [12, 1, 7, 2]
    tokens = texts(lengths, padded_to=12)
    alone = torch.cat([network(row[None, :length]) for row, length in zip(tokens, lengths, strict=True)])
    assert torch.allclose(network(tokens), alone, rtol=0, atol=1e-12)
    assert (alone.unsqueeze(1) - alone).abs().amax(2).fill_diagonal_(1).min() > 1e-6  # the texts do differ


@pytest.mark.parametrize("settings", [*CLASSIFIERS, NGRAMS], ids=title)
def test_the_padding_of_a_pretrained_tokenizer_is_no_token_and_changes_no_output(settings: dict[str, Any]) -> None:
    network = build(settings, tokenizer=bytes_of_gpt2()).double()
    lengths, tokens = [5, 4, 1], torch.tensor([[0, 9, 0, 1, 0], [0, 9, 0, 1, -1], [0, -1, -1, -1, -1]], dtype=torch.int32)
    alone = torch.cat([network(row[None, :length]) for row, length in zip(tokens, lengths, strict=True)])
    assert torch.allclose(network(tokens), alone, rtol=0, atol=1e-12)
    assert (alone[0] - alone[1]).abs().max() > 1e-6, "the token 0 is taken for padding"


@pytest.mark.parametrize("settings", [LANGUAGE_MODELS[1], *LANGUAGE_MODELS[-2:]], ids=title)
def test_no_token_changes_the_outputs_before_it(settings: dict[str, Any]) -> None:
    network = build(settings).double()
    tokens = texts([12, 12], padded_to=12)
    whole = network(tokens)
    for length in (1, 6):
        padded = tokens.clone()
        padded[:, length:] = 0
        assert torch.allclose(network(padded)[:, :length], whole[:, :length], rtol=0, atol=1e-12)
        assert torch.allclose(network(tokens[:, :length]), whole[:, :length], rtol=0, atol=1e-12)
    assert not torch.allclose(whole[0, 0], whole[1, 0])


@pytest.mark.parametrize("settings", [*ONE_OF_EACH, CLASSIFIERS[4]], ids=title)
def test_a_row_of_padding_alone_gives_finite_outputs_and_gradients(settings: dict[str, Any]) -> None:
    network = build(settings)
    outputs = network(texts([0, 3, 0], padded_to=12))
    outputs.square().sum().backward()
    assert outputs.isfinite().all()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("settings", ONE_OF_EACH, ids=title)
def test_bf16_gives_finite_outputs_near_those_of_float32(settings: dict[str, Any]) -> None:
    network = build(settings)
    tokens = texts([12, 3, 0], padded_to=12)
    expected = network(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = network(tokens)
    assert torch.allclose(outputs.float(), expected, atol=0.03)
    assert torch.allclose(network.bfloat16()(tokens).float(), expected, atol=0.03)


@pytest.mark.parametrize(("cell", "autocast"), [("rnn", torch.bfloat16), ("lstm", torch.float16)])
def test_a_cell_computes_in_float32_under_autocast_on_a_cpu(cell: str, autocast: torch.dtype) -> None:
    """Only some CPUs have such a cell, so its absence shows on others alone."""
    network: nn.RNNBase = recurrent.CELLS[cell](8, 8, batch_first=True)
    with torch.autocast("cpu", dtype=autocast):
        outputs, _ = recurrent.run_cell(network, torch.randn(2, 3, 8, dtype=autocast))
    assert outputs.dtype == torch.float32


@pytest.mark.parametrize(
    "settings",
    [CLASSIFIERS[-1], *(pytest.param(each, marks=pytest.mark.slow) for each in (CLASSIFIERS[0], CLASSIFIERS[-2], LANGUAGE_MODELS[2]))],
    ids=title,
)
def test_an_exported_network_takes_any_number_of_texts_of_any_length(settings: dict[str, Any]) -> None:
    network = build(settings).eval().requires_grad_(False)
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1, max=12)
    exported = torch.export.export(network, (texts([12, 5], padded_to=12),), dynamic_shapes=({0: batch, 1: length},)).module()
    for lengths, padded_to in (([12, 5], 12), ([3, 7, 1], 7), ([4], 4), ([1], 1), ([1, 0], 2)):
        tokens = texts(lengths, padded_to=padded_to, seed=2)
        assert torch.allclose(exported(tokens), network(tokens), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        (LANGUAGE_MODELS[1], {"bidirectional": True}, "model.bidirectional: a language model must not read the tokens that it predicts"),
        (CLASSIFIERS[0], {"tied_embeddings": True}, "model.tied_embeddings: the outputs of a classifier are not tokens: set it to false"),
        (CLASSIFIERS[-1], {"tied_embeddings": True}, "model.tied_embeddings: the outputs of a classifier are not tokens: set it to false"),
    ],
    ids=["bidirectional", "recurrent", "transformer"],
)
def test_parameters_that_the_task_cannot_use_are_refused(settings: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        MODELS.settings(settings["name"])(**settings | changes).build(spec_for(settings))


@pytest.mark.parametrize("settings", [CLASSIFIERS[0], CLASSIFIERS[-1]], ids=title)
def test_pooling_is_for_classifiers_and_needed_by_them(settings: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"model\.pooling: a language model or decoder has an output for each token and pools nothing"):
        MODELS.settings(settings["name"])(**settings | {"bidirectional": False} if "cell" in settings else settings).build(
            spec_for(settings | {"pooling": None})
        )
    with pytest.raises(Refusal, match=r"model\.pooling: a classifier needs one vector for each text: set it to"):
        MODELS.settings(settings["name"])(**settings | {"pooling": None}).build(spec_for(settings))


def test_pairs_of_elements_turn_by_angles_that_grow_with_the_position() -> None:
    """As complex numbers: a later change of direction would make model files answer otherwise."""
    vectors = torch.randn(2, 5, 8, dtype=torch.float64)
    angles = torch.arange(3, 8)[:, None] * 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    expected = torch.complex(*vectors.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    found = transformer.rotated(vectors, transformer.rotations(torch.arange(3, 8), 8, torch.float64))
    assert torch.allclose(found, torch.cat((expected.real, expected.imag), dim=-1))


SETTINGS = ngrams.Settings(**NGRAMS)


def test_the_number_of_an_ngram_is_a_polynomial_of_its_tokens_modulo_a_prime() -> None:
    """A later change would make model files answer otherwise. Large numbers would show an overflow."""
    first, second, third = text = [65_535, 3, 65_534]
    pairs = [(first, 0), (second, first), (third, second)]
    hashes = [(last * 630_360_016 + earlier) % (2**31 - 1) for last, earlier in pairs]
    longer = [(value * 630_360_016 + earlier) % (2**31 - 1) for value, earlier in zip(hashes, (0, 0, first), strict=True)]
    expected = [text, *([65_536 + value % 1000 for value in row] for row in (hashes, longer))]
    found = ngrams.ngram_numbers(torch.tensor([text], dtype=torch.int32), 3, num_tokens=65_536, buckets=1000, pad=0)
    assert found.tolist() == [expected]


def test_an_ngram_that_train_lacks_adds_nothing() -> None:
    network = SETTINGS.build(text_spec(classes=CLASSES))
    outputs = network(texts([12, 3, 1], padded_to=12))
    assert torch.equal(outputs, network.get_parameter("head.bias").expand(3, -1))


def test_a_language_model_is_refused() -> None:
    with pytest.raises(Refusal, match=r"model\.name: ngrams has one output for each .*each token: write `recurrent` or `transformer`"):
        SETTINGS.build(text_spec())
