"""The comparison of an experiment's runs in the MLflow UI: columns, charts and description, stored in tags of the experiment.

MLflow stores a shared view as a tag of the experiment. The tag contains the state of the table and the charts as compressed JSON. MLflow
does not document the keys of this state; those used here and in the page `/compare` were found by trying out the UI of MLflow 3.17. No other
file has such keys: if they change, the runs are delivered all the same, and only their comparison in the UI is lost.
"""

import base64
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.refusal import rounded
from pipeline.core.registry import TASKS
from pipeline.inference.params import METRICS
from pipeline.runs.journal import DIRECTION_TAG, EXPORTED, SECTIONS, SHARED_TAG
from pipeline.runs.mlflow.store import NOTE_TAG, Store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

VIEW_TAG = "mlflow.sharedViewState.comparison"
DIGEST_LINE = "\n\n[//]: # (pipeline {})"
"""The last line of a generated description. It contains a digest of the text before it, written as a link definition, which Markdown
does not display."""
COMPRESSED = "deflate;"
MOST_RUNS, MOST_EXPERIMENTS = 200, 50
MOST_PARAMS, MOST_CHARTS = 16, 80
"""The maximum number of differing parameters and of charts. They keep the view far below 20,000 characters, MLflow's limit for a tag."""
SCORES = ("test/loss", "test/macro_f1", "test/majority_class_accuracy", "test/mean_guess_rmse")
"""Metrics that are columns if the runs differ in them, beside the metric that selects the weights."""
MOST_SCORES_FIRST = 2
"""How many metrics stand before the parameters in which the runs differ: a window shows some eight columns."""
ALWAYS_SHOWN = ("model.name", "optimizer.learning_rate", "train.batch_size")
WIDTHS = {"attributes.`Run Name`": 300, "attributes.`Duration`": 90, "attributes.`Dataset`": 240, "attributes.`Description`": 330}
NO_BARS = ("/low", "/high", "/samples", "/tokens")
"""Suffixes of test metrics that get no bar chart, because they are bounds or counts."""

# When the UI is reloaded, it loses a shared view but not its own state in localStorage. So this page writes the view to localStorage.
PAGE = """<!doctype html><meta charset="utf-8"><title>Comparison of runs</title><script>
const states = %(states)s, target = "/#/experiments/" + %(experiment)s + "/runs?workflowType=machine_learning" + (location.search ? "&compareRunsMode=CHART" : "");
try {
for (const [id, state] of Object.entries(states))
localStorage.setItem("MLflowLocalStorage-1.1-ExperimentPage-" + JSON.stringify([id]) + "-ReactComponentState", state);
localStorage.setItem("mlflow.workflowType_v1", JSON.stringify("machine_learning"));
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
location.replace(target);
} catch { location.replace(target + "&viewStateShareKey=comparison"); }
</script>"""


def update(client: "MlflowClient", experiment_id: str) -> None:
    """Update two tags of an experiment: the comparison, which is a shared view of its newest runs in the MLflow UI, and the description.

    A tag that a person edited in MLflow is not changed.
    """
    found = client.search_runs([experiment_id], max_results=MOST_RUNS)
    runs = [run for run in found if "train.metric" in run.data.params]  # other programs may log to the same experiment
    tags = client.get_experiment(experiment_id).tags
    for tag, text in {VIEW_TAG: view(runs), NOTE_TAG: note(runs, experiment_id)}.items():
        current = tags.get(tag)
        if current is None or (is_unedited(current) and current != text):
            client.set_experiment_tag(experiment_id, tag, text)


def is_unedited(text: str) -> bool:
    """Return True if this module wrote `text`, a view or description, and nobody has edited it since.

    A generated text contains a digest of the rest of the text. After an edit, the digest does not match.
    """
    try:
        envelope = json.loads(text)
        return bool(envelope["digest"] == files.digest_of(envelope["state"]))
    except (ValueError, LookupError, TypeError):
        return text == with_digest(text.rpartition(DIGEST_LINE.partition("{")[0])[0])


