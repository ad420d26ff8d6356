"""chrF and BLEU equal those of sacrebleu 2.6.0, whose numbers are recorded here: it is no dependency."""

import pytest

from pipeline.evaluate.text_scores import bleu, chrf

TEXTS = ["the cat sat on the mat .", "A dog", "", "\u00fcn\u00efcode w\u00f6rds\there", "same text"]
REFERENCES = ["the cat is on the mat .", "A  dog barks, loudly!", "empty", "unicode words here", "same text"]


@pytest.mark.parametrize(
    ("texts", "references", "of_characters", "of_words"),
    [
        (TEXTS, REFERENCES, 49.09020410058549, 31.149672958460297),
        (["It costs $3,50 - or 4-x."], ["It costs $3.50 - or 4-y!"], 66.08836224548298, 37.99178428257963),
        (["same words in one text"], ["same words in one text"], 100.0, 100.0),
        ([""], ["ab"], 0.0, 0.0),
        (["one two three four-\n"], ["one two three four-"], 100.0, 100.0),
    ],
)
def test_scores_equal_those_of_sacrebleu(texts: list[str], references: list[str], of_characters: float, of_words: float) -> None:
    assert chrf(texts, references) == pytest.approx(of_characters, abs=1e-9)
    assert bleu(texts, references) == pytest.approx(of_words, abs=1e-9)
