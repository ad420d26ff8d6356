"""A count of 1 has its noun in the singular."""

from pipeline.core.refusal import counted


def test_a_noun_follows_its_count() -> None:
    assert [counted(count, "step") for count in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [counted(count, "class") for count in (1, 3)] == ["1 class", "3 classes"]
    assert counted(12345, "test sample", ",") == "12,345 test samples"
