"""The comparison of an experiment's runs in the MLflow UI: columns, charts and description, kept in tags of the experiment.

MLflow stores a shared view as a tag of the experiment: the JSON state of its table and charts, compressed. The state's keys are those
of the UI of MLflow 3.17, found out by trying; MLflow documents none of them.
"""

import base64
import json
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline import files
from pipeline.tracking.store import NOTE_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

VIEW_TAG = "mlflow.sharedViewState.comparison"
WRITTEN_TAG = "pipeline.comparison"
"""The digests of the view and the description that were written last: what somebody else changed since is left alone."""
COMPRESSED = "deflate;"
MOST_TAG_CHARACTERS = 20_000
MOST_RUNS = 1000
ALWAYS_SHOWN = ("model.name", "source.name", "optimizer.learning_rate", "train.batch_size")
SECTIONS_OF_PARAMS = ("source", "model", "optimizer", "schedule", "augment", "train", "evaluate", "seed")
MOST_DIFFERING = 16
WIDTHS = {"attributes.`Run Name`": 300, "attributes.`Duration`": 90, "attributes.`Description`": 330}
NOT_COMPARED = ("/low", "/high", "/samples")


def update(client: "MlflowClient", experiment_id: str) -> None:
    """Bring view and description up to date with the experiment's runs, unless somebody edited them in MLflow."""
    tags = client.get_experiment(experiment_id).tags
    runs = client.search_runs([experiment_id], max_results=MOST_RUNS)
    fresh = {VIEW_TAG: view(runs), NOTE_TAG: note(runs, experiment_id)}
    written = json.loads(tags.get(WRITTEN_TAG, "{}"))
    for tag, text in fresh.items():
        is_ours = tag not in tags or files.digest_of(tags[tag]) == written.get(tag)
        if is_ours and content(tags.get(tag, "")) != content(text):
            # The digest goes first: a kill between the two leaves a tag that is not rewritten, never one that was edited and is lost.
            written[tag] = files.digest_of(text)
            client.set_experiment_tag(experiment_id, WRITTEN_TAG, json.dumps(written))
            client.set_experiment_tag(experiment_id, tag, text)


def content(text: str) -> str:
    """What a view shows, without the times at which it was written."""
    return str(json.loads(text)["state"]) if text.startswith("{") else text


def view(runs: "Sequence[Run]") -> str:
    """The tag of a view in the form in which MLflow stores one."""
    now_ms = time.time_ns() // 1_000_000
    for most in range(MOST_DIFFERING, -1, -4):
        packed = zlib.compress(json.dumps(state(runs, most), separators=(",", ":")).encode(), 9)
        packed_state = COMPRESSED + base64.b64encode(packed).decode()
        text = json.dumps({"name": "Comparison", "createdAt": now_ms, "updatedAt": now_ms, "state": packed_state})
        if len(text) <= MOST_TAG_CHARACTERS:
            break
    return text


def unpacked(text: str) -> dict[str, Any]:
    """The state of the table and charts that a view's tag holds."""
    packed = json.loads(text)["state"].removeprefix(COMPRESSED)
    return dict(json.loads(zlib.decompress(base64.b64decode(packed))))


