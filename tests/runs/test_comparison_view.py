"""The comparison view: what its columns and charts are made from, and who may write it."""

import json
import math
import random
import string
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from pipeline.core.registry import TASKS
from pipeline.runs.journal import DIRECTION_TAG, SHARED_TAG
from pipeline.runs.mlflow import comparison_view
from pipeline.runs.mlflow.store import NOTE_TAG
from tests.runs.conftest import RUN_INFO, Tracked

METRICS = {
    "system/cpu_utilization_percentage": 5.0,
    "learning_rate": 0.1,
    "train/objective": 0.5,
    "valid/loss": 0.3,
    "valid/accuracy": 0.9,
    "test/accuracy": 0.8,
    "test/accuracy_interval/low": 0.7,
}


def make_run(params: dict[str, str], *, accuracy: float = 0.9, status: str = "FINISHED", digest: str = "", **tags: str) -> Any:
    """Return a run as MLflow does. It has the metrics of an earlier version, which did not record those of the exported weights."""
    params = {"train.metric": "valid/accuracy", "model.name": "mlp", "seed": "1", **params}
    data = SimpleNamespace(params=params, metrics={**METRICS, "valid/accuracy": accuracy}, tags=tags)
    split = SimpleNamespace(dataset=SimpleNamespace(name="digits valid", digest=digest), tags=[SimpleNamespace(value="validation")])
    info = SimpleNamespace(run_id=f"id-{accuracy}", run_name=f"run-{accuracy}", start_time=1, status=status)
    return SimpleNamespace(data=data, info=info, inputs=SimpleNamespace(dataset_inputs=[split] if digest else []))


def finished(accuracy: float, *, last: float, **more: str) -> Any:
    """Return a run whose exported weights have another accuracy than those of the last step."""
    run = make_run({}, accuracy=last, **more)
    run.data.metrics["exported/valid/accuracy"] = accuracy
    return run


def columns(*runs: Any) -> list[str]:
    return list(comparison_view.state(runs)["selectedColumns"])


def test_the_parameters_that_differ_are_columns_beside_result_model_data_and_how_it_was_trained() -> None:
    runs = make_run({"optimizer.beta1": "0.9"}), make_run({"optimizer.beta1": "0.8"})
    assert columns(*runs) == [
        "attributes.`Duration`",
        "metrics.`test/accuracy`",
        "metrics.`valid/accuracy`",
        "attributes.`Dataset`",
        "params.`optimizer.beta1`",
        "params.`model.name`",
        "attributes.`Description`",
    ]
    assert comparison_view.unpacked(comparison_view.view(runs)) == json.loads(json.dumps(comparison_view.state(runs)))


def test_parameters_that_differ_stand_before_those_that_are_always_shown_and_those_of_the_model_before_those_of_the_data() -> None:
    shared, same = {"train.batch_size": "64"}, {"evaluate.test_time_augmentation": "flip"}
    first = make_run(
        {**shared, "source.name": "a", "optimizer.learning_rate": "0.1", "model.width": "8"}, **same, **{"evaluate.top_k": "3"}
    )
    second = make_run(
        {**shared, "source.name": "b", "optimizer.learning_rate": "0.2", "model.width": "9"}, **same, **{"evaluate.top_k": "5"}
    )
    assert columns(first, second)[4:-1] == [
        *(f"params.`{name}`" for name in ("optimizer.learning_rate", "model.width", "source.name")),
        "tags.`evaluate.top_k`",
        *(f"params.`{name}`" for name in ("model.name", "train.batch_size")),
    ]
    names = ["model.width", "train.epochs", "source.root", "other"]
    assert comparison_view.differing([dict.fromkeys(names[::-1], value) for value in "12"]) == names


