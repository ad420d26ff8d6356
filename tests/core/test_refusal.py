"""Parts of messages: counts with their nouns, lists that are too long, and lines that get a prefix."""

import pickle
from dataclasses import replace

import pytest

from pipeline.core.refusal import Problem, Refusal, Unavailable, counted, listed, rewording


def test_a_noun_follows_its_count() -> None:
    assert [counted(count, "step") for count in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [counted(count, "class") for count in (1, 3)] == ["1 class", "3 classes"]
    assert counted(12345, "test sample", ",") == "12,345 test samples"


def test_many_texts_are_listed_by_the_first_and_the_number_of_the_others() -> None:
    assert [listed("abcd"[:count], 2) for count in (0, 1, 2, 3)] == ["", "a", "a, b", "a, b and 1 more"]
    assert listed("abcd", 2, separator="; ") == "a; b; and 2 more"


def test_each_line_of_a_refusal_is_reworded_and_its_kind_is_kept() -> None:
    with pytest.raises(Unavailable, match=r"^key: a\nkey: b$"), rewording(lambda problem: replace(problem, file="key")):
        raise Unavailable("a\nb")


@pytest.mark.parametrize(
    ("refusal", "problem", "text"),
    [
        (Refusal("train.steps: is 0: write 1"), Problem("is 0: write 1", location=("train", "steps")), "train.steps: is 0: write 1"),
        (Refusal("is bad", remedy="stop", file="a", line=3), Problem("is bad", "stop", file="a", line=3), "a:3: is bad: stop"),
        (
            Refusal("is bad", remedy="stop", place="source.root: a:3"),
            Problem("is bad", "stop", ("source", "root"), place="a:3"),
            "source.root: a:3: is bad: stop",
        ),
    ],
)
def test_a_refusal_has_fields_and_is_formatted_once(refusal: Refusal, problem: Problem, text: str) -> None:
    for each in (refusal, pickle.loads(pickle.dumps(refusal))):  # noqa: S301  # as from another process
        assert (each.problems, str(each)) == ((problem,), text)


def test_a_text_that_only_resembles_a_key_with_an_index_stays_as_it_is() -> None:
    for text in ("\u00b2: is no model file", "007: is no run"):
        assert str(Refusal.of(Refusal(text).problems)) == text
