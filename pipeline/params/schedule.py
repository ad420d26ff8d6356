"""The section `schedule`: the learning rate at each step, as a share of its peak."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.params.section import Section, Share


class CommonScheduleSettings(Section):
    name: str
    """`constant`, `linear`, `cosine` or `one_cycle`; each has keys of its own."""
    warmup_ratio: Share
    """Share of all steps over which the learning rate rises to its peak."""

    RECOMMENDED: ClassVar = {"warmup_ratio": 0.05}


class ConstantSettings(CommonScheduleSettings):
    name: Literal["constant"]
    """`constant`, `linear`, `cosine` or `one_cycle`; each has keys of its own."""


class DecaySettings(CommonScheduleSettings):
    name: Literal["linear", "cosine"]
    """`constant`, `linear`, `cosine` or `one_cycle`; each has keys of its own."""
    final_factor: Share
    """linear, cosine and one_cycle only: final learning rate as a share of the peak."""

    RECOMMENDED: ClassVar = {"final_factor": 0.0}


class OneCycleSettings(CommonScheduleSettings):
    name: Literal["one_cycle"]
    """`constant`, `linear`, `cosine` or `one_cycle`; each has keys of its own."""
    start_factor: Share
    """one_cycle only: initial learning rate as a share of the peak."""
    final_factor: Share
    """linear, cosine and one_cycle only: final learning rate as a share of the peak."""

    RECOMMENDED: ClassVar = {"warmup_ratio": 0.2, "start_factor": 0.04, "final_factor": 0.0}


ScheduleSettings = Annotated[ConstantSettings | DecaySettings | OneCycleSettings, Field(discriminator="name")]
