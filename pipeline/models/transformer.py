"""Transformers for text with pre-norm blocks: an encoder that classifies texts, a causal language model, or an encoder and decoder for pairs."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from pipeline.core.section import Depth, Share, Width
from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text.first_layer import attended, indices, mean, refuse_misfit
from pipeline.inputs.text_pair.description import TextPairInputs

BLOCK_NAMES = r"(?:body|encoder|decoder)\.blocks\.\d+\."
"""The beginning of the names of a block's parameters, for `optimizer.layer_decay`."""
INITIAL_STD = 0.02
"""Standard deviation of the initial weights, that of GPT-2 (Radford et al., 2019)."""
ROTARY_BASE = 10_000.0
"""The base of the rotary frequencies of RoFormer (Su et al., 2021, https://arxiv.org/abs/2104.09864)."""


class Settings(ModelSettings):
    name: Literal["transformer"]
    width: Width
    """Length of the vector of a token."""
    depth: Depth
    """Number of blocks, each of attention and an MLP. For pairs of texts, encoder and decoder have so many each."""
    heads: Annotated[int, Field(gt=0, le=1024)]
    """Attention heads of each block; `width` must be divisible by their number."""
    mlp_ratio: Annotated[float, Field(gt=0, le=64)]
    """Hidden units of each MLP, relative to `width`: 4.0 is usual with `gelu`; 2.67 has as many weights with `swiglu`."""
    activation: Literal["gelu", "swiglu"]
    """The MLP's activation. `swiglu` multiplies the hidden units with those of a second layer."""
    positions: Literal["rotary", "learned"]
    """How a position is represented: `rotary` rotates queries and keys, `learned` adds a learned vector to each token."""
    pooling: Literal["mean", "first"] | None
    """The features of a text: the `mean` of its tokens, or its `first` token. Null for a language model and for pairs of texts."""
    tied_embeddings: bool
    """Use the token vectors as the weights of the last layer, too; for pairs of texts, one table of them for both texts. Must be false for a classifier."""
    dropout: Share
    """Dropout probability of the token vectors and of what attention and MLP add to them."""

    RECOMMENDED: ClassVar = {
        "width": 128,
        "depth": 2,
        "heads": 4,
        "mlp_ratio": 4.0,
        "activation": "gelu",
        "positions": "rotary",
        "pooling": "mean",
        "tied_embeddings": False,
        "dropout": 0.1,
    }
    RECOMMENDED_FOR: ClassVar = {"language_modeling": {"depth": 4, "pooling": None}, "sequence": {"pooling": None}}

    @model_validator(mode="after")
    def refuse_uneven_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be divisible by heads ({self.heads})")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(
                f"with `positions: rotary`, width ({self.width}) must be divisible by twice the number of heads ({2 * self.heads})"
            )
        return self

    def build(self, spec: Spec) -> nn.Module:
        if spec.targets.stored == "within":
            refuse_misfit(self.pooling, one_output=False)
            return EncoderDecoder(self, TextPairInputs.of(spec))
        texts, causal = TextInputs.of(spec), spec.targets.stored == "windows"
        refuse_misfit(self.pooling, one_output=not causal, tied=self.tied_embeddings)
        return LanguageModel(self, texts) if causal else TextClassifier(self, texts, num_outputs=spec.num_outputs)


