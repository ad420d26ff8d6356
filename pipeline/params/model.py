"""The section `model`: the base class of every architecture's settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.params.section import Section

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pipeline.spec import Spec

    Examples = Callable[[int], Tensor]
    """A function that returns at most the given number of train samples, spread over the split, preprocessed for the network. Images are
    (n, channels, height, width), float32, on the CPU."""


class ModelSettings(Section):
    """Settings and methods that every model has; the module of each architecture adds its own."""

    name: str
    """The architecture: a module of `pipeline/models/`."""

    @property
    def title(self) -> str:
        """Return the name of the architecture for messages."""
        return self.name

    def build(self, spec: "Spec") -> "nn.Module":
        """Build the network, a module that maps preprocessed inputs, such as images (n, channels, height, width), to (n, spec.num_outputs)."""
        raise NotImplementedError(f"pipeline/models/{self.name}.py defines no build()")

    def initialize_from_data(self, network: "nn.Module", examples: "Examples") -> None:
        """Load pretrained weights, or compute weights from the data. Models that need neither do nothing.

        `examples(n)` returns at most n preprocessed train samples. Called once, when a training begins, and never when a model file is
        opened.
        """

    @property
    def downloaded(self) -> bool:
        """Return True if `initialize_from_data` needs files from the internet, which `fetch` then downloads."""
        return False

    def fetch(self) -> None:
        """Download the files that `initialize_from_data` needs unless they exist, and read them.

        Raises Refusal with the remedy if the download or the reading fails.
        """