def test_baseline_loss_and_samples_in_two_splits_are_columns_where_runs_differ() -> None:
    """The parameters that differ stand before the third metric: a window shows some eight columns."""
    runs = make_run({}), make_run({"seed": "2"}, **{SHARED_TAG: "none"}), make_run({}, **{SHARED_TAG: "2 of 3 samples of test in train"})
    for run, loss, baseline in zip(runs[:2], (0.5, 0.25), (0.125, 0.75), strict=True):
        run.data.metrics |= {"test/loss": loss, "test/macro_f1": 0.5, "test/majority_class_accuracy": baseline}
    assert columns(*runs)[1:-2] == [
        *(f"metrics.`{name}`" for name in ("test/accuracy", "valid/accuracy")),
        "attributes.`Dataset`",
        "params.`seed`",
        f"tags.`{SHARED_TAG}`",
        *(f"metrics.`{name}`" for name in ("test/loss", "test/majority_class_accuracy")),
    ]


def test_runs_are_sorted_by_the_metric_that_selects_the_weights() -> None:
    for metric, ascending in (("valid/accuracy", False), ("valid/loss", True)):
        state = comparison_view.state([make_run({"train.metric": metric}), make_run({"train.metric": "valid/accuracy"})])
        assert (state["orderByKey"], state["orderByAsc"]) == (f"metrics.`{metric}`", ascending)


def test_finished_runs_come_first_by_the_metric_of_the_exported_weights() -> None:
    """Unfinished runs lack this metric, and MLflow lists them last."""
    runs = [make_run({}, accuracy=0.99, status="KILLED"), finished(0.64, last=0.54), finished(0.6, last=0.6)]
    state = comparison_view.state(runs)
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`exported/valid/accuracy`", False)
    assert state["selectedColumns"][2] == "metrics.`exported/valid/accuracy`"
    assert "Best exported/valid/accuracy: 0.6400 by [run-0.54]" in comparison_view.note(runs, "7")
    assert [card["deleted"] for card in state["compareRunCharts"] if card.get("metricKey", "").startswith("exported/")] == [True]


def test_only_runs_with_the_data_of_the_newest_are_ranked() -> None:
    """The names of two datasets can be equal. The digests of their validation splits are not."""
    runs = [finished(0.6, last=0.6, digest="a1"), finished(0.9, last=0.9, digest="b2"), finished(0.7, last=0.7, digest="a1")]
    note = comparison_view.note(runs, "7")
    assert "0.7000 by [run-0.7]" in note
    assert "They have the data digits valid (a1). 1 more," in note
    assert comparison_view.state(runs)["searchFilter"] == "dataset.digest = 'a1'"
    assert comparison_view.state(runs[::2])["searchFilter"] == ""
    assert "other data" not in comparison_view.note(runs[::2], "7")


def test_the_better_direction_is_that_which_was_recorded() -> None:
    params = {"train.metric": "valid/distance"}
    runs = [make_run(params, accuracy=accuracy) for accuracy in (0.1, 0.2)]
    for run in runs:
        run.data.metrics["valid/distance"] = run.data.metrics["valid/accuracy"]
    assert "Best" not in comparison_view.note(runs, "7")  # no metric or task of this checkout has this name
    for direction, best in (("min", "0.1"), ("max", "0.2")):
        runs[0].data.tags[DIRECTION_TAG] = direction
        assert f"{best}000 by [run-{best}]" in comparison_view.note(runs, "7")
        assert comparison_view.state(runs)["orderByAsc"] == (direction == "min")


def test_curves_come_first_and_every_metric_has_one_card() -> None:
    state = comparison_view.state([make_run({"seed": "1"}), make_run({"seed": "2"})])
    assert [section["name"] for section in state["compareRunSections"]] == ["valid", "train", "test", "parameters", "machine"]
    keys = [card["metricKey"] for card in state["compareRunCharts"] if "metricKey" in card]
    assert sorted(keys) == sorted(METRICS)
    sections = {card["metricSectionId"]: card["metricKey"] for card in reversed(state["compareRunCharts"]) if "metricKey" in card}
    assert sections == {
        "valid": "valid/accuracy",
        "train": "train/objective",
        "test": "test/accuracy",
        "machine": "system/cpu_utilization_percentage",
    }


def test_parallel_coordinates_leave_out_parameters_that_some_run_lacks() -> None:
    runs = [make_run({"seed": "1", "model.width": "8"}), make_run({"seed": "2", "model.width": "9"}), make_run({"seed": "3"})]
    (parallel,) = [card for card in comparison_view.state(runs)["compareRunCharts"] if card["type"] == "PARALLEL"]
    assert parallel["selectedParams"] == ["seed"]


