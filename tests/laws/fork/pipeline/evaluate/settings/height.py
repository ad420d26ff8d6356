"""The section `evaluate` for heights: it has no keys of its own."""

from typing import Literal

from pipeline.evaluate.params import EvaluateSettings


class Settings(EvaluateSettings):
    name: Literal["height"]
