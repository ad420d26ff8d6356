"""The dates are the same in each run, and each text names that of its target."""

import json
import random
import re
from datetime import date

from pipeline.sources.dates import MONTHS, Settings, pair


def test_each_text_names_the_date_that_is_its_target() -> None:
    generator = random.Random(1)
    for text, target in ((text.lower(), date.fromisoformat(target)) for text, target in (pair(generator) for _ in range(500))):
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        months = [number for number, month in enumerate(MONTHS, start=1) if month[:3].lower() in text]
        assert sorted(numbers + months) == sorted((target.day, target.month, target.year)), text


def test_the_pairs_are_the_same_each_time() -> None:
    values = {"name": "dates", **Settings.recommended(name="dates", task="sequence"), "count": 50}
    first, again = (Settings.model_validate_json(json.dumps(values)).open(workers=1) for _ in range(2))
    assert first.drawing_keys
    assert again.drawing_keys
    assert len(set(first.drawing_keys())) > 40
    assert [*first.drawing_keys()] == [*again.drawing_keys()]
