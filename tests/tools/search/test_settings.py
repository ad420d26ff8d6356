"""The search file is checked before anything runs: every error names file, line, key and remedy."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.tools.search.settings import Search, replaced
from tests import project
from tests.conftest import changed
from tests.imports import TOP
from tests.tools.search import projects

RATE = "space.optimizer.learning_rate"


@pytest.fixture(autouse=True)
def parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project.make(tmp_path)


def read(changes: dict[str, Any]) -> Search:
    return Search.read(projects.write(changes), Document.read(Path("params.yaml")))


def refused(changes: dict[str, Any]) -> list[str]:
    with pytest.raises(Refusal) as caught:
        read(changes)
    return str(caught.value).splitlines()


def of_rate(**entry: Any) -> dict[str, Any]:
    return {"space": {"optimizer.learning_rate": entry}}


def test_the_search_of_digits_is_valid_for_its_preset() -> None:
    search = Search.read(TOP / "presets/search/digits.yaml", Document.read(TOP / "presets/digits.yaml"))
    assert search.settings.trials == 20


def of(key: str, **entry: Any) -> dict[str, Any]:
    return {"space": {key: entry}}


FLOAT = {"type": "float", "low": 0.1, "high": 0.2}


@pytest.mark.parametrize(
    ("changes", "place", "problem"),
    [
        ({"trails": 8}, "21: trails", "is not a key here: did you mean `trials`?"),
        ({"space": 3}, "8: space", "should be a section"),
        ({"space": {"optimizer.learning_rate": 3}}, f"9: {RATE}", "should be a section with keys of its own"),
        (of_rate(low=1.0, high=2.0), f"9: {RATE}", "should be a range, such as"),
        (of_rate(type=["float"]), f"9: {RATE}", "should be a range, such as"),
        (of_rate(type="float", low=1e-3), f"9: {RATE}", "missing 1 required positional argument: 'high'"),
        (of_rate(**FLOAT, hihg=1), f"9: {RATE}", "got an unexpected keyword argument 'hihg'"),
        (of_rate(type="float", low=1.0, high=0.5), f"9: {RATE}", "`low <= high` must hold"),
        (of_rate(type="float", low=0.0, high=0.5, log=True), f"9: {RATE}", "`low > 0` must hold"),
        (of_rate(type="float", low=-0.1, high=0.5), f"9: {RATE}", "optimizer.learning_rate=-0.1: should be greater than 0"),
        (of_rate(type="float", low=0.1, high=-0.5), f"9: {RATE}", "`low <= high` must hold"),
        (of_rate(type="float", low=0.1, high=".inf"), f"9: {RATE}", "should be a range, such as {type: int, low: 8, high: 32} ("),
        (of_rate(type="int", low=0.1, high=2), f"9: {RATE}", "should be a range, such as {type: int, low: 8, high: 32} ("),
        (of("train.ema_decay", type="float", low=0.5, high=1.5), "9: space.train.ema_decay", "train.ema_decay=1.5: should be "),
        (of("model", type="categorical", choices=["mlp", "transformer"]), "9: space.model", "model.name: this model does not accept"),
        (of_rate(type="categorical", choices=[]), f"9: {RATE}", "`choices` must contain one or more elements"),
        (of_rate(type="categorical", choices=[1.0, "fast"]), f"9: {RATE}", "optimizer.learning_rate=fast: should be a number"),
        (of("optimizer.learnin_rate", **FLOAT), "9: space.optimizer.learnin_rate", "did you mean `learning_rate`?"),
        (of("optimiser.learning_rate", **FLOAT), "9: space.optimiser.learning_rate", "did you mean `optimizer`?"),
        (of("source.valid", **FLOAT), "9: space.source.valid", "cannot be searched: it decides the data, "),
        (of("evaluate.batch_size", **FLOAT), "9: space.evaluate.batch_size", "cannot be searched: it has no effect on a training: remove"),
        ({**projects.SEEDS, "method": "tpe"}, "9: space.seed", "it would be chosen by chance: write `method: grid`"),
        (of_rate(**FLOAT) | {"method": "grid"}, f"9: {RATE}", "has no single values for a grid"),
        (
            projects.FOLDS | of("source.fold", type="int", low=0, high=2),
            "9: space.source.fold",
            "source.fold=2: needs the number of folds",
        ),
        (projects.FOLDS | of("source.folds", type="categorical", choices=[2, 3]), "9: space.source.folds", "needs one number"),
        (
            {**projects.FOLDS, "space": projects.FOLDS["space"] | {"source.fold": {"type": "categorical", "choices": [1, 3]}}},
            "13: space.source.fold",
            "source.fold=3: there is no fold 3 of 3",
        ),
    ],
)
def test_bad_input_is_refused_with_file_line_key_and_remedy(changes: dict[str, Any], place: str, problem: str) -> None:
    (line,) = refused(changes)
    assert line.startswith(f"search.yaml:{place}: ")
    assert problem in line


def test_a_value_of_all_trials_that_is_invalid_is_told_once() -> None:
    space = {"optimizer.learning_rate": {"type": "categorical", "choices": [-1]}, "model.width": {"type": "int", "low": 8, "high": 16}}
    (line,) = refused({"space": space})
    assert "optimizer.learning_rate=-1: should be greater than 0" in line


def test_a_step_that_does_not_reach_the_end_is_a_warning_of_optuna() -> None:
    with pytest.warns(UserWarning, match=r"replaced with \[8, 24\]"):
        read(of("model.width", type="int", low=8, high=31, step=8))


def test_a_grid_has_every_combination_in_order() -> None:
    assert read(projects.FOLDS).grid == [{"source.folds": 3, "source.fold": fold} for fold in range(3)]
    assert read({}).grid == []


def test_all_errors_are_reported_at_once() -> None:
    found = refused({"name": "../up", "trials": 0, "direction": "up", "pruner": "mean", "processes": 1.5, "space": {"seed": 3}})
    places = ["1: name", "2: trials", "5: direction", "6: pruner", "7: processes", "9: space.seed"]
    assert [line.split(": ")[:2] for line in found] == [f"search.yaml:{place}".split(": ") for place in places]
    found = refused({"space": {"model.with": {"type": "int", "low": 1, "high": 2}, "train.clip_nrm": FLOAT}})
    assert [line.split(": ")[1] for line in found] == ["space.model.with", "space.train.clip_nrm"]


def test_a_missing_key_and_a_missing_file_are_refused() -> None:
    projects.write(without="seed")
    with pytest.raises(Refusal, match=r"search.yaml:1: seed: is missing: docs/search.md lists the keys"):
        Search.read(projects.FILE, Document.read(Path("params.yaml")))
    with pytest.raises(Refusal, match=r"no.yaml: is missing: give a search file, such as presets/search/digits.yaml"):
        Search.read(Path("no.yaml"), Document.read(Path("params.yaml")))


@pytest.mark.parametrize(
    ("metric", "reason"),
    [("test/accuracy", "the test split must not select parameters"), ("valid/f1", "no validation reports this metric")],
)
def test_the_metric_is_one_of_the_validation_split(metric: str, reason: str) -> None:
    search = read({"metric": metric})
    with pytest.raises(Refusal, match=f"search.yaml:4: metric: {metric}: {reason}: choose one of valid/loss, valid/accuracy"):
        search.target({"loss": "min", "accuracy": "max"}, "valid/loss")


def test_metric_and_direction_are_those_of_the_task_unless_the_file_has_others() -> None:
    metrics: dict[str, Any] = {"loss": "min", "accuracy": "max"}
    assert read({"metric": None}).target(metrics, "valid/accuracy") == ("valid/accuracy", "maximize")
    assert read({}).target(metrics, "valid/accuracy") == ("valid/loss", "minimize")
    assert read({"direction": "maximize"}).target(metrics, "valid/accuracy") == ("valid/loss", "maximize")


def test_the_text_of_a_trial_differs_in_its_values_only() -> None:
    search = read({})
    before = Document.read(Path("params.yaml")).data
    text = replaced(search.params, {"optimizer.learning_rate": 0.00012345678901234567, "train.clip_norm": None})
    expected = changed(before, {"optimizer.learning_rate": 0.00012345678901234567, "train.clip_norm": None})
    assert Document.of(text, Path("params.yaml")).data == expected