def with_digest(text: str) -> str:
    """Append a last line with a digest of `text`, by which an edited description is recognised."""
    return text + DIGEST_LINE.format(files.digest_of(text)[:16])


def view(runs: "Sequence[Run]") -> str:
    """Return the comparison of `runs` as a shared view in MLflow's format: the value of the tag `VIEW_TAG`.

    The first of `runs` is the newest. The view contains a digest, by which an edited view is recognised. Its timestamps are the start of
    the newest run, so that the same runs give the same view.
    """
    time_ms = runs[0].info.start_time if runs else 0
    shown = json.dumps(state(runs), separators=(",", ":"))
    packed = COMPRESSED + base64.b64encode(zlib.compress(shown.encode(), 9)).decode()
    return json.dumps(
        {"name": "Comparison", "createdAt": time_ms, "updatedAt": time_ms, "state": packed, "digest": files.digest_of(packed)}
    )


def unpacked(text: str) -> dict[str, Any]:
    """Decode `text`, a value of the tag `VIEW_TAG`. Return the state of the table and the charts, as the function `state` returns it."""
    packed = json.loads(text)["state"].removeprefix(COMPRESSED)
    return dict(json.loads(zlib.decompress(base64.b64decode(packed))))


def state(runs: "Sequence[Run]") -> dict[str, Any]:
    """Return the state of the table and the charts, in the format of MLflow's UI. `runs` are ordered from newest to oldest.

    If they have different data, the table is filtered by the data of the newest. It is sorted by the metric of the exported weights, which
    only finished runs have: MLflow lists runs without it last.
    """
    runs, others = divided(runs)
    metrics = sorted({name for run in runs for name in run.data.metrics})
    chosen, key = chosen_metric(runs), sort_key(runs)
    test_metric = "test/" + chosen.partition("/")[2]
    differing_params = differing([run.data.params for run in runs])
    params = differing_params[:MOST_PARAMS]
    differing_tags = differing([run.data.tags for run in runs])
    tags = [*({SHARED_TAG} & {*differing_tags}), *(name for name in differing_tags if name.startswith("evaluate."))]
    differing_scores = differing([run.data.metrics for run in runs])
    columns = ["attributes.`Run Name`", "attributes.`Duration`"]
    scores = dict.fromkeys((test_metric, key, *(name for name in SCORES if name in differing_scores)))
    score_columns = [f"metrics.`{name}`" for name in scores if name in metrics]
    columns += [*score_columns[:MOST_SCORES_FIRST], "attributes.`Dataset`"]
    shown = [name for name in dict.fromkeys((*ALWAYS_SHOWN, *params)) if any(name in run.data.params for run in runs)]
    columns += [f"params.`{name}`" for name in shown if name in differing_params]
    columns += [*(f"tags.`{name}`" for name in tags), *score_columns[MOST_SCORES_FIRST:]]
    # the others are at the right, where they may be out of sight
    columns += [*(f"params.`{name}`" for name in shown if name not in differing_params), "attributes.`Description`"]
    # MLflow's parallel coordinates chart omits a run that lacks one of the chart's parameters.
    shared = [name for name in params if all(name in run.data.params for run in runs)]
    charts = list(cards(metrics[:MOST_CHARTS], chosen=chosen, test_metric=test_metric, params=shared))
    return {
        "searchFilter": f"dataset.digest = '{data_of(runs[0])[1]}'" if others else "",
        "orderByKey": f"metrics.`{key}`",
        "orderByAsc": direction(runs) == "min",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns[1:],
        "columnOrder": columns,
        "columnWidths": {column: WIDTHS.get(column, 7 * len(column.partition("`")[2]) + 35) for column in columns},
        "runsHiddenMode": "FIRST_20_RUNS",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,  # keeps the order of the sections
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "compareRunSections": [
            {"uuid": name, "name": name, "display": name != "machine", "isReordered": True, "columns": num_columns, "cardHeight": 300}
            for name, num_columns in {"valid": 2, "train": 2, "test": 4, "parameters": 1, "machine": 3}.items()
            if any(card["metricSectionId"] == name for card in charts)
        ],
        "compareRunCharts": charts,
    }


