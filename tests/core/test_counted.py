"""A count of 1 has its noun in the singular."""

import pytest

from pipeline.core.refusal import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "step", "0 steps"), (1, "step", "1 step"), (2, "step", "2 steps"), (1, "class", "1 class"), (3, "class", "3 classes")],
)
def test_a_noun_follows_its_count(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_large_counts_can_be_grouped() -> None:
    assert counted(12345, "test sample", ",") == "12,345 test samples"
