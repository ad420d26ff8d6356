"""Writes texts token by token: a language model draws the next token from its logits, again and again; an encoder-decoder model writes target
texts by a beam search, which with a width of 1 always takes the most probable token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.core.refusal import Refusal
from pipeline.core.seeding import derive
from pipeline.core.tokenizer_description import AnyDescription
from pipeline.evaluate.reports.metrics import DIVERGED


@dataclass(frozen=True)
class GenerationSettings:
    """How tokens are drawn. `length` is the largest number of tokens to draw.

    `temperature` divides the logits; if it is 0, the most probable token is always taken. Only the `top_k` most probable tokens can be
    drawn. `top_p` restricts these further: in order of probability, tokens are kept until their probabilities add up to at least `top_p`.
    None means no restriction.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    length: int
    seed: int


def generate(model: nn.Module, prompt: Sequence[int], *, tokenizer: AnyDescription, settings: GenerationSettings) -> Iterator[int]:
    """Yield at most `settings.length` tokens that continue `prompt`.

    The network of `model`, which must be in evaluation mode, has an attribute `longest`, the largest number of tokens of a text (None without
    a bound), and a method `step(tokens, cache)`, which returns the logits (n, num_tokens) of the token after `tokens` (n, length), and the cache
    for the next call. The cache is None at the beginning of a text; with one, `tokens` is a single token per text.

    The generation stops earlier if `tokenizer.end` is drawn, or if prompt and output together have `network.longest` tokens. The network
    computes in the precision of its weights: autocast would convert all weights again for each token. An empty prompt is replaced by
    `tokenizer.end`, so the model begins a new text. Raises Refusal if the network has no method `step`, if `tokenizer` has no end, if the prompt
    leaves no room for another token, or if a logit is not finite.
    """
    end, excluded = tokenizer.end, [number for number in (tokenizer.pad, tokenizer.unknown) if number is not None and number >= 0]
    if end is None:
        raise Refusal("this model cannot generate text: its tokenizer has no token that ends a text")
    network: Any = model.network
    tokens = list(prompt) or [end]
    if not hasattr(network, "step"):
        raise Refusal("this model cannot generate text: its network has no method `step` (docs/text-models.md)")
    if network.longest is not None and len(tokens) >= network.longest:
        problem = f"the prompt has {len(tokens)} tokens, and a text of this model has at most {network.longest} tokens, with its prompt"
        raise Refusal(f"{problem}: shorten the prompt")
    assert not model.training
    length = settings.length if network.longest is None else min(settings.length, network.longest - len(tokens))
    generator = torch.Generator().manual_seed(derive(settings.seed, "generate"))
    device, cache = next(model.parameters()).device, None
    for _ in range(length):
        with torch.inference_mode():
            logits, cache = network.step(torch.tensor([tokens], dtype=torch.int32, device=device), cache)
            token = draw(logits[0], settings, generator, excluded)
        if token == end:
            return
        yield token
        tokens = [token]


def draw(logits: Tensor, settings: GenerationSettings, generator: torch.Generator, excluded: Sequence[int]) -> int:
    """Draw a token at random according to `logits` (num_tokens,) and `settings`, and return its number. No token of `excluded` is drawn.

    The logits are moved to the CPU and converted to float64, whatever the device of the model. Raises Refusal if a logit is not finite.
    """
    logits = logits.double().cpu()
    if not logits.isfinite().all():
        raise Refusal(f"the outputs of the model are not finite: {DIVERGED}")
    logits = logits.index_fill(0, torch.tensor(excluded, dtype=torch.long), -torch.inf)
    if settings.temperature == 0:
        return int(logits.argmax())
    # subtract first: divided by a tiny temperature, the logits would be infinite, and their difference NaN
    ordered, order = (logits - logits.max()).sort(descending=True, stable=True)
    probabilities = (ordered / settings.temperature)[: settings.top_k].softmax(0)
    if settings.top_p is not None:
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities[before < settings.top_p]
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def decode(model: nn.Module, sources: Tensor, pairs: Any, *, beam: int = 1) -> list[list[int]]:
    """Return the tokens of the target text that `model` writes for each of `sources` (n, length), without the ends.

    A beam search keeps the `beam` beginnings of each text with the highest mean log-probability of their tokens, the end included, until all
    of them have ended or have the target length of `pairs`, the description of the inputs. The network of `model` computes in the precision of
    its weights, and has two methods: `encode(sources)` returns what `step` needs of the source texts, tensors whose first dimension is that of
    the texts; `step(tokens, memory, cache)` returns the logits (n, num_tokens) of the token after `tokens` (n, length) of target texts, and the
    cache for the next call, objects whose method `select(rows)` keeps the texts at `rows` (n,). The cache is None at the beginning; with one,
    `tokens` is a single token per text. Raises Refusal if a logit is not finite.
    """
    network: Any = model.network
    end, device = pairs.tokenizer.end, sources.device
    if not hasattr(network, "encode"):
        raise Refusal("this model cannot write texts: its network has no methods `encode` and `step` (docs/sequences.md)")
    assert end is not None
    excluded = [number for number in (pairs.pad, pairs.tokenizer.unknown) if number is not None and number >= 0]
    count = sources.shape[0]
    firsts = torch.arange(count, device=device)[:, None] * beam
    with torch.inference_mode():
        memory = network.encode(sources)
        memory = type(memory)(*(tensor.repeat_interleave(beam, dim=0) for tensor in memory))
        written = torch.full((count * beam, 1), end, dtype=torch.int32, device=device)
        # At first, the beginnings of a text are equal: only one of them counts.
        totals = torch.full((count, beam), -torch.inf, device=device)
        totals[:, 0] = 0
        lengths, ended, cache = torch.zeros_like(totals), torch.zeros_like(totals, dtype=torch.bool), None
        for _ in range(pairs.target_length - 1):
            logits, cache = network.step(written[:, -1:], memory, cache)
            if not logits.isfinite().all():
                raise Refusal(f"the outputs of the model are not finite: {DIVERGED}")
            logits[:, excluded] = -torch.inf
            steps = logits.float().log_softmax(-1).view(count, beam, -1)
            # A text that has ended stays as it is: its only continuation is another end, which costs nothing.
            steps = steps.masked_fill(ended[:, :, None], -torch.inf)
            steps[:, :, end] = steps[:, :, end].masked_fill(ended, 0.0)
            longer = lengths + ~ended
            found = totals[:, :, None] + steps
            order = (found / longer[:, :, None]).flatten(1).topk(beam).indices
            parents, tokens = order // steps.shape[2], order % steps.shape[2]
            totals, lengths = found.flatten(1).gather(1, order), longer.gather(1, parents)
            ended = ended.gather(1, parents) | (tokens == end)
            rows = (firsts + parents).flatten()
            written = torch.cat([written[rows], tokens.view(-1, 1).int()], dim=1)
            if ended.all():
                break
            if beam > 1:
                for each in cache:
                    each.select(rows)
        best = (totals / lengths).argmax(dim=1)
    texts = written.view(count, beam, -1)[torch.arange(count, device=device), best, 1:].tolist()
    return [tokens[: tokens.index(end)] if end in tokens else tokens for tokens in texts]