def chosen_metric(runs: "Sequence[Run]") -> str:
    """Return the metric that selects the best weights: `train.metric` of the newest run, or "valid/accuracy" if there are no runs."""
    return runs[0].data.params["train.metric"] if runs else "valid/accuracy"


def sort_key(runs: "Sequence[Run]") -> str:
    """Return the metric by which runs are ranked: that of the exported weights, or that of the last step if an earlier version wrote all runs."""
    chosen = chosen_metric(runs)
    return f"{EXPORTED}{chosen}" if any(f"{EXPORTED}{chosen}" in run.data.metrics for run in runs) else chosen


def direction(runs: "Sequence[Run]") -> str | None:
    """Return "min" or "max", the better direction of the metric of `chosen_metric`, as the newest run has recorded it.

    For a run of an earlier version, which has not, it is that of the metric or task of this checkout; None if none has this metric.
    """
    quantity = chosen_metric(runs).rpartition("/")[2]
    if runs and (recorded := runs[0].data.tags.get(DIRECTION_TAG)):
        return recorded
    if quantity in METRICS.names:
        return str(METRICS.module(quantity).Metric.direction)
    return next((found for task in TASKS.names if (found := TASKS.module(task).Targets.metrics.get(quantity))), None)


def data_of(run: "Run") -> tuple[str, str]:
    """Return the name and the digest of the data by which the run is ranked, its validation split or else its train split; ("", "") if unknown."""
    found = {tag.value: each.dataset for each in (run.inputs.dataset_inputs if run.inputs else ()) for tag in each.tags}
    chosen = found.get("validation") or found.get("training")
    return (chosen.name, chosen.digest) if chosen else ("", "")


def divided(runs: "Sequence[Run]") -> "tuple[list[Run], list[Run]]":
    """Return the runs with the data of the newest, which is the first, and the others, which cannot be compared with it."""
    known = data_of(runs[0])[1] if runs else ""
    return [run for run in runs if not known or data_of(run)[1] == known], [run for run in runs if known and data_of(run)[1] != known]


