"""The job that is examined."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.runtime.environment import Environment

if TYPE_CHECKING:
    from pipeline.doctor.nvml import Gpus


@dataclass(frozen=True)
class Job:
    """What is examined: the checkout at `top`, the environment variables, and the machine. `system` is the root of its file system."""

    environment: Environment
    top: Path = field(default_factory=Path)
    system: Path = Path("/")

    @cached_property
    def gpus(self) -> "Gpus":
        """What the NVIDIA driver tells about itself and its GPUs."""
        from pipeline.doctor import nvml

        return nvml.read(self.system)
