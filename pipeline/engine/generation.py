"""Generates text: draws the next token from a language model's logits, again and again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from pipeline.inputs.text.description import END, PAD, UNKNOWN
from pipeline.refusal import Refusal


class Generative(Protocol):
    """A language model that can continue a text without reading it again from its beginning."""

    longest: int | None
    """The largest number of tokens of a text; None if there is no bound."""

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Return the logits (n, num_tokens) of the token after `tokens` (n, length), and the cache for the next call.

        `cache` is what the previous call returned, or None at the beginning of a text. With a cache, `tokens` is a single token per text.
        """
        ...


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. `temperature` divides the logits; with 0, the most probable token is always taken.

    Only the `top_k` most probable tokens are drawn, and of these the fewest whose probabilities add up to at least `top_p`. None means no
    restriction.
    """

    temperature: float
    top_k: int | None = None
    top_p: float | None = None


def generate(network: nn.Module, prompt: Sequence[int], *, sampling: Sampling, generator: torch.Generator) -> Iterator[int]:
    """Yield the tokens after `prompt`, until the next one is END or the text, with its prompt, has as many tokens as the network accepts.

    `network` is Generative, and in evaluation mode. An empty prompt stands for END, the end of a previous text. `generator` is one of the
    CPU. The network computes in the precision of its weights: autocast would convert all weights again for each token. Raises Refusal if
    the prompt leaves no room for another token, or if the network's outputs are not finite.
    """
    assert not network.training
    model, tokens = cast("Generative", network), list(prompt) or [END]
    if model.longest is not None and len(tokens) >= model.longest:
        raise Refusal(f"the prompt has {len(tokens)} tokens, and a text of this model has at most {model.longest}: shorten the prompt")
    device = next(network.parameters()).device
    length, cache = len(tokens), None
    while model.longest is None or length < model.longest:
        with torch.inference_mode():
            logits, cache = model.step(torch.tensor([tokens], dtype=torch.int32, device=device), cache)
            token = draw(logits[0], sampling, generator)
        if token == END:
            return
        yield token
        tokens, length = [token], length + 1


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Return a token drawn by its logits (num_tokens,), never PAD or UNKNOWN. Computed in float64 on the CPU, so that devices draw alike.

    Raises Refusal if the logits are not finite.
    """
    logits = logits.double().cpu()
    if not logits.isfinite().all():
        raise Refusal("the outputs of the model are not finite, so it cannot generate text: train it again, with a lower learning rate")
    logits[[PAD, UNKNOWN]] = -torch.inf
    if sampling.temperature == 0:
        return int(logits.argmax())
    # subtract first: a tiny temperature would give infinities, whose difference is NaN
    logits = (logits - logits.max()) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < len(logits):
        logits[logits.argsort(descending=True, stable=True)[sampling.top_k :]] = -torch.inf
    probabilities = logits.softmax(0)
    if sampling.top_p is not None:
        ordered, order = probabilities.sort(descending=True, stable=True)
        before = ordered.cumsum(0) - ordered
        probabilities[order[before >= sampling.top_p]] = 0
    return int(torch.multinomial(probabilities, 1, generator=generator))
