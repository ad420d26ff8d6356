"""Replaces random tokens by the token for words that are not in the vocabulary (word dropout, Iyyer et al., 2015)."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from pipeline.core.refusal import Refusal
from pipeline.inputs.text.description import TextInputs
from pipeline.train.transform_params import TextTransformSettings, Uniform


class Settings(TextTransformSettings):
    name: Literal["token_dropout"]
    probability: Annotated[float, Field(gt=0, lt=1)]
    """The probability that a token is replaced."""

    def refuse_misfit(self, text: TextInputs, key: str) -> None:
        if text.tokenizer.unknown is None:
            raise Refusal(f"{key}: token_dropout needs a token for unknown words, and this tokenizer has none: remove it")

    def changed_tokens(self, tokens: Tensor, uniform: Uniform, text: TextInputs) -> Tensor:
        assert text.tokenizer.unknown is not None
        return tokens.masked_fill(uniform(tokens.shape[1]) < self.probability, text.tokenizer.unknown)
