"""Scores, written texts, tables and figures of an encoder-decoder model on the test split."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipeline.core.refusal import counted
from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.evaluate import text_scores
from pipeline.evaluate.params import WIDEST, EvaluateSettings
from pipeline.evaluate.reports import recorded
from pipeline.evaluate.reports.metrics import SampleScores, accuracy_interval, refuse_damaged
from pipeline.evaluate.reports.recorded import Row
from pipeline.inference.batch import IGNORED, without_padding
from pipeline.inference.scores import perplexity

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Settings(EvaluateSettings):
    name: Literal["sequence"]
    beam: Annotated[int, Field(ge=1, le=WIDEST)]
    """Width of the beam search by which texts are written; 1 takes the most probable token each time."""
    confidence_level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level of `exact_match_interval`."""
    samples: Annotated[int, Field(ge=0, le=1000)]
    """Number of texts to list with the source and the target, those with the highest loss first; 0 for none."""

    RECOMMENDED: ClassVar = {"beam": 1, "confidence_level": 0.95, "samples": 50}


class Evaluator:
    """Collects the loss of each pair batch by batch. `write_texts` then writes a text for each source text, which is compared with its target.

    Texts are compared as the tokenizer decodes them. A token of a target that the tokenizer does not know becomes U+FFFD, which no model
    writes.
    """

    def __init__(self, spec: Spec, settings: Settings) -> None:
        pairs: Any = spec.inputs
        self.pairs, self.settings, self.tokenizer = pairs, settings, Tokenizer(pairs.tokenizer)
        self.parts: list[NDArray[np.float64]] = []
        """The loss, the correct tokens and the number of targets of each pair (n, 3), batch by batch."""
        self.texts = self.targets = list[str]()

    def add(self, logits: "Tensor", targets: "Tensor") -> None:
        """Add the next batch: logits (n, length, num_tokens), and the tokens to predict (n, length), IGNORED at the padding."""
        import torch  # late: parameters are checked without torch
        from torch.nn import functional

        loss = functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten(), reduction="none").view(targets.shape)
        known = targets != IGNORED
        self.parts.append(torch.stack([loss.sum(1), (logits.argmax(-1) == targets).sum(1), known.sum(1)], dim=1).cpu().numpy())

    def write_texts(self, model: "nn.Module", rows: NDArray[Any], batch_size: int, device: "torch.device") -> None:
        """Write a text for the source text of each of `rows`, those that were added, and print how long it takes."""
        import torch  # late, as above

        from pipeline.evaluate.generation import decode

        start_s, written = time.monotonic(), list[list[int]]()
        for first in range(0, len(rows), batch_size):
            part = rows[first : first + batch_size]
            kept = without_padding(torch.from_numpy(part), torch.from_numpy(self.pairs.lengths(part)))
            written += decode(model, self.pairs.texts(kept)[0].to(device), self.pairs, beam=self.settings.beam)
        print(f"evaluate: wrote {counted(len(rows), 'text', ',')} in {time.monotonic() - start_s:.1f} s", flush=True)
        self.texts = [self.tokenizer.decode(tokens) for tokens in written]
        self.targets = [self.tokenizer.decode(tokens, show_unknown=True) for tokens in self.pairs.texts(rows)[1]]

    def sample_scores(self) -> SampleScores:
        """Return the summed loss, the correct tokens and the number of targets of each pair, with the texts. Raises Refusal as `scores` does."""
        loss, correct, num_targets = np.concatenate(self.parts).T
        refuse_damaged(np.isfinite(loss))
        answers = {"written": np.array(self.texts, object), "target": np.array(self.targets, object)} if self.texts else {}
        return SampleScores(loss, correct.astype(np.int64), num_targets.astype(np.int64), answers)

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`: those of the tokens, each predicted from the true tokens before it, and those of the texts."""
        samples = self.sample_scores()
        assert samples.correct is not None
        loss = float(samples.loss.sum() / samples.num_targets.sum())
        exact = np.array([text == target for text, target in zip(self.texts, self.targets, strict=True)])
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            "accuracy": float(samples.correct.sum() / samples.num_targets.sum()),
            "exact_match": float(exact.mean()),
            "exact_match_interval": accuracy_interval(exact, self.settings.confidence_level),
            "chrf": text_scores.chrf(self.texts, self.targets),
            "bleu": text_scores.bleu(self.texts, self.targets),
            "samples": len(exact),
            "tokens": int(samples.num_targets.sum()),
        }

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Row], **_: object) -> None:
        """Write a table of texts with the highest mean loss of a token, and a figure of the training history. `inputs` are those of the test split."""
        # imported late: matplotlib takes a second, which would delay an error message
        from pipeline.evaluate.reports.figures import curves

        samples = self.sample_scores()
        means = samples.loss / samples.num_targets
        worst = np.argsort(-means, kind="stable")[: self.settings.samples]
        sources = [self.tokenizer.decode(tokens, show_unknown=True) for tokens in self.pairs.texts(inputs[worst])[0]]
        rows = [
            (int(at), means[at], self.texts[at] == self.targets[at], source, self.targets[at], self.texts[at])
            for at, source in zip(worst, sources, strict=True)
        ]
        recorded.write(folder / "texts.csv", ("sample", "loss", "exact", "source", "target", "written"), rows)
        curves.plot_history(folder / "history.png", history)
