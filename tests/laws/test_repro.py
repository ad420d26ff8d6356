"""Real `dvc repro` runs in a new repository: which stages run, and what MLflow holds afterwards."""

import json
import os
import re
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.tools.check import command as check
from tests import project
from tests.conftest import MLP
from tests.imports import TOP
from tests.repository import GIT, call, repository, runs

RESULTS = ("models/model.safetensors", "metrics/train.json", "metrics/evaluate.json")
FRESH = "mlflow.db-fresh"
TABLES, FIGURES = ("confusion.csv", "reliability.csv"), ("confusion.png", "reliability.png", "mistakes.png", "history.png")
PLOTS = ("train/history.csv", *(f"evaluate/{name}" for name in (*TABLES, *FIGURES)))


def stop_workers(folder: Path) -> None:
    """Stop the workers of DVC's queue. They would stop when they have been idle for ten seconds, except that a race in DVC can prevent it
    (docs/when-it-stops.md).
    """
    for record in (folder / ".dvc/tmp/exps/celery").glob("dvc-exp-worker-*.json"):
        worker = json.loads(record.read_text(encoding="utf-8"))
        if worker["returncode"] is None:
            with suppress(ProcessLookupError):
                os.kill(worker["pid"], signal.SIGTERM)


def ran(output: str) -> list[str]:
    return [stage for stage in ("prepare", "train", "evaluate") if f"Running stage '{stage}'" in output]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = repository(tmp_path_factory.mktemp("checkout"))
    (folder / ".venv").symlink_to(sys.prefix)
    # `-o`: the environment is that of the tests, whatever the age of its lock
    output = call(folder, "make", "-o", ".venv/.locked", "repro")
    assert ran(output) == ["prepare", "train", "evaluate"]
    assert output.count("test accuracy") == 1, "by the summary, and not by evaluate as well"
    return folder


def test_a_repro_leaves_what_dvc_yaml_says_and_nothing_else(checkout: Path) -> None:
    for name in (*RESULTS, *(f"plots/{plot}" for plot in PLOTS)):
        assert (checkout / name).is_file(), name
    changed = {line[3:] for line in call(checkout, "git", "status", "--porcelain").splitlines()}
    assert changed == {"dvc.lock", "metrics/", "plots/"}


@pytest.mark.slow
def test_a_second_repro_runs_no_stage(checkout: Path) -> None:
    output = call(checkout, "make", "-o", ".venv/.locked", "repro")
    assert ran(output) == []
    assert "up to date" in output
    assert output.count("test accuracy") == 1


@pytest.mark.slow
def test_a_repro_with_two_processes_records_one_run(tmp_path: Path) -> None:
    folder = repository(tmp_path / "checkout", {"train.lanes": 2})
    output = call(folder, "dvc", "repro", PIPELINE_PROCESSES="2")
    assert ran(output) == ["prepare", "train", "evaluate"]
    assert output.count("step 24 of 24") == 1, "by rank 0"
    assert ran(call(folder, "dvc", "repro", PIPELINE_PROCESSES="2")) == []
    assert {line[3:] for line in call(folder, "git", "status", "--porcelain").splitlines()} == {"dvc.lock", "metrics/", "plots/"}
    assert list((folder / ".pipeline").glob("ranks-*")) == []
    assert len(runs(f"sqlite:///{folder / 'mlflow.db'}")) == 1


