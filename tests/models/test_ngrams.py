"""The numbers of n-grams, and what an n-gram without training adds."""

import pytest
import torch

from pipeline.core.refusal import Refusal
from pipeline.models import ngrams
from pipeline.train import beginning
from tests.models.text_models import CLASSES, NGRAMS, texts
from tests.specs import text_spec

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


def test_the_order_does_not_matter_to_single_tokens() -> None:
    model = SETTINGS.model_copy(update={"max_n": 1}).build(text_spec(classes=CLASSES)).double()
    torch.nn.init.normal_(table := model.get_parameter("embedding.weight"))
    tokens = texts([12], padded_to=12)
    assert len(table) == 11, "there is a vector for each token and none for buckets"
    assert torch.allclose(model(tokens), model(tokens.flip(1)), rtol=0, atol=1e-12)


def test_a_language_model_is_refused() -> None:
    with pytest.raises(
        Refusal, match=r"model\.name: ngrams has one output for each text, not for each token: write `recurrent` or `transformer`"
    ):
        SETTINGS.build(text_spec())


def test_the_vectors_of_other_tokens_are_not_copied() -> None:
    """Also if there are as many of them, because the numbers of n-grams then stand for others."""
    before, other = text_spec(classes=CLASSES), text_spec(letters="bcdefghi", classes=CLASSES)
    assert beginning.of_other_data(SETTINGS, before, other) == {"embedding.weight"}
