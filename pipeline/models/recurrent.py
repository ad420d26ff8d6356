"""Recurrent networks for text: layers of RNN, LSTM or GRU, as a classifier of texts or as a language model."""

from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn.functional import linear

from pipeline.core.refusal import Refusal
from pipeline.core.section import Depth, Share, Width
from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text.first_layer import indices, mean, refuse_misfit

CELLS: dict[str, type[nn.RNN | nn.LSTM | nn.GRU]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
TIED_RANGE = 0.1
"""Bound of the uniform initial values of an embedding that is also the last layer, as in AWD-LSTM (Merity et al., 2017). Values of variance 1
would give large logits."""
UNSUPPORTED = {"cpu": (torch.float16, torch.bfloat16), "cuda": (torch.bfloat16,)}
"""Autocast types in which cells are not computed, by the type of the device. On a CPU, oneDNN has no LSTM in fp16 with gradients, and one in
bf16 on some CPUs only. On a GPU, autocast to bf16 would run cuDNN's cells in fp16 (AutocastRNN.cpp of torch), where small gradients underflow
without loss scaling."""


class Settings(ModelSettings):
    name: Literal["recurrent"]
    cell: Literal["rnn", "lstm", "gru"]
    """The recurrence: `rnn` is the plain one with tanh."""
    embedding_width: Width
    """Length of the vector of a token."""
    width: Width
    """Units of each layer, in each direction."""
    depth: Depth
    """Number of layers."""
    bidirectional: bool
    """Read each text in both directions. Must be false for a language model."""
    pooling: Literal["last", "mean"] | None
    """The features of a text: `last` is the state after its last token (in each direction), `mean` the mean of its states. Null for a language model."""
    tied_embeddings: bool
    """Use the token vectors as the weights of the last layer, too; `embedding_width` must then equal `width`. Must be false for a classifier."""
    dropout: Share
    """Dropout probability of the token vectors and of the states of each layer."""

    RECOMMENDED: ClassVar = {
        "cell": "lstm",
        "embedding_width": 128,
        "width": 128,
        "depth": 1,
        "bidirectional": True,
        "pooling": "mean",
        "tied_embeddings": False,
        "dropout": 0.2,
    }
    RECOMMENDED_FOR: ClassVar = {"language_modeling": {"width": 384, "depth": 2, "bidirectional": False, "pooling": None}}

    @property
    def title(self) -> str:
        return self.cell

    @model_validator(mode="after")
    def refuse_unequal_widths(self) -> Self:
        if self.tied_embeddings and self.embedding_width != self.width:
            raise ValueError(f"with `tied_embeddings: true`, width ({self.width}) must equal embedding_width ({self.embedding_width})")
        return self

    def build(self, spec: Spec) -> nn.Module:
        texts, causal = TextInputs.of(spec), spec.targets.stored == "windows"
        refuse_misfit(self.pooling, one_output=not causal, tied=self.tied_embeddings)
        if causal and self.bidirectional:
            raise Refusal("model.bidirectional: a language model must not read the tokens that it predicts: set it to false")
        return LanguageModel(self, texts) if causal else TextClassifier(self, texts, num_outputs=spec.num_outputs)


class Recurrent(nn.Module):
    """The base class of the networks: token vectors, and the layers that read them."""

    def __init__(self, settings: Settings, texts: TextInputs) -> None:
        super().__init__()
        self.pad, self.num_features = texts.pad, settings.width * (2 if settings.bidirectional else 1)
        self.embedding = nn.Embedding(texts.num_tokens, settings.embedding_width)
        self.dropout = nn.Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            Layer(settings, self.num_features if number else settings.embedding_width) for number in range(settings.depth)
        )


