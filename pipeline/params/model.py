"""The section `model`: what every architecture has in common."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.params.section import Section

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pipeline.spec import Spec

    Examples = Callable[[int], Tensor]
    """At most so many train images, from all over the split, as a network reads them: (n, channels, height, width), float32, on the CPU."""


class ModelSettings(Section):
    """What every model has; an architecture's own module adds what it alone knows."""

    name: str
    """The architecture: a module of `pipeline/models/`."""

    @property
    def title(self) -> str:
        """The architecture's own name, for messages."""
        return self.name

    def build(self, spec: "Spec") -> "nn.Module":
        """A module from (n, channels, height, width) to logits (n, classes)."""
        raise NotImplementedError(f"pipeline/models/{self.name}.py defines no build()")

    def initialize_from_data(self, network: "nn.Module", examples: "Examples") -> None:
        """Called once before a training begins, and never when a model file is opened: the place for weights that are pretrained or come of the data."""

    @property
    def downloaded(self) -> bool:
        """Returns whether `initialize_from_data` needs files that `fetch` downloads."""
        return False

    def fetch(self) -> None:
        """Downloads what `initialize_from_data` needs where it is missing, and reads it. Raises Refusal, with the remedy, where it cannot be had or read."""
