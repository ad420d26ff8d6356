"""Scores, tables, figures and generated texts of a language model on the test split."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.core.section import Count
from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.evaluate.params import EvaluateSettings
from pipeline.evaluate.reports import recorded
from pipeline.evaluate.reports.metrics import DIVERGED, SampleScores
from pipeline.evaluate.reports.recorded import Row
from pipeline.inference.batch import IGNORED
from pipeline.inference.scores import rates

if TYPE_CHECKING:
    from torch import Tensor, nn

Temperature = Annotated[float, Field(ge=0, le=100)]


class Settings(EvaluateSettings):
    name: Literal["language_modeling"]
    passage_tokens: Count
    """Length in tokens of the passages among which the most surprising ones are found."""
    passages: Annotated[int, Field(ge=0, le=1000)]
    """Number of the most surprising passages of the test split to list in a table; 0 for none."""
    temperatures: Annotated[tuple[Temperature, ...], Field(max_length=10)]
    """Temperatures at which a text is generated. 0 takes the most likely token each time; a list of none writes no texts."""
    sample_tokens: Count
    """Length in tokens of each generated text."""
    prompt: Annotated[str, Field(max_length=10_000)]
    """The beginning of the generated texts; an empty text for the beginning of a document."""
    sample_seed: NonNegativeInt
    """Seed of the generated texts."""

    RECOMMENDED: ClassVar = {
        "batch_size": 64,
        "passage_tokens": 64,
        "passages": 20,
        "temperatures": [0.5, 0.8, 1.0],
        "sample_tokens": 120,
        "prompt": "",
        "sample_seed": 1,
    }


CONTEXT_TOKENS = 32
"""Number of tokens before a surprising passage that are shown with it."""


class Evaluator:
    """Collects the loss of each token batch by batch. It keeps 4 bytes a token, not the logits."""

    def __init__(self, spec: Spec, settings: Settings) -> None:
        inputs: Any = spec.inputs  # texts
        self.settings, self.tokenizer = settings, Tokenizer(inputs.tokenizer)
        self.prompt = self.tokenizer.encode(settings.prompt).tolist()
        if len(self.prompt) >= inputs.length:
            raise Refusal(
                f"evaluate.prompt: has {len(self.prompt)} tokens, and a text of this model has at most {inputs.length}: shorten the prompt"
            )
        self.sizes = np.stack([self.tokenizer.num_characters, self.tokenizer.num_bytes])
        self.losses: list[NDArray[np.float32]] = []
        self.correct: list[NDArray[np.int64]] = []
        """Number of correctly predicted tokens of each row, batch by batch."""
        self.num_tokens = 0
        self.size = np.zeros(2, np.int64)
        """Characters and bytes of all targets so far."""

    def add(self, logits: "Tensor", targets: "Tensor") -> None:
        """Add the next batch: logits (n, length, num_tokens) and targets (n, length).

        The target at a position is the number of the token that follows, or IGNORED at the padding.
        """
        from torch.nn import functional  # late: parameters are checked without torch

        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        self.losses.append(loss.masked_fill(targets == IGNORED, np.nan).cpu().numpy())
        self.correct.append((logits.argmax(-1) == targets).sum(-1).cpu().numpy())
        counts = np.bincount(targets[targets != IGNORED].cpu().numpy(), minlength=self.sizes.shape[1])
        self.num_tokens += int(counts.sum())
        self.size += self.sizes @ counts

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`. Raises Refusal if a loss is not finite.

        The score `samples` is the number of rows of the test split, and `tokens` is the number of predicted tokens.
        """
        losses = np.concatenate(self.losses).astype(np.float64)
        total = float(np.nansum(losses))
        if np.count_nonzero(np.isfinite(losses)) < self.num_tokens:  # NaN marks the padding too, so the finite losses are counted
            raise Refusal(f"the model's loss is not finite on the test split: {DIVERGED}")
        characters, size_bytes = self.size.tolist()
        return {
            "loss": total / self.num_tokens,
            **rates(total, self.num_tokens, characters=characters, size_bytes=size_bytes),
            "accuracy": int(np.concatenate(self.correct).sum()) / self.num_tokens,
            "samples": len(losses),
            "tokens": self.num_tokens,
        }

    def sample_scores(self) -> SampleScores:
        """Return the summed loss, the correct predictions and the number of targets of each row. Raises Refusal as `scores` does."""
        self.scores()
        losses = np.concatenate(self.losses).astype(np.float64)
        return SampleScores(np.nansum(losses, axis=1), np.concatenate(self.correct), np.count_nonzero(np.isfinite(losses), axis=1))

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Row], model: "nn.Module") -> None:
        """Write the mean loss at each position of a row, the passages with the highest loss, generated texts, and the training history.

        `inputs` are the tokens of the test split (n, length). `history` has the rows of `history.csv`. `model` generates the texts.
        """
        # imported late: matplotlib takes a second, which would delay an error message
        from pipeline.evaluate.reports.figures import curves

        losses = np.concatenate(self.losses)
        # of a split shorter than a row, the last positions have padding alone
        counted = losses[:, ~np.isnan(losses).all(axis=0)]
        by_position = np.nanmean(counted.astype(np.float64), axis=0)
        recorded.write(folder / "loss_by_position.csv", ("position", "loss"), enumerate(by_position.tolist(), start=1))
        curves.plot_positions(folder / "loss_by_position.png", by_position)
        curves.plot_history(folder / "history.png", history)
        self.write_passages(folder / "surprising.csv", losses.ravel(), inputs.reshape(-1))
        files.write_text(folder / "samples.md", "\n".join(self.samples(model)))

    def write_passages(self, path: Path, losses: NDArray[np.float32], tokens: NDArray[Any]) -> None:
        """Write a table with the passages of the highest mean loss, each with the text before it."""
        rows = []
        for first, length, loss in surprising(losses, self.settings.passage_tokens, self.settings.passages):
            begin = first + 1  # the loss at a position is that of the token that follows
            before = tokens[max(0, begin - CONTEXT_TOKENS) : begin]
            text = tokens[begin : begin + length]
            rows.append((begin, loss, *(self.tokenizer.decode(part, show_unknown=True) for part in (before, text))))
        recorded.write(path, ("token", "loss", "before", "passage"), rows)

    def samples(self, model: "nn.Module") -> Iterator[str]:
        """Yield the lines of a Markdown document with one generated text for each temperature."""
        from pipeline.evaluate.generation import GenerationSettings, generate  # late, as torch

        yield "# Generated texts"
        for temperature in self.settings.temperatures:
            settings = GenerationSettings(
                temperature=temperature, top_k=None, top_p=None, length=self.settings.sample_tokens, seed=self.settings.sample_seed
            )
            tokens = list(generate(model, self.prompt, tokenizer=self.tokenizer.description, settings=settings))
            yield f"\n## Temperature {temperature:g}\n\n```text"
            yield self.settings.prompt + self.tokenizer.decode(tokens).replace("```", "` ` `")
            yield "```"


def surprising(losses: NDArray[np.float32], length: int, most: int) -> list[tuple[int, int, float]]:
    """Return the index of the first loss, the length and the mean loss of the passages with the highest mean loss, at most `most`, the highest first.

    `losses` (tokens,) are the losses of consecutive tokens, NaN at the padding. They are cut into passages of `length` tokens. The last
    passage may be shorter.
    """
    starts = np.arange(0, len(losses), length)
    counted = ~np.isnan(losses)
    counts = np.add.reduceat(counted, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(counted, losses, 0).astype(np.float64), starts)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    order = np.argsort(-means, kind="stable")[:most]
    return [(int(starts[at]), int(counts[at]), float(means[at])) for at in order if counts[at]]
