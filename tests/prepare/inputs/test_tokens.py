"""Texts as rows of tokens: what the tokenizer is fitted to, and which texts count as truncated."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.core.raw_dataset import TRAIN
from pipeline.sources.text_pairs import Settings
from tests.sources.settings import source


def test_a_tokenizer_knows_both_texts_and_a_full_row_is_not_truncated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a b\tx y\na b c\tx\nb\tx y z\n", encoding="utf-8")
    words = {"tokenizer": "word", "vocabulary": 100, "min_count": 1, "max_length": 2, "target_length": 4}
    dataset = source(Settings, path, text_column=1, target_column=2, **words).open(workers=1)
    dataset.fit({TRAIN: np.full(3, TRAIN)})
    assert sum(len(block.inputs) for block in dataset.blocks()) == 3
    assert sorted(dataset.statistics.inputs().tokenizer.vocabulary) == ["a", "b", "c", "x", "y", "z"]
    assert [line for line in capsys.readouterr().out.splitlines() if "truncated" in line] == [
        "prepare: 1 of 3 texts have more than 2 tokens (source.max_length) and were truncated",
        "prepare: 1 of 3 texts have more than 4 tokens (source.target_length) and were truncated",
    ]
