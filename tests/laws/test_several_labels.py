"""A table of texts with several labels each is found, trained on, scored, predicted and exported."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

import pipeline
from pipeline.__main__ import main
from pipeline.core.environment import Paths
from pipeline.core.prepared import Prepared
from pipeline.inference import model_file
from tests import project
from tests.imports import TOP

TAGS = {"urgent": 0.4, "billing": 0.3, "login": 0.15}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkout with the same tickets in two tables: tags with a delimiter, and a column of 0 and 1 for each tag."""
    folder, generator = project.make(tmp_path), np.random.default_rng(0)
    shutil.copytree(TOP / "presets", folder / "presets")
    shutil.copy(TOP / "params.yaml", folder)
    rows = []
    for _ in range(400):
        tags = [tag for tag, share in TAGS.items() if generator.random() < share]
        words = [f"word{number}" for number in generator.integers(0, 6, 3)] + [f"{tag}{generator.integers(2)}" for tag in tags]
        rows.append((" ".join(generator.permutation(words)), tags))
    for name, header, cells in (
        ("tickets", ["tags"], lambda tags: [";".join(tags)]),
        ("marks", [*TAGS], lambda tags: [int(tag in tags) for tag in TAGS]),
    ):
        with (folder / f"data/{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", *header), *((text, *cells(tags)) for text, tags in rows)])
    return folder


@pytest.mark.usefixtures("untimed")
def test_the_way_from_a_table_to_labels(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    assert main(["set", "data=data/marks.csv"]) == 2
    assert (
        "3 columns of 0 and 1 may be labels, of which a sample may have several: add source.task=multi_label; " in capsys.readouterr().err
    )
    assert main(["set", "data=data/marks.csv", "source.task=multi_label"]) == 0
    assert "3 labels, 0.8" in capsys.readouterr().out
    assert main(["prepare"]) == 0
    targets = np.load(Paths().prepared / "train-targets.npy")
    assert main(["set", "data=data/tickets.csv"]) == 2
    asked = capsys.readouterr().err
    assert (
        "in the column tags: add source.task=multi_label source.label_column=tags; for one class a sample, add source.task=class" in asked
    )
    assert main(["set", "data=data/tickets.csv", "source.task=multi_label", "source.label_column=tags", "train.epochs=12"]) == 0
    for stage in ("prepare", "train", "evaluate"):
        assert main([stage]) == 0
    order = [sorted(TAGS).index(tag) for tag in TAGS]
    assert np.array_equal(np.load(Paths().prepared / "train-targets.npy")[:, order], targets)  # both tables say the same

    scores = json.loads((Paths().metrics / "evaluate.json").read_bytes())["test"]
    assert scores["average_precision"] > 0.9 > 2 * scores["random_average_precision"]
    assert f"test average_precision {scores['average_precision']:.4f} (between " in capsys.readouterr().out
    assert main(["export", "--format", "pt2"]) == 0
    assert "in probability" in capsys.readouterr().out
    test = Prepared.open(Paths().prepared).split("test")
    program = torch.export.load(Paths().model.with_suffix(".pt2")).module()
    found = program(torch.from_numpy(np.array(test.inputs))).detach().numpy()
    assert scores["average_precision"] == pytest.approx(average_precision_score(test.targets, found), rel=1e-6)
    thresholds = np.array(model_file.load(Paths().model)[1].spec.targets.thresholds)  # type: ignore[attr-defined]
    assert set(thresholds) != {0.5}  # tuned on valid
    assert scores["macro_f1"] == pytest.approx(f1_score(test.targets, found > thresholds, average="macro"), rel=1e-9)

    loaded = pipeline.load_model(Paths().model)
    both, none = loaded.predict(["urgent0 billing1 word2 login1", "word1 word2"])
    assert set(both.labels) == {*TAGS}
    assert none.labels == ()
    assert main(["compare", str(Paths().model), str(Paths().model)]) == 0
    assert main(["report"]) == 0
