"""The search file is checked before anything runs: every error names file, line, key and remedy."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.environment import Paths
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.tools.search import settings
from pipeline.tools.search.settings import Search
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trails": 8}, "search.yaml:21: trails: is not a key here: did you mean `trials`?"),
        ({"space": 3}, "search.yaml:8: space: should be a section"),
        ({"space": {"optimizer.learning_rate": 3}}, f"search.yaml:9: {RATE}: should be a range, such as"),
        (of_rate(low=1.0, high=2.0), f"search.yaml:9: {RATE}.type: is missing: choose one of float, int, categorical"),
        (of_rate(type=["float"]), f"search.yaml:10: {RATE}.type: there is no type [float]: choose one of float"),
        (of_rate(type="float", low=1e-3), f"search.yaml:9: {RATE}.high: is missing: docs/search.md lists the keys"),
        (of_rate(type="float", low=1.0, high=0.5), f"search.yaml:12: {RATE}.high: is below `low`, which is 1.0: write a larger number"),
        (of_rate(type="float", low=0.0, high=0.5, log=True), f"search.yaml:13: {RATE}.log: a logarithmic range needs `low` above 0"),
        (of_rate(type="float", low=-0.1, high=0.5), f"search.yaml:11: {RATE}.low: optimizer.learning_rate=-0.1: should be greater than 0"),
        (
            {"space": {"model": {"type": "categorical", "choices": ["mlp", "transformer"]}}},
            "search.yaml:11: space.model.choices: ",
        ),
        (
            {"space": {"model.width": {"type": "int", "low": 8, "high": 31, "step": 8}}},
            "search.yaml:13: space.model.width.step: 31 cannot be reached from 8 in steps of 8: write `high: 24`",
        ),
        (
            {"space": {"model.width": {"type": "int", "low": 32, "high": 8, "step": 5}}, "method": "grid"},
            "search.yaml:12: space.model.width.high: is below `low`, which is 32: write a larger number",
        ),
        (of_rate(type="categorical", choices=[]), f"search.yaml:11: {RATE}.choices: "),
        (of_rate(type="categorical", choices=[1.0, 1.0]), f"search.yaml:11: {RATE}.choices: 1.0 is listed twice: remove one"),
        (of_rate(type="categorical", choices=[[1.0]]), f"search.yaml:11: {RATE}.choices: [1.0] is not a single value"),
        (of_rate(type="categorical", choices=[1.0, "fast"]), f"search.yaml:11: {RATE}.choices: optimizer.learning_rate=fast: should be a "),
        (
            {"space": {"optimizer.learnin_rate": {"type": "float", "low": 0.1, "high": 0.2}}},
            "search.yaml:9: space.optimizer.learnin_rate: is not a key of params.yaml: did you mean `optimizer.learning_rate`?",
        ),
        (
            {"space": {"optimiser.learning_rate": {"type": "float", "low": 0.1, "high": 0.2}}},
            "search.yaml:9: space.optimiser.learning_rate: is not a key of params.yaml: did you mean `optimizer`?",
        ),
        (
            {"space": {"source.valid": {"type": "float", "low": 0.1, "high": 0.2}}},
            "search.yaml:9: space.source.valid: cannot be searched: it decides the data, which is prepared once for all trials: remove it",
        ),
        (
            {"space": {"seed": {"type": "int", "low": 1, "high": 5}}, "pruner": "none"},
            "search.yaml:9: space.seed: cannot be searched: it would be chosen by chance: write `method: grid` to repeat the training with each",
        ),
        (
            of_rate(type="float", low=0.1, high=0.2) | {"method": "grid"},
            f"search.yaml:9: {RATE}: has no single values for a grid: write {{type: ",
        ),
        (
            projects.SEEDS | {"pruner": "median"},
            "search.yaml:6: pruner: would leave out the trainings that begin badly, and so change the mean",
        ),
        (
            projects.FOLDS | {"space": {"source.fold": {"type": "int", "low": 0, "high": 2}}},
            "search.yaml:12: space.source.fold.high: source.fold=2: needs the number of folds: write 0, or set source.folds, too",
        ),
        (
            projects.FOLDS | {"space": {"source.folds": {"type": "categorical", "choices": [2, 3]}}},
            "search.yaml:9: space.source.folds: needs one number, because models of other folds validate other samples: write a search for each",
        ),
    ],
)
def test_bad_input_is_refused_with_file_line_key_and_remedy(changes: dict[str, Any], message: str) -> None:
    (line,) = refused(changes)
    assert line.startswith(message), line


def test_a_bad_range_is_refused_together_with_other_problems_of_the_file() -> None:
    assert len(refused(of_rate(type="float", low=1.0, high=0.5) | {"trials": 0})) == 2


def test_a_grid_has_every_combination_in_order_and_folds_fit_their_number() -> None:
    assert read(projects.FOLDS).grid == [{"source.folds": 3, "source.fold": fold} for fold in range(3)]
    assert read({}).grid == []
    beyond = {"source.folds": {"type": "categorical", "choices": [3]}, "source.fold": {"type": "categorical", "choices": [1, 3]}}
    assert refused(projects.FOLDS | {"space": beyond}) == [
        "search.yaml:15: space.source.fold.choices: source.fold=3: there is no fold 3 of 3, because they are counted from 0: write 2 or less"
    ]


def test_all_errors_are_reported_at_once() -> None:
    found = refused({"name": "../up", "trials": 0, "direction": "up", "pruner": "mean", "processes": 1.5, "space": {}})
    expected = [
        "search.yaml:1: name: ",
        "search.yaml:2: trials: should be greater than or equal to 1, not 0",
        "search.yaml:5: direction: should be 'minimize' or 'maximize', not \"up\"",
        "search.yaml:6: pruner: should be 'median', 'hyperband' or 'none', not \"mean\"",
        "search.yaml:7: processes: should be a whole number, not 1.5",
        "search.yaml:8: space: ",
    ]
    assert all(line.startswith(begin) for line, begin in zip(found, expected, strict=True)), found
    found = refused({"seed": "one", "space": {"model.with": {"type": "int", "low": 1, "high": 2}, "seed": 3, "evaluate.top_k": 3}})
    assert [line.split(": ")[1] for line in found] == ["seed", "space.model.with", "space.seed", "space.evaluate.top_k"]


def test_a_missing_key_and_a_missing_file_are_refused() -> None:
    settings = copy.deepcopy(projects.SEARCH)
    del settings["seed"]
    projects.FILE.write_text(str(settings).replace("None", "null").replace("True", "true"))
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
    text = search.text_of({"optimizer.learning_rate": 0.00012345678901234567, "train.clip_norm": None})
    expected = changed(before, {"optimizer.learning_rate": 0.00012345678901234567, "train.clip_norm": None})
    assert Document.of(text, Path("params.yaml")).data == expected


@pytest.mark.parametrize(("changes", "counts"), [(projects.SEEDS, True), (of_rate(type="float", low=0.1, high=0.2), False)])
def test_the_settings_of_evaluate_are_common_to_the_trials_that_are_evaluated(
    changes: dict[str, Any], counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = read(changes)
    monkeypatch.setattr(settings, "read_record", lambda _: SimpleNamespace(digest="0"))
    found = []
    for size in (64, 65):
        project.write_params(Path(), {"evaluate.batch_size": size})
        found.append(settings.identity_of(search, Document.read(Path("params.yaml")), Paths(), metric="valid/loss", direction="min"))
    assert (found[0] != found[1]) is counts
    assert ("the code of evaluate" in found[0]) is counts
