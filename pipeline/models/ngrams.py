"""A bag of words and word n-grams: the weighted sum of their vectors, then a linear layer. Small, and trained in seconds on a CPU.

The model is fastText's (Joulin et al., 2017, https://arxiv.org/abs/1607.01759), with two changes that help on few texts. The vectors begin at
zero, so an n-gram that train lacks adds nothing to the outputs. Their sum is divided by the square root of the number of tokens, not by that
number: as with tf-idf of norm 1, the features of short and of long texts then have about the same norm.
"""

from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from pipeline.core.refusal import Refusal
from pipeline.core.section import Share, Width
from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text.first_layer import indices

PRIME = 2**31 - 1
MULTIPLIER = 630_360_016
"""The multiplier of a random number generator with the modulus PRIME (Payne, Rabung and Bogyo, 1969). Its products with a hash fit int64."""


class Settings(ModelSettings):
    name: Literal["ngrams"]
    width: Width
    """Length of the vector of a token or n-gram."""
    max_n: Annotated[int, Field(gt=0, le=16)]
    """Tokens of the longest n-gram: 1 for single tokens only, 2 to add each pair of neighbours."""
    buckets: Annotated[int, Field(gt=0, le=2**24)]
    """Number of vectors for n-grams of two tokens and more. A hash chooses the vector of an n-gram, so some n-grams share one.
    Not used if `max_n` is 1."""
    dropout: Share
    """Dropout probability of the features of a text."""

    RECOMMENDED: ClassVar = {"width": 16, "max_n": 2, "buckets": 65_536, "dropout": 0.5}

    def build(self, spec: Spec) -> nn.Module:
        texts = TextInputs.of(spec)
        if spec.targets.stored == "windows":
            raise Refusal("model.name: ngrams has one output for each text, not for each token: write `recurrent` or `transformer`")
        return TextClassifier(self, texts, num_outputs=spec.num_outputs)


class TextClassifier(nn.Module):
    """Maps tokens (n, length) to outputs (n, num_outputs). The padding after a text does not change its outputs.

    One table has the vectors of the tokens, then those of the buckets. So a model with other tokens has another shape of it, and
    `model.weights` does not copy the vectors of other n-grams. It is an `nn.Embedding`, whose gradient is deterministic on a GPU, too.
    """

    def __init__(self, settings: Settings, texts: TextInputs, *, num_outputs: int) -> None:
        super().__init__()
        self.max_n, self.num_tokens, self.pad = settings.max_n, texts.num_tokens, texts.pad
        self.buckets = settings.buckets if settings.max_n > 1 else 0
        self.embedding = nn.Embedding(texts.num_tokens + self.buckets, settings.width)
        nn.init.zeros_(self.embedding.weight)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(settings.width, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != self.pad
        vectors = self.embedding(ngram_numbers(tokens, self.max_n, num_tokens=self.num_tokens, buckets=self.buckets, pad=self.pad))
        weights = real / real.sum(1, keepdim=True).clamp(min=1).to(vectors.dtype).sqrt()
        features = (vectors * weights[:, None, :, None]).sum((1, 2))
        return cast("Tensor", self.head(self.dropout(features)))


def ngram_numbers(tokens: Tensor, max_n: int, *, num_tokens: int, buckets: int, pad: int) -> Tensor:
    """Return the row in the table of each n-gram of `tokens` (n, length), for 1 to `max_n` tokens: int64 (n, max_n, length).

    At a position are the n-grams that end there. Before the text is padding, which has the number `pad`, so an n-gram at its beginning differs from the same
    tokens inside a text. Single tokens have their own numbers, and all others `num_tokens` plus a hash below `buckets`. The hash is a
    polynomial of the token numbers modulo a prime, in integers, so it is the same on every device.
    """
    hashes = tokens = tokens.long()
    numbers = [indices(tokens, pad)]
    for distance in range(1, max_n):
        earlier = functional.pad(tokens, (distance, 0), value=pad)[:, : tokens.shape[1]]
        hashes = (hashes * MULTIPLIER + earlier) % PRIME
        numbers.append(num_tokens + hashes % buckets)
    return torch.stack(numbers, dim=1)