def state(runs: "Sequence[Run]", most_differing: int = MOST_DIFFERING) -> dict[str, Any]:
    """Table and charts of the runs, newest first: what the UI keeps of them."""
    trained = [run for run in runs if run.data.params]
    metrics = sorted({name for run in trained for name in run.data.metrics})
    chosen = chosen_metric(trained)
    scored = "test/" + chosen.partition("/")[2]
    differing = differing_params(trained)[:most_differing]
    columns = ["attributes.`Run Name`", "attributes.`Duration`"]
    columns += [f"metrics.`{name}`" for name in (scored, chosen)]
    columns += [f"params.`{name}`" for name in dict.fromkeys((*ALWAYS_SHOWN, *differing))]
    columns += [f"tags.`{name}`" for name in differing_tags(trained)]
    columns += ["attributes.`Description`"]
    charts = list(cards(metrics, chosen=chosen, scored=scored, params=shared_params(trained, differing)))
    return {
        "searchFilter": "",
        "orderByKey": f"metrics.`{chosen}`",
        "orderByAsc": is_better_lower(chosen),
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
    """The metric by which the newest run chose its weights: `train.metric`."""
    return next((run.data.params["train.metric"] for run in runs if "train.metric" in run.data.params), "valid/accuracy")


def is_better_lower(metric: str) -> bool:
    return metric.endswith(("loss", "error", "perplexity"))


def differing_params(runs: "Sequence[Run]") -> list[str]:
    """The parameters that have more than one value among the runs, in the order of params.yaml's sections."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.data.params.items():
            values.setdefault(name, set()).add(value)
    return sorted((name for name, found in values.items() if len(found) > 1), key=section_rank)


def section_rank(name: str) -> tuple[int, str]:
    section = name.partition(".")[0]
    return (SECTIONS_OF_PARAMS.index(section) if section in SECTIONS_OF_PARAMS else len(SECTIONS_OF_PARAMS), name)


def differing_tags(runs: "Sequence[Run]") -> list[str]:
    """The settings of `evaluate` in which the runs differ: they are tags, because a model can be evaluated again."""
    names = {name for run in runs for name in run.data.tags if name.startswith("evaluate.") and ".git." not in name}
    return sorted(name for name in names if len({run.data.tags.get(name) for run in runs}) > 1)


def shared_params(runs: "Sequence[Run]", names: Sequence[str]) -> list[str]:
    """Those of the parameters that every run has: parallel coordinates leave out a run that lacks one."""
    return [name for name in names if all(name in run.data.params for run in runs)]


def cards(metrics: Sequence[str], *, chosen: str, scored: str, params: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every metric's card: MLflow makes one of its own, in a section before these, of each metric that has none."""
    for name in sorted(metrics, key=lambda name: (name != chosen, name != "train/objective", name)):
        if name.startswith("valid/"):
            yield line(name, "valid")
        elif (name.startswith("train/") and name != "train/samples_per_second") or name == "learning_rate":
            yield line(name, "train")
        elif not name.startswith("test/"):
            yield line(name, "machine")
    tested = [name for name in metrics if name.startswith("test/")]
    for name in sorted(tested, key=lambda name: (name != scored, name.endswith(NOT_COMPARED), name)):
        yield card(name, "test", "BAR", metricKey=name, deleted=name.endswith(NOT_COMPARED))
    if params:
        yield card("parallel", "parameters", "PARALLEL", selectedParams=list(params), selectedMetrics=[scored], showAllRuns=False)


def line(metric: str, section: str) -> dict[str, Any]:
    # Without the keys of axes and smoothing the UI smooths the curve.
    axes = {"xAxisKey": "step", "useGlobalXaxisKey": True, "scaleType": "linear", "xAxisScaleType": "linear", "range": {}}
    smoothing = {"lineSmoothness": 0, "useGlobalLineSmoothing": True}
    return card(metric, section, "LINE", metricKey=metric, yAxisKey="metric", yAxisExpressions=[], **axes, **smoothing)


def card(name: str, section: str, kind: str, **more: Any) -> dict[str, Any]:
    # With `isGenerated` bars turn into lines.
    return {"uuid": name, "type": kind, "metricSectionId": section, "deleted": False, "isGenerated": False, **more}


def note(runs: "Sequence[Run]", experiment_id: str) -> str:
    """The experiment's description in Markdown. Its first line, with the links, is always visible."""
    links = f"[Table]({link(experiment_id)}) and [charts]({link(experiment_id, charts=True)}) that compare the runs"
    chosen = chosen_metric(runs)
    scored = [run for run in runs if chosen in run.data.metrics]
    if not scored:
        return f"{links}."
    best = sorted(scored, key=lambda run: run.data.metrics[chosen], reverse=not is_better_lower(chosen))[0]
    named = f"[{best.info.run_name}](#/experiments/{experiment_id}/runs/{best.info.run_id})"
    differing = ", ".join(f"`{name}`" for name in differing_params(runs)[:MOST_DIFFERING]) or "no parameter"
    return f"{links}. Best {chosen}: {best.data.metrics[chosen]:.4f} by {named}.\n\n{len(runs)} runs; they differ in {differing}."


def link(experiment_id: str, *, charts: bool = False) -> str:
    """The address of the shared view within an MLflow server."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning{mode}&viewStateShareKey=comparison"
