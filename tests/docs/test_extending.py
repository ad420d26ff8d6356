"""The model and the dataset of docs/extending.md train as they stand there. Its loss and its metric are tested beside theirs."""

import re
from pathlib import Path

import numpy as np

from pipeline.core.registry import MODELS, SOURCES
from tests import project
from tests.imports import TOP


def test_the_model_and_the_dataset_of_the_docs_are_one_file_each_and_train(own, tmp_path: Path, capsys) -> None:
    text = (TOP / "docs/extending.md").read_text(encoding="utf-8")
    folder = project.make(tmp_path / "project", copy=True)
    for registry, name in ((MODELS, "models/wide"), (SOURCES, "sources/npz")):
        (example,) = re.findall(rf"`pipeline/{name}\.py`[^`]*(?:`[^`]+`[^`]*)*?```python\n(.*?)```", text, re.DOTALL)
        (folder / f"pipeline/{name}.py").write_text(example, encoding="utf-8")
        own(registry, Path(name).name, example)
        assert name != "models/wide" or example in (TOP / "README.md").read_text(encoding="utf-8")
    (folder / "data/raw").mkdir()
    labels = np.arange(200) % 4
    images = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 1), np.uint8)
    for label in range(4):
        images[labels == label, label::4] = 0
    np.savez(folder / "data/raw/mine.npz", images=images, labels=labels)
    project.run(folder, "set model=wide", "set source=npz", "prepare", "train", "evaluate")
    output = capsys.readouterr().out
    assert "200 samples of image inputs (8, 8, 1), 4 outputs" in output
    assert "on 20 samples; always guessing" in output
