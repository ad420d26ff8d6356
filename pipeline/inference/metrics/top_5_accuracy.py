"""The share of targets that are among the most likely classes, or tokens of a language model: as many as the name of this file says."""

from typing import TYPE_CHECKING

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Targets
from pipeline.inference import measuring
from pipeline.inference.batch import IGNORED
from pipeline.inference.scores import Integers

if TYPE_CHECKING:
    from torch import Tensor

K = int(__name__.split("_")[-2])


class Metric(measuring.Metric):
    direction = "max"
    forms = ("class", "tokens")

    @classmethod
    def refuse_misfit(cls, targets: type[Targets] | Targets, num_outputs: int | None, key: str) -> None:
        super().refuse_misfit(targets, num_outputs, key)
        if num_outputs is not None and num_outputs <= K:
            raise Refusal(f"{key}: top_{K}_accuracy needs more than {K} classes, but this data has {num_outputs}: remove it")

    def part(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the number of hits and of targets, (2,). Of equal outputs, that of the lower class is the likelier."""
        import torch  # late: reading a direction needs no torch

        counted = targets != IGNORED
        places = targets.clamp(min=0)[..., None]
        actual = outputs.gather(-1, places)
        earlier = torch.arange(outputs.shape[-1], device=outputs.device) < places
        rank = ((outputs > actual) | ((outputs == actual) & earlier)).sum(dim=-1)
        return torch.stack([((rank < K) & counted).sum(), counted.sum()])

    def value(self, whole: Integers) -> float:
        return float(whole[0] / whole[1])
