"""Generates text: draws the next token from a language model's logits, again and again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from pipeline.inputs.text.description import END, PAD, UNKNOWN
from pipeline.refusal import Refusal
from pipeline.seeding import derive


class Generative(Protocol):
    """The methods that the network of a language model needs for generation."""

    longest: int | None
    """The largest number of tokens of a text; None if there is no bound."""

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Return the logits (n, num_tokens) of the token after `tokens` (n, length), and the cache for the next call.

        `cache` is what the previous call returned, or None at the beginning of a text. With a cache, `tokens` is a single token per text.
        """
        ...


@dataclass(frozen=True)
class GenerationSettings:
    """How at most `length` tokens are drawn. `temperature` divides the logits; with 0, the most probable token is always taken.

    Only the `top_k` most probable tokens are drawn, and of these the fewest whose probabilities add up to at least `top_p`. None means no
    restriction.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    length: int
    seed: int


def generate(model: nn.Module, prompt: Sequence[int], *, settings: GenerationSettings) -> Iterator[int]:
    """Yield at most `settings.length` tokens that follow `prompt`: fewer if END comes, or if prompt and output reach `network.longest`
    tokens.

    The network of `model` must be Generative, and in evaluation mode. It computes in the precision of its weights: autocast would convert
    all weights again for each token. An empty prompt stands for END, the end of a previous text. Raises Refusal if the network has no
    method `step`, if the prompt leaves no room for another token, or if an output is not finite.
    """
    network, tokens = cast("Generative", model.network), list(prompt) or [END]
    if not hasattr(network, "step"):
        raise Refusal("this model cannot generate text: its network has no method `step` (docs/text-models.md)")
    if network.longest is not None and len(tokens) >= network.longest:
        raise Refusal(f"the prompt has {len(tokens)} tokens, and a text of this model has at most {network.longest}: shorten the prompt")
    assert not model.training
    length = settings.length if network.longest is None else min(settings.length, network.longest - len(tokens))
    generator = torch.Generator().manual_seed(derive(settings.seed, "generate"))
    device, cache = next(model.parameters()).device, None
    for _ in range(length):
        with torch.inference_mode():
            logits, cache = network.step(torch.tensor([tokens], dtype=torch.int32, device=device), cache)
            token = draw(logits[0], settings, generator)
        if token == END:
            return
        yield token
        tokens = [token]


def draw(logits: Tensor, settings: GenerationSettings, generator: torch.Generator) -> int:
    """Return a token drawn by its logits (num_tokens,), never PAD or UNKNOWN. Computes in float64 on the CPU, for every device.

    Raises Refusal if a logit is not finite.
    """
    logits = logits.double().cpu()
    if not logits.isfinite().all():
        raise Refusal("the outputs of the model are not finite: its training diverged; lower optimizer.learning_rate, and train again")
    logits = logits.index_fill(0, torch.tensor([PAD, UNKNOWN]), -torch.inf)
    if settings.temperature == 0:
        return int(logits.argmax())
    # subtract first: divided by a tiny temperature, the logits would be infinite, and their difference NaN
    ordered, order = (logits - logits.max()).sort(descending=True, stable=True)
    probabilities = (ordered / settings.temperature)[: settings.top_k].softmax(0)
    if settings.top_p is not None:
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities[before < settings.top_p]
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])
