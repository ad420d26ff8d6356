"""The model and the dataset of docs/extending.md train as they stand there. Its loss and its metric are tested beside theirs."""

import re
import sys
from pathlib import Path

import numpy as np

from tests import project
from tests.imports import TOP
from tests.repository import call

VERBS = ["set model=wide", "set source=npz", "prepare", "train", "evaluate"]


def test_the_model_and_the_dataset_of_the_docs_are_one_file_each_and_train(tmp_path: Path) -> None:
    text = (TOP / "docs/extending.md").read_text(encoding="utf-8")
    folder = project.make(tmp_path, copy=True)
    for name in ("models/wide", "sources/npz"):
        (example,) = re.findall(rf"`pipeline/{name}\.py`[^`]*(?:`[^`]+`[^`]*)*?```python\n(.*?)```", text, re.DOTALL)
        (folder / f"pipeline/{name}.py").write_text(example, encoding="utf-8")
        assert name != "models/wide" or example in (TOP / "README.md").read_text(encoding="utf-8")
    (folder / "data/raw").mkdir()
    labels = np.arange(200) % 4
    images = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 1), np.uint8)
    for label in range(4):
        images[labels == label, label::4] = 0
    np.savez(folder / "data/raw/mine.npz", images=images, labels=labels)
    commands = f"from pipeline.__main__ import main\nassert not any(main(verb.split()) for verb in {VERBS})"
    output = call(folder, sys.executable, "-c", commands, PIPELINE_TRACKING="false")
    assert "200 samples of image inputs (8, 8, 1), 4 outputs" in output
    assert "on 20 samples; always guessing" in output