class TextClassifier(nn.Module):
    """Maps tokens (n, length) to outputs (n, num_outputs). The padding after a text does not change its outputs."""

    block_names = BLOCK_NAMES

    def __init__(self, settings: Settings, texts: TextInputs, *, num_outputs: int) -> None:
        super().__init__()
        self.pooling, self.pad = settings.pooling, texts.pad
        self.body = Body(settings, texts, causal=False)
        self.head = linear(settings.width, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != self.pad
        states = self.body(tokens, attended(real))
        return cast("Tensor", self.head(states[:, 0] if self.pooling == "first" else mean(states, real, real.sum(1))))


class LanguageModel(nn.Module):
    """Maps tokens (n, length) to logits (n, length, num_tokens). The logits at a position predict the token at the next position.

    Padding at the end of a text does not change the logits before it.
    """

    block_names = BLOCK_NAMES

    def __init__(self, settings: Settings, texts: TextInputs) -> None:
        super().__init__()
        self.longest = texts.length
        self.body = Body(settings, texts, causal=True)
        self.head = linear(settings.width, texts.num_tokens)
        if settings.tied_embeddings:
            self.head.weight = self.body.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return cast("Tensor", self.head(self.body(tokens)))

    def step(self, tokens: Tensor, cache: list["KeysAndValues"] | None) -> tuple[Tensor, list["KeysAndValues"]]:
        """Return the logits (n, num_tokens) of the token after `tokens` (n, length), and the cache for the next call.

        `cache` is what the previous call returned, or None at the beginning of a text. With a cache, `tokens` is a single token per text.
        """
        cache = cache or [KeysAndValues() for _ in self.body.blocks]
        states = self.body(tokens, None, cache)
        return self.head(states[:, -1]), cache


class Memory(NamedTuple):
    """Holds what a decoder reads of a source text: its states (n, length, width), and the mask (n, 1, 1, length) of those to attend to."""

    states: Tensor
    keys: Tensor


class EncoderDecoder(nn.Module):
    """Maps pairs of texts (n, pieces, width), rows of TextPairInputs, to logits (n, target length - 1, num_tokens).

    The logits at a token of the target text predict its next token (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762). The padding
    after a text changes no logits before it.
    """

    block_names = BLOCK_NAMES

    def __init__(self, settings: Settings, pairs: TextPairInputs) -> None:
        super().__init__()
        self.pairs = pairs
        self.encoder = Body(settings, pairs.source, causal=False)
        self.decoder = Body(settings, pairs.target, causal=True, block=DecoderBlock)
        self.head = linear(settings.width, pairs.num_tokens)
        if settings.tied_embeddings:
            self.encoder.embedding.weight = self.head.weight = self.decoder.embedding.weight

    def forward(self, rows: Tensor) -> Tensor:
        sources, targets = self.pairs.texts(rows)
        memory = self.encode(sources)
        return cast("Tensor", self.head(self.decoder(targets[:, :-1], memory.keys, None, memory.states)))

    def encode(self, sources: Tensor) -> Memory:
        """Return what the decoder reads of source texts (n, length)."""
        keys = attended(sources != self.pairs.pad)
        return Memory(self.encoder(sources, keys), keys)

    def step(self, tokens: Tensor, memory: Memory, cache: list["KeysAndValues"] | None) -> tuple[Tensor, list["KeysAndValues"]]:
        """Return the logits (n, num_tokens) of the token after `tokens` (n, length) of target texts, and the cache for the next call.

        `cache` is what the previous call returned, or None at the beginning. With a cache, `tokens` is a single token per text.
        """
        cache = cache or [KeysAndValues() for _ in self.decoder.blocks]
        states = self.decoder(tokens, memory.keys, cache, memory.states)
        return self.head(states[:, -1]), cache


class Body(nn.Module):
    """Maps tokens (n, length) to states (n, length, width). Each token becomes a vector, which passes through the blocks and a last LayerNorm."""

    def __init__(self, settings: Settings, texts: TextInputs, *, causal: bool, block: "type[Block] | None" = None) -> None:
        super().__init__()
        self.head_width, self.pad = settings.width // settings.heads, texts.pad
        self.embedding = embedding(texts.num_tokens, settings.width)
        self.positions = embedding(texts.length, settings.width) if settings.positions == "learned" else None
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList((block or Block)(settings, causal=causal) for _ in range(settings.depth))
        self.norm = nn.LayerNorm(settings.width)

    def forward(self, tokens: Tensor, keys: Tensor | None = None, cache: list[Any] | None = None, *memory: Tensor) -> Tensor:
        """Return the states (n, length, width) of `tokens`.

        `keys` (n, 1, 1, length) is False at tokens to be ignored by attention, such as padding; None ignores no token. `cache` has the keys
        and values of the tokens before `tokens`, one object per block, and those of `tokens` are added to it. None means no tokens before.
        A decoder gets the states of the source texts as `memory`; `keys` are then theirs.
        """
        first = cache[0].length if cache else 0
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        states = self.embedding(indices(tokens, self.pad))
        rotation = None
        if self.positions is None:
            rotation = rotations(positions, self.head_width, torch.promote_types(states.dtype, torch.float32)).to(compute_dtype(states))
        else:
            states = states + self.positions(positions)
        states = self.dropout(states)
        for number, block in enumerate(self.blocks):
            states = block(states, rotation, keys, cache[number] if cache else None, *memory)
        return cast("Tensor", self.norm(states))


class Block(nn.Module):
    """Adds attention to the states (n, length, width), then an MLP. The input of each is the layer norm of the states (pre-norm)."""

    def __init__(self, settings: Settings, *, causal: bool) -> None:
        super().__init__()
        # GPT-2: each block adds twice to the states, whose variance would otherwise grow with the number of blocks
        output_std = INITIAL_STD / (2 * settings.depth) ** 0.5
        self.attention_norm = nn.LayerNorm(settings.width)
        self.attention = Attention(settings, causal=causal, output_std=output_std)
        self.mlp_norm = nn.LayerNorm(settings.width)
        self.mlp = MLP(settings, output_std=output_std)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: Tensor, rotation: Tensor | None, keys: Tensor | None = None, cache: "KeysAndValues | None" = None) -> Tensor:
        states = states + self.dropout(self.attention(self.attention_norm(states), rotation, keys, cache))
        return cast("Tensor", states + self.dropout(self.mlp(self.mlp_norm(states))))


