"""Dates as people write them, each with its form in ISO 8601: pairs of texts without a download."""

import random
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from pipeline.core.raw_dataset import TRAIN, RawDataset
from pipeline.prepare.inputs.pairs import PairSettings
from pipeline.prepare.inputs.tokens import BLOCK_TEXTS, Texts

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
FORMS = (
    "{day} {month} {year}",
    "{day} {short} {year}",
    "{month} {day}, {year}",
    "{short}. {day}, {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday}, {month} {nth}, {year}",
    "the {nth} of {month} {year}",
    "{nth} {month} {year}",
    "{day}.{number}.{year}",
    "{day:02}/{number:02}/{year}",
    "{year}/{number:02}/{day:02}",
    "{day:02}-{short}-{year}",
)
"""The forms. Each names one date only."""


class Settings(PairSettings):
    """Makes pairs of dates. The same `count` gives the same pairs. `root` is not read: it must be `data/README.md`, because DVC requires a path that
    exists.
    """

    embedded: ClassVar[bool] = True
    name: Literal["dates"]
    count: Annotated[int, Field(ge=10, le=1_000_000)]
    """Number of pairs, all splits together."""

    RECOMMENDED: ClassVar = {
        "root": "data/README.md",
        "count": 10_000,
        "tokenizer": "character",
        "vocabulary": 100,
        "min_count": 1,
        "max_length": 32,
        "target_length": 12,
    }

    def open(self, *, workers: int) -> RawDataset:
        generator = random.Random("dates")  # noqa: S311  # no secret depends on it
        pairs = [pair(generator) for _ in range(self.count)]

        def read() -> Iterator[Texts]:
            for start in range(0, self.count, BLOCK_TEXTS):
                columns = list(zip(*pairs[start : start + BLOCK_TEXTS], strict=True))
                positions = np.arange(start, start + len(columns[0]))
                yield Texts(TRAIN, positions, columns, [f"{TRAIN}:{number}" for number in positions])

        return self.dataset(read, {TRAIN: self.count})


def pair(generator: random.Random) -> tuple[str, str]:
    """Draw a date and a form. Return the date in this form, sometimes in lower or upper case, and its form in ISO 8601."""
    day = FIRST + timedelta(days=int(generator.random() * ((LAST - FIRST).days + 1)))
    form = FORMS[int(generator.random() * len(FORMS))]
    month, weekday = MONTHS[day.month - 1], DAYS[day.weekday()]
    of_day = {"day": day.day, "nth": ordinal(day.day), "weekday": weekday, "year": day.year}
    text = form.format(**of_day, number=day.month, month=month, short=month[:3])
    case = generator.random()
    return text.lower() if case < 0.2 else text.upper() if case < 0.3 else text, day.isoformat()


def ordinal(number: int) -> str:
    return f"{number}{'th' if number // 10 == 1 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