class TextClassifier(Recurrent):
    """Maps tokens (n, length) to outputs (n, num_outputs). The padding after a text does not change its outputs."""

    def __init__(self, settings: Settings, texts: TextInputs, *, num_outputs: int) -> None:
        super().__init__(settings, texts)
        self.pooling, self.width = settings.pooling, settings.width
        self.head = nn.Linear(self.num_features, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != self.pad
        lengths = real.sum(1)
        reversal = reversed_positions(lengths, tokens.shape[1])
        states = self.dropout(self.embedding(indices(tokens, self.pad)))
        for layer in self.layers:
            states = layer(states, reversal)
        return cast("Tensor", self.head(self.pooled(states, real, lengths)))

    def pooled(self, states: Tensor, real: Tensor, lengths: Tensor) -> Tensor:
        """Return one feature vector for each text, (n, features), from `states` (n, length, features).

        `real` (n, length) is True at tokens and False at padding. `lengths` (n) is the number of tokens of each text. For a text without
        tokens, the mean is zeros, and the last state is the state at its first padding token.
        """
        if self.pooling == "mean":
            return mean(states, real, lengths)
        last = states[torch.arange(states.shape[0], device=states.device), (lengths - 1).clamp(min=0)]
        # the backward direction ends at the first token
        return torch.cat((last[:, : self.width], states[:, 0, self.width :]), dim=1)


class LanguageModel(Recurrent):
    """Maps tokens (n, length) to logits (n, length, num_tokens). The logits at a position predict the token at the next position.

    Padding at the end of a text does not change the logits before it.
    """

    longest = None
    """A text may have any length."""

    def __init__(self, settings: Settings, texts: TextInputs) -> None:
        super().__init__(settings, texts)
        self.head = nn.Linear(settings.width, texts.num_tokens)
        if settings.tied_embeddings:
            nn.init.uniform_(self.embedding.weight, -TIED_RANGE, TIED_RANGE)
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.dropout(self.embedding(indices(tokens, self.pad)))
        for layer in self.layers:
            states = layer(states)
        return cast("Tensor", self.head(states))

    def step(self, tokens: Tensor, cache: list[Any] | None) -> tuple[Tensor, list[Any]]:
        """Return the logits (n, num_tokens) of the token after `tokens` (n, length), and the state of each layer for the next call.

        `cache` is the state that the previous call returned, or None at the beginning of a text.
        """
        states = self.embedding(indices(tokens, self.pad))
        after: list[Any] = []
        for layer, before in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            states, state = run_cell(cast("Layer", layer).ahead, states, before)
            after.append(state)
        return self.head(states[:, -1]), after


class Layer(nn.Module):
    """One recurrent layer in one or two directions, followed by dropout.

    Each layer is a cell of its own, such as an `nn.LSTM` with `num_layers=1`. In a cell with several layers, cuDNN would draw the dropout
    between the layers from a random state of its own. This state cannot be seeded for each step, so a resumed training would differ.

    For the backward direction, the tokens of each text are reversed, and its padding stays at the end. The result is the same as with
    `pack_padded_sequence`, which would have to copy the lengths from the GPU to the CPU.
    """

    def __init__(self, settings: Settings, inputs: int) -> None:
        super().__init__()
        cell = CELLS[settings.cell]
        self.ahead = cell(inputs, settings.width, batch_first=True)
        self.back = cell(inputs, settings.width, batch_first=True) if settings.bidirectional else None
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: Tensor, reversal: Tensor | None = None) -> Tensor:
        outputs, _ = run_cell(self.ahead, states)
        if self.back is not None:
            assert reversal is not None
            backwards, _ = run_cell(self.back, reordered(states, reversal))
            outputs = torch.cat((outputs, reordered(backwards, reversal)), dim=2)
        return cast("Tensor", self.dropout(outputs))


def run_cell(cell: nn.RNNBase, inputs: Tensor, before: Any = None) -> tuple[Tensor, Any]:
    """Run `cell` over `inputs` (n, length, features). Return its outputs (n, length, width) and its state after the last position.

    `before` is the state before the first position, None for zeros. In the UNSUPPORTED types, the cell computes in float32.
    """
    if torch.compiler.is_exporting():
        return scanned(cell, inputs), None
    device = inputs.device.type
    unsupported = UNSUPPORTED.get(device, ())
    # the meta device, on which the size of a model is counted, has no autocast: torch raises RuntimeError if asked
    if not unsupported or not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) not in unsupported:
        return cast("tuple[Tensor, Any]", cell(inputs, before))
    with torch.autocast(device, enabled=False):
        return cast("tuple[Tensor, Any]", cell(inputs.float(), before))


def scanned(cell: nn.RNNBase, inputs: Tensor) -> Tensor:
    """Return the outputs (n, length, width) of `cell(inputs)`, computed position by position.

    This is for `torch.export`: with a cell such as `nn.LSTM`, the exported model would accept texts of one length only.
    """
    batch, width = inputs.shape[0], cell.hidden_size
    weight, bias = cast("tuple[Tensor, Tensor]", (cell.weight_hh_l0, cell.bias_hh_l0))

    def step(state: tuple[Tensor, ...], inputs: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        after = next_state(cell.mode, inputs, linear(state[0], weight, bias), state)
        # `view` tells the compiler the number of samples, without which it cannot allocate the outputs; they must not share memory with the state
        return after, after[0].clone().view(batch, width)

    start = tuple(inputs.new_zeros(batch, width) for _ in range(2 if cell.mode == "LSTM" else 1))
    from_inputs = linear(inputs, cast("Tensor", cell.weight_ih_l0), cast("Tensor", cell.bias_ih_l0))
    _, outputs = scan(step, start, from_inputs.transpose(0, 1))
    return cast("Tensor", outputs).transpose(0, 1)


def next_state(mode: str, inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the state after one step, by the equations in the documentation of `nn.LSTM`, `nn.GRU` and `nn.RNN`.

    `mode` is the `mode` of the cell, such as `LSTM`. `state` is the state before the step. `inputs` is `W_i x + b_i` for all gates, and
    `hidden` is `W_h h + b_h` for all gates, where x is the input and h is `state[0]`; both are (n, gates * width).
    """
    if mode == "LSTM":
        ingate, forget, candidate, out = (inputs + hidden).chunk(4, dim=1)
        memory = forget.sigmoid() * state[1] + ingate.sigmoid() * candidate.tanh()
        return out.sigmoid() * memory.tanh(), memory
    if mode == "GRU":
        (reset, update, candidate), (reset_hidden, update_hidden, candidate_hidden) = inputs.chunk(3, dim=1), hidden.chunk(3, dim=1)
        proposed = (candidate + (reset + reset_hidden).sigmoid() * candidate_hidden).tanh()
        return (torch.lerp(proposed, state[0], (update + update_hidden).sigmoid()),)
    return ((inputs + hidden).tanh(),)


def reversed_positions(lengths: Tensor, longest: int) -> Tensor:
    """Return the positions (n, longest) that reverse each text within its length, and leave its padding in place."""
    positions = torch.arange(longest, device=lengths.device)
    return torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)


def reordered(states: Tensor, positions: Tensor) -> Tensor:
    """Return `states` (n, length, features) in the order of `positions` (n, length)."""
    return states[torch.arange(states.shape[0], device=states.device)[:, None], positions]