def differing(values_of_runs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names that have more than one value among the runs, such as those of parameters, in the order of `SECTIONS`.

    `values_of_runs` has one mapping for each run, from names to values. Only values that exist are compared: if one run lacks a parameter
    and the others agree, the parameter is not returned.
    """
    rank = {section: position for position, section in enumerate(SECTIONS)}
    names = sorted({name for values in values_of_runs for name in values})
    found = [name for name in names if len({values[name] for values in values_of_runs if name in values}) > 1]
    return sorted(found, key=lambda name: rank.get(name.partition(".")[0], len(rank)))


def cards(metrics: Sequence[str], *, chosen: str, test_metric: str, params: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a chart for each metric. If `params` is not empty, also yield a chart that compares the runs by these parameters.

    `chosen` is the metric that selects the best weights, and `test_metric` is the same metric on the test split. Each of the two has the
    first chart in its section. For a metric without a chart here, MLflow adds one, in a section before all others.
    """
    for name in sorted(metrics, key=lambda name: (name != chosen, name != "train/objective", name)):
        if name.startswith("valid/"):
            yield line(name, "valid")
        elif (name.startswith("train/") and name != "train/samples_per_second") or name == "learning_rate":
            yield line(name, "train")
        elif name.startswith(EXPORTED):
            yield card(name, "valid", "BAR", metricKey=name, deleted=True)  # the table has it
        elif not name.startswith("test/"):
            yield line(name, "machine")
    tested = [name for name in metrics if name.startswith("test/")]
    for name in sorted(tested, key=lambda name: (name != test_metric, name.endswith(NO_BARS), name)):
        yield card(name, "test", "BAR", metricKey=name, deleted=name.endswith(NO_BARS))
    if params:
        yield card("parallel", "parameters", "PARALLEL", selectedParams=list(params), selectedMetrics=[test_metric], showAllRuns=False)


def line(metric: str, section: str) -> dict[str, Any]:
    """Return the line chart of a metric over the steps, for the section of the charts named `section`."""
    # The UI smooths the curve if the keys for axes and smoothing are missing.
    axes = {"xAxisKey": "step", "useGlobalXaxisKey": True, "scaleType": "linear", "xAxisScaleType": "linear", "range": {}}
    smoothing = {"lineSmoothness": 0, "useGlobalLineSmoothing": True}
    return card(metric, section, "LINE", metricKey=metric, yAxisKey="metric", yAxisExpressions=[], **axes, **smoothing)


def card(name: str, section: str, kind: str, **more: Any) -> dict[str, Any]:
    """Return a chart called `name` for a section of the charts. `kind` is MLflow's type of chart, such as "LINE".

    `more` has further keys of the chart, or other values for the keys that are set here.
    """
    # With `isGenerated: true`, the UI shows line charts instead of bar charts.
    return {"uuid": name, "type": kind, "metricSectionId": section, "deleted": False, "isGenerated": False, **more}


def note(runs: "Sequence[Run]", experiment_id: str) -> str:
    """Return the experiment's description in Markdown: links to the comparison, the best run, and the parameters in which runs differ.

    The links are in the first line, which the UI always shows. Of runs with different data, only those with the data of the newest count.
    Unfinished runs cannot be the best.
    """
    links = f"[Table]({link(experiment_id)}) and [charts]({link(experiment_id, charts=True)}) that compare the runs"
    runs, others = divided(runs)
    key, better = sort_key(runs), {"min": min, "max": max}.get(direction(runs) or "")
    comparable = [run for run in runs if run.info.status == "FINISHED" and math.isfinite(run.data.metrics.get(key, math.nan))]
    text = f"{links}."
    if comparable and better:
        best = better(comparable, key=lambda run: run.data.metrics[key])
        linked_name = f"[{escaped(best.info.run_name)}](#/experiments/{experiment_id}/runs/{best.info.run_id})"
        last = "" if key.startswith(EXPORTED) else " of a last step"
        text += f" Best {key}{last}: {rounded(best.data.metrics[key])} by {linked_name}."
    names = ", ".join(f"`{name}`" for name in differing([run.data.params for run in runs])[:MOST_PARAMS]) or "no parameter"
    count = "1 run" if len(runs) == 1 else f"{'the newest ' if len(runs) == MOST_RUNS else ''}{len(runs)} runs"
    text += f"\n\nOf {count}, these parameters differ: {names}."
    if others:
        name, digest = data_of(runs[0])
        text += f" They have the data {escaped(name)} ({digest}). {len(others)} more, which cannot be compared with them, have other data: clear the filter of the table to see them."
    return with_digest(text)


def escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]()<>])", r"\\\1", text)


def link(experiment_id: str, *, charts: bool = False) -> str:
    """Return the address of the comparison, relative to that of the MLflow UI. With `charts`, it opens the charts instead of the table."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning{mode}&viewStateShareKey=comparison"


def page(store: Store, experiment_id: str) -> str:
    """Return an HTML page that opens the MLflow UI at the comparison of the experiment's runs. First update this comparison in the store.

    The store has the columns and charts of each experiment's comparison as JSON. The page contains those of the `MOST_EXPERIMENTS` newest
    experiments in a script element, so that the UI shows each in its way. `<` is escaped, because `</script>` would end the element.
    """
    update(store.client, experiment_id)
    newest = store.client.search_experiments(max_results=MOST_EXPERIMENTS, order_by=["last_update_time DESC"])
    views = {each.experiment_id: each.tags.get(VIEW_TAG, "") for each in (*newest, store.client.get_experiment(experiment_id))}
    states = {
        number: json.dumps(unpacked(view)) for number, view in views.items() if view and (number == experiment_id or is_unedited(view))
    }
    return PAGE % {"experiment": json.dumps(experiment_id), "states": json.dumps(states).replace("<", "\\u003c")}
