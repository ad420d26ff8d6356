"""The comparison of an experiment's runs in the MLflow UI: columns, charts and description, kept in tags of the experiment.

MLflow stores a shared view as a tag of the experiment: the JSON state of its table and charts, compressed. The state's keys are those
of the UI of MLflow 3.17, found out by trying; MLflow documents none of them.
"""

import base64
import json
import math
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.io import files
from pipeline.tracking.store import NOTE_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

VIEW_TAG = "mlflow.sharedViewState.comparison"
PROOF = "\n\n[//]: # (pipeline {})"
"""The last line of a description that nobody edited, with a digest of the lines before it. Markdown shows no link definition."""
COMPRESSED = "deflate;"
MOST_TAG_CHARACTERS = 20_000
MOST_RUNS = 200
ALWAYS_SHOWN = ("model.name", "source.name", "optimizer.learning_rate", "train.batch_size")
SECTIONS_OF_PARAMS = ("source", "model", "optimizer", "schedule", "augment", "train", "evaluate", "seed")
SIZES = ((16, 80), (8, 40), (4, 10), (0, 0))
"""How many differing parameters and charts a view may have: the first pair with which it fits into a tag is taken."""
WIDTHS = {"attributes.`Run Name`": 300, "attributes.`Duration`": 90, "attributes.`Description`": 330}
NO_BARS = ("/low", "/high", "/samples")
"""Ends of names of test metrics that are no scores to compare."""


def update(client: "MlflowClient", experiment_id: str) -> None:
    """Bring view and description up to date with the experiment's newest runs, unless somebody edited them in MLflow."""
    runs = trained_here(client.search_runs([experiment_id], max_results=MOST_RUNS))
    fresh = {VIEW_TAG: view(runs), NOTE_TAG: note(runs, experiment_id)}
    tags = client.get_experiment(experiment_id).tags
    for tag, text in fresh.items():
        held = tags.get(tag)
        if held is None or (is_unedited(held) and content(held) != content(text)):
            client.set_experiment_tag(experiment_id, tag, text)


def trained_here(runs: "Sequence[Run]") -> "list[Run]":
    """Leave out the runs of other programs in the same experiment."""
    return [run for run in runs if "train.metric" in run.data.params]


def is_unedited(text: str) -> bool:
    """Tell whether a view or a description is as it was written here, by the digest that it holds of itself."""
    try:
        envelope = json.loads(text)
        return bool(envelope["digest"] == files.digest_of(envelope["state"]))
    except (ValueError, LookupError, TypeError):
        return text == proven(text.rpartition(PROOF.partition("{")[0])[0])


def proven(text: str) -> str:
    return text + PROOF.format(files.digest_of(text)[:16])


def content(text: str) -> str:
    """What a view shows, without the times at which it was written."""
    return str(json.loads(text)["state"]) if text.startswith("{") else text


def view(runs: "Sequence[Run]") -> str:
    """Return the tag of a view in the form in which MLflow stores one, with a digest of its state."""
    now_ms = time.time_ns() // 1_000_000
    for most_differing, most_cards in SIZES:
        shown = json.dumps(state(runs, most_differing, most_cards), separators=(",", ":"))
        packed = COMPRESSED + base64.b64encode(zlib.compress(shown.encode(), 9)).decode()
        envelope = {"name": "Comparison", "createdAt": now_ms, "updatedAt": now_ms, "state": packed, "digest": files.digest_of(packed)}
        if len(text := json.dumps(envelope)) <= MOST_TAG_CHARACTERS:
            break
    return text


def unpacked(text: str) -> dict[str, Any]:
    """The state of the table and charts that a view's tag holds."""
    packed = json.loads(text)["state"].removeprefix(COMPRESSED)
    return dict(json.loads(zlib.decompress(base64.b64decode(packed))))


def state(runs: "Sequence[Run]", most_differing: int, most_cards: int) -> dict[str, Any]:
    """Return table and charts of the runs, newest first, as the UI stores them."""
    # runs of earlier versions have metrics for each class
    metrics = sorted({name for run in runs for name in run.data.metrics if not name.startswith("test/per_class/")})
    chosen = chosen_metric(runs)
    scored = "test/" + chosen.partition("/")[2]
    differing = differing_params(runs)[:most_differing]
    columns = ["attributes.`Run Name`", "attributes.`Duration`"]
    columns += [f"metrics.`{name}`" for name in (scored, chosen)]
    columns += [f"params.`{name}`" for name in dict.fromkeys((*ALWAYS_SHOWN, *differing))]
    columns += [f"tags.`{name}`" for name in differing_tags(runs)]
    columns += ["attributes.`Description`"]
    charts = list(cards(metrics[:most_cards], chosen=chosen, scored=scored, params=shared_params(runs, differing)))
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
    """Return the settings of `evaluate` in which the runs differ: they are tags, because a model can be evaluated again."""
    # runs of earlier versions have the tag `evaluate.git.commit`, which is no setting
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
    for name in sorted(tested, key=lambda name: (name != scored, name.endswith(NO_BARS), name)):
        yield card(name, "test", "BAR", metricKey=name, deleted=name.endswith(NO_BARS))
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
    scored = [run for run in runs if math.isfinite(run.data.metrics.get(chosen, math.nan))]
    if not scored:
        return proven(f"{links}.")
    best = sorted(scored, key=lambda run: run.data.metrics[chosen], reverse=not is_better_lower(chosen))[0]
    name = re.sub(r"([\\`*_\[\]()<>])", r"\\\1", best.info.run_name)
    named = f"[{name}](#/experiments/{experiment_id}/runs/{best.info.run_id})"
    differing = ", ".join(f"`{name}`" for name in differing_params(runs)[:16]) or "no parameter"
    count = "1 run" if len(runs) == 1 else f"{'the newest ' if len(runs) == MOST_RUNS else ''}{len(runs)} runs"
    return proven(
        f"{links}. Best {chosen}: {best.data.metrics[chosen]:.4f} by {named}.\n\nOf {count}, these parameters differ: {differing}."
    )


def link(experiment_id: str, *, charts: bool = False) -> str:
    """The address of the shared view within an MLflow server."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning{mode}&viewStateShareKey=comparison"