class DecoderBlock(Block):
    """A block that also attends to the states of the source texts, between the attention to its own tokens and the MLP."""

    def __init__(self, settings: Settings, *, causal: bool) -> None:
        super().__init__(settings, causal=causal)
        self.cross_norm = nn.LayerNorm(settings.width)
        self.cross = CrossAttention(settings, causal=False, output_std=INITIAL_STD / (2 * settings.depth) ** 0.5)

    def forward(  # type: ignore[override]  # the states of the source texts are added
        self, states: Tensor, rotation: Tensor | None, keys: Tensor, cache: "KeysAndValues | None", memory: Tensor
    ) -> Tensor:
        states = states + self.dropout(self.attention(self.attention_norm(states), rotation, None, cache))
        states = states + self.dropout(self.cross(self.cross_norm(states), memory, keys, cache))
        return cast("Tensor", states + self.dropout(self.mlp(self.mlp_norm(states))))


class Attention(nn.Module):
    """Multi-head self-attention. If `causal` is True, a token attends to itself and to the tokens before it.

    If `causal` is False, each token attends to all tokens where the mask `keys` is True. The matrices of queries, keys and values are
    separate, because Muon orthogonalises each matrix by itself. The attention weights have no dropout, because dropout would exclude the
    fast CPU kernels.
    """

    def __init__(self, settings: Settings, *, causal: bool, output_std: float) -> None:
        super().__init__()
        self.heads, self.causal = settings.heads, causal
        self.query, self.key, self.value = (linear(settings.width, settings.width, bias=False) for _ in range(3))
        self.output = linear(settings.width, settings.width, bias=False, std=output_std)

    def forward(self, states: Tensor, rotation: Tensor | None, keys: Tensor | None, cache: "KeysAndValues | None") -> Tensor:
        states = states.to(compute_dtype(states))  # else autocast would convert them for each of the three matrices
        query, key, value = (self.of_heads(layer(states)) for layer in (self.query, self.key, self.value))
        if rotation is not None:
            query, key = rotated(torch.stack((query, key)), rotation)
        # a single token after those of the cache attends to all of them
        causal = self.causal and not (cache and cache.length)
        if cache is not None:
            key, value = cache.extend(key, value)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=keys, is_causal=causal)
        return cast("Tensor", self.output(mixed.transpose(1, 2).flatten(2)))

    def of_heads(self, vectors: Tensor) -> Tensor:
        """Return the part of each head, (n, heads, length, head_width), of vectors (n, length, width)."""
        return vectors.view(*vectors.shape[:2], self.heads, -1).transpose(1, 2)


