"""Writes target texts token by token: a beam search with an encoder-decoder model, which with a width of 1 always takes the most probable token."""

from typing import Any

import torch
from torch import Tensor, nn

from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports.metrics import DIVERGED


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