def test_check_knows_whether_dvc_would_train(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    assert not check.would_run("train")
    project.write_params(checkout, {"train.steps": 2})
    try:
        assert check.would_run("train")
    finally:
        project.write_params(checkout)


def test_an_edit_runs_what_depends_on_it(checkout: Path) -> None:
    """A dry run writes nothing, so a stage behind one that would run is named for its own dependencies only."""
    of_no_stage = ["models/resnet.py", "sources/cifar.py", "runs/run.py", "train/engine/.fit.py.swp", "prepare/reading/notes.txt"]
    for names, stages in ((of_no_stage, []), (["models/mlp.py"], ["train", "evaluate"])):
        paths = [checkout / "pipeline" / name for name in names]
        before = {path: path.read_bytes() for path in paths if path.exists()}
        for path in paths:
            path.write_bytes(before.get(path, b"") + b"\n# edited\n")
        try:
            assert ran(call(checkout, "dvc", "repro", "--dry")) == stages
        finally:
            for path in paths:
                path.write_bytes(before[path]) if path in before else path.unlink()


@pytest.mark.slow
def test_two_clones_give_the_same_bytes(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "another folder"
    call(tmp_path, "git", "clone", "-q", str(checkout), str(other))
    call(other, "dvc", "repro", PYTHONHASHSEED="7", TZ="Asia/Tokyo", LC_ALL="C", PIPELINE_WORKERS="1", PIPELINE_TRACKING="false")
    for name in (*RESULTS, *(f"plots/{plot}" for plot in PLOTS)):
        assert files.digest(other / name) == files.digest(checkout / name), name
    assert files.digest(other / "data/prepared") == files.digest(checkout / "data/prepared")


@pytest.mark.slow
def test_experiments_and_the_run_cache_work_as_users_of_dvc_expect(checkout: Path, tmp_path: Path) -> None:
    call(checkout, *GIT, "add", "-A")
    call(checkout, *GIT, "commit", "-qm", "results")
    for width in ("20", "24"):
        call(checkout, "dvc", "exp", "run", "--queue", "-S", f"model.width={width}")
    # both find no store, and each would make one
    try:
        call(checkout, "dvc", "exp", "run", "--run-all", "--jobs", "2", MLFLOW_TRACKING_URI=f"sqlite:///{FRESH}")
    finally:
        stop_workers(checkout)
    shown = json.loads(call(checkout, "dvc", "exp", "show", "--json"))
    found = {
        revision["data"]["params"]["params.yaml"]["data"]["model"]["width"]
        for entry in shown
        for experiment in entry.get("experiments") or []
        for revision in experiment["revs"]
    }
    assert found == {20, 24}
    # an earlier run that no store has completely may be there, too
    tracked = [run for run in runs(f"sqlite:///{checkout / FRESH}") if run.data.tags.get("pipeline.dvc.experiment")]
    assert sorted(run.data.params["model.width"] for run in tracked) == ["20", "24"]
    assert all("test/accuracy" in run.data.metrics for run in tracked)
    for changes in ({"model": {**MLP, "width": 24}}, {}):
        project.write_params(checkout, changes)
        assert ran(call(checkout, "dvc", "repro", PIPELINE_TRACKING="false")) == ["evaluate"], "the training is in the run cache"
    assert call(checkout, "git", "status", "--porcelain") == ""
    lines = (TOP / "README.md").read_text(encoding="utf-8").splitlines()
    command = shlex.split(next(line for line in lines if line.startswith("dvc exp show")))
    columns = call(checkout, *command, "--csv").splitlines()[0].split(",")
    of_queue = {"Executor", "State"}
    named = {"Experiment", "rev", "typ", "valid.accuracy", "test.accuracy", "model.width"}
    assert {"Experiment", "test.accuracy", "model.width"} <= set(columns) <= named | of_queue
    assert max(map(len, call(checkout, *command).splitlines())) <= 80, "the width of a terminal"
    call(checkout, "dvc", "remote", "add", "-d", "store", str(tmp_path / "remote"))
    call(checkout, "dvc", "push")
    clone = tmp_path / "clone"
    call(tmp_path, "git", "clone", "-q", str(checkout), str(clone))
    call(clone, "dvc", "remote", "add", "-d", "store", str(tmp_path / "remote"))
    call(clone, "dvc", "pull")
    assert ran(call(clone, "dvc", "repro")) == []
    assert files.digest(clone / RESULTS[0]) == files.digest(checkout / RESULTS[0])
    # no code of ours ran there, so it is the summary that tells MLflow
    assert "test accuracy" in call(clone, "python", "-m", "pipeline", "summary")
    (restored,) = runs(f"sqlite:///{clone / 'mlflow.db'}")
    assert "mlflow.source.git.commit" not in restored.data.tags
    original = next(run for run in runs(f"sqlite:///{checkout / 'mlflow.db'}") if run.data.params["model.width"] == "16")
    assert restored.data.metrics["test/accuracy"] == original.data.metrics["test/accuracy"]
    assert restored.data.tags["pipeline.model_sha256"] == original.data.tags["pipeline.model_sha256"]


@pytest.mark.slow
def test_dvc_shows_and_compares_parameters_metrics_and_plots(checkout: Path, tmp_path: Path) -> None:
    project.write_params(checkout, {"evaluate.top_k": 1})
    try:
        assert "evaluate.top_k" in call(checkout, "dvc", "params", "diff")
        assert "test accuracy" in call(checkout, "dvc", "repro", PIPELINE_TRACKING="false")
        assert "top_k_accuracy" in call(checkout, "dvc", "metrics", "diff")
        metrics = json.loads(call(checkout, "dvc", "metrics", "show", "--json"))[""]["data"]
        assert set(metrics) == {"metrics/train.json", "metrics/evaluate.json"}
        shown = json.loads(call(checkout, "dvc", "plots", "show", "--json"))["data"]
        assert set(shown) == {f"plots/{plot}" for plot in PLOTS}, "each table and figure once"
        call(checkout, "dvc", "plots", "diff", "--out", str(tmp_path / "diff"))
        assert "vega" in (tmp_path / "diff/index.html").read_text(encoding="utf-8")
        template, scripts = tmp_path / "template.html", '<script src="/srv/vega/vega.min.js"></script>'
        template.write_text(f"<html><head>{{refresh_tag}}{scripts}</head><body>{{plot_divs}}</body></html>", encoding="utf-8")
        call(checkout, "dvc", "plots", "show", "--html-template", str(template), "--out", str(tmp_path / "offline"))
        offline = (tmp_path / "offline/index.html").read_text(encoding="utf-8")
        assert scripts in offline
        assert "vegaEmbed" in offline
        assert not re.search(r'<(script|img|link)[^>]*"https?:', offline), "docs/tracking.md says that this page needs no network"
    finally:
        project.write_params(checkout)
        call(checkout, "dvc", "repro", PIPELINE_TRACKING="false")