def test_the_view_of_many_long_parameters_and_metrics_fits_into_a_tag() -> None:
    dice = random.Random(0)
    names = ["".join(dice.choices(string.ascii_letters + string.digits, k=100)) for _ in range(200)]
    runs = [make_run({f"train.{name}": value for name in names}) for value in ("1", "2")]
    for run in runs:
        run.data.metrics = {**METRICS, **{f"valid/{name}": 1.0 for name in names}}
    assert len(comparison_view.view(runs)) <= 20_000


def test_runs_of_other_programs_are_left_out_of_the_comparison() -> None:
    foreign = make_run({"seed": "3"})
    del foreign.data.params["train.metric"]
    client = MagicMock(search_runs=MagicMock(return_value=[foreign, make_run({}), make_run({})]))
    client.get_experiment.return_value.tags = {}
    comparison_view.update(client, "7")
    written = {call.args[1]: call.args[2] for call in client.set_experiment_tag.call_args_list}
    assert "Of 2 runs, these parameters differ: no parameter." in written[NOTE_TAG]
    assert "params.`seed`" not in comparison_view.unpacked(written[comparison_view.VIEW_TAG])["selectedColumns"]


def test_the_description_links_table_and_charts_and_names_the_best_run() -> None:
    runs = [make_run({"seed": "1"}, accuracy=0.5), make_run({"seed": "2"}, accuracy=0.75), make_run({}, accuracy=math.nan)]
    first, _, second, *_ = comparison_view.note(runs, "7").splitlines()
    assert "(#/experiments/7/runs?workflowType=machine_learning&viewStateShareKey=comparison)" in first
    assert "compareRunsMode=CHART" in first
    assert "[run-0.75](#/experiments/7/runs/id-0.75)" in first
    assert "Best valid/accuracy of a last step: 0.7500 by" in first
    assert second == "Of 3 runs, these parameters differ: `seed`."


def test_delivering_a_run_keeps_view_and_description(tracked: Tracked) -> None:
    (experiment,) = tracked.client.search_experiments(filter_string="name = 'pipeline'")
    state = comparison_view.unpacked(experiment.tags[comparison_view.VIEW_TAG])
    assert "test/accuracy" in [card.get("metricKey") for card in state["compareRunCharts"]]
    assert RUN_INFO.name in experiment.tags[NOTE_TAG]


def test_an_edited_view_or_description_is_not_overwritten(tracked: Tracked) -> None:
    experiment_id = tracked.client.create_experiment("edited")
    comparison_view.update(tracked.client, experiment_id)
    first = tracked.client.get_experiment(experiment_id).tags
    for name in ("a", "b"):
        run = tracked.client.create_run(experiment_id, run_name=name)
        tracked.client.log_param(run.info.run_id, "model.name", name)
        tracked.client.log_param(run.info.run_id, "train.metric", "valid/accuracy")
        tracked.client.log_metric(run.info.run_id, "valid/accuracy", 0.5)
    tracked.client.set_experiment_tag(experiment_id, NOTE_TAG, "mine")
    comparison_view.update(tracked.client, experiment_id)
    second = tracked.client.get_experiment(experiment_id).tags
    assert second[NOTE_TAG] == "mine"
    assert comparison_view.unpacked(second[comparison_view.VIEW_TAG]) != comparison_view.unpacked(first[comparison_view.VIEW_TAG])
    theirs = json.dumps(json.loads(second[comparison_view.VIEW_TAG]) | {"state": "deflate;another"})
    tracked.client.set_experiment_tag(experiment_id, comparison_view.VIEW_TAG, theirs)
    tracked.client.log_metric(run.info.run_id, "valid/loss", 0.5)
    comparison_view.update(tracked.client, experiment_id)
    assert tracked.client.get_experiment(experiment_id).tags[comparison_view.VIEW_TAG] == theirs


def test_the_direction_of_every_metric_of_every_task_is_known() -> None:
    for task in TASKS.names:
        for metric, direction in TASKS.module(task).Targets.metrics.items():
            assert comparison_view.direction([make_run({"train.metric": f"valid/{metric}"})]) == direction, metric
