"""What the checks of `doctor` examine."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.runtime.environment import Environment

if TYPE_CHECKING:
    from pipeline.doctor.nvml import Gpus


@dataclass(frozen=True)
class Context:
    """The environment variables, the checkout and the machine to check. `top` is the checkout, and `system` the root of the file system."""

    environment: Environment
    top: Path = field(default_factory=Path)
    system: Path = Path("/")

    @cached_property
    def gpus(self) -> "Gpus":
        """Return the version of the NVIDIA driver, and the GPUs."""
        from pipeline.doctor import nvml

        return nvml.read(self.system)