class CrossAttention(Attention):
    """Multi-head attention of the tokens of a target text to all tokens of its source text where the mask `keys` is True."""

    def forward(  # type: ignore[override]  # the keys and values are those of other states
        self, states: Tensor, memory: Tensor, keys: Tensor, cache: "KeysAndValues | None"
    ) -> Tensor:
        query = self.of_heads(self.query(states))
        found = cache.of_source if cache else None
        if found is None:
            memory = memory.to(compute_dtype(memory))
            found = self.of_heads(self.key(memory)), self.of_heads(self.value(memory))
        if cache:
            cache.of_source = found
        mixed = scaled_dot_product_attention(query, *found, attn_mask=keys)
        return cast("Tensor", self.output(mixed.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    """One hidden layer with GELU or SwiGLU (Shazeer, 2020, https://arxiv.org/abs/2002.05202)."""

    def __init__(self, settings: Settings, *, output_std: float) -> None:
        super().__init__()
        hidden = max(1, round(settings.width * settings.mlp_ratio))
        self.gate = linear(settings.width, hidden, bias=False) if settings.activation == "swiglu" else None
        self.hidden = linear(settings.width, hidden, bias=False)
        self.output = linear(hidden, settings.width, bias=False, std=output_std)

    def forward(self, states: Tensor) -> Tensor:
        hidden = self.hidden(states)
        return cast("Tensor", self.output(gelu(hidden) if self.gate is None else silu(self.gate(states)) * hidden))


class KeysAndValues:
    """The keys and values (n, heads, length, head_width) that the attention of one block has computed for the tokens so far, and those of the
    source text in a decoder.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.of_source: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Return the number of tokens so far."""
        return 0 if self.keys is None else self.keys.shape[2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of further tokens. Return the keys and the values of all tokens so far.

        A cache that is not empty takes only one token at a time.
        """
        assert keys.shape[2] == 1 or not self.length
        self.keys = keys if self.keys is None else torch.cat((self.keys, keys), dim=2)
        self.values = values if self.values is None else torch.cat((self.values, values), dim=2)
        return self.keys, self.values

    def select(self, rows: Tensor) -> None:
        """Keep the target texts at `rows` (n,), which continue the same source texts as before."""
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = self.keys[rows], self.values[rows]


def linear(inputs: int, outputs: int, *, bias: bool = True, std: float = INITIAL_STD) -> nn.Linear:
    """Return a linear layer with normal initial weights and, if `bias` is True, biases of zero."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def embedding(count: int, width: int) -> nn.Embedding:
    layer = nn.Embedding(count, width)
    nn.init.normal_(layer.weight, std=INITIAL_STD)
    return layer


def compute_dtype(states: Tensor) -> torch.dtype:
    """Return the type in which matrices are multiplied with `states`: that of autocast if it is on, else that of `states`."""
    device = states.device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else states.dtype


def rotations(positions: Tensor, head_width: int, dtype: torch.dtype) -> Tensor:
    """Return the cosines and the signed sines of the angles of the rotary position encoding, (2, length, head_width), for `rotated`.

    There is one angle for each position and each pair of elements of a head: elements i and i + head_width / 2 form a pair.
    """
    exponents = torch.arange(0, head_width, 2, device=positions.device, dtype=dtype) / head_width
    angles = positions[:, None].to(dtype) * ROTARY_BASE**-exponents
    cosine, sine = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)))


def rotated(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Return `vectors` (..., length, head_width), of which each pair of elements is rotated like a point in the plane.

    The angles are those of `rotation`, which is what `rotations` returned: (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    cosine, sine = rotation.unbind()
    return vectors * cosine + vectors.roll(vectors.shape[-1] // 2, -1) * sine
