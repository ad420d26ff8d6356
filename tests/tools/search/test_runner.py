"""A search that is killed at any instant and repeated ends with the same trials as one that was not."""

import csv
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import pytest
import scipy.stats
from optuna.storages import RDBStorage
from optuna.storages._rdb.storage import _VersionManager
from optuna.trial import TrialState

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.prepared import PreparedRecord, read_record
from pipeline.core.refusal import Refusal
from pipeline.core.seeding import derive
from pipeline.runs import events, journal
from pipeline.tools import stages
from pipeline.tools.params.editing import edited
from pipeline.tools.search import command, settings, trial
from pipeline.tools.search.study import spread
from pipeline.tools.search.trial import TrialFolder, devices, run
from tests import project
from tests.tools.search import projects
from tests.tools.search.projects import FakeChild

WRITES = (*("create_new_study", "create_new_trial", "set_trial_intermediate_value", "set_trial_user_attr", "set_trial_state_values"),)


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the code handles it."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    before = Path.cwd()
    os.chdir(folder)
    try:
        return projects.prepare(folder) / "data/prepared"
    finally:
        os.chdir(before)


@cache
def cached_edit(text: str, assignments: Sequence[str]) -> str:
    """Return what the function `edited` returns. A search that is killed and repeated asks for the same again."""
    return edited(text, assignments)


@pytest.fixture
def top(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with prepared data, which is the working directory. Children train in an instant, and nothing is tracked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setattr(command, "start", FakeChild)
    monkeypatch.setattr(command, "POLL_S", 0.0)
    monkeypatch.setattr(settings, "edited", lambda text, assignments: cached_edit(text, tuple(assignments)))
    monkeypatch.setattr(FakeChild, "starts", [])
    monkeypatch.setattr(_VersionManager, "check_table_schema_compatibility", lambda _: None)  # it reads the migrations each time
    project.make(tmp_path)
    (tmp_path / "data/prepared").symlink_to(prepared)
    projects.write()
    return tmp_path


def search(num_trials: int | None = None, *, apply: bool = False, keep_models: bool = False) -> None:
    command.run(str(projects.FILE), num_trials, apply, keep_models)


def outcome(top: Path, name: str = "tiny") -> list[tuple[Any, ...]]:
    """Return what the study of a search has in the end."""
    storage = RDBStorage(f"sqlite:///{top}/.pipeline/search/{name}/study.db")
    trials = storage.get_all_trials(storage.get_study_id_from_name(name))
    storage.remove_session()
    storage.engine.dispose()
    return [(trial.number, trial.state.name, trial.params, trial.intermediate_values, trial.values) for trial in trials]


@pytest.mark.parametrize(
    ("changes", "states"),
    [({"trials": 12}, {"COMPLETE", "PRUNED"}), pytest.param(projects.SEEDS, {"COMPLETE"}, marks=pytest.mark.slow)],
    ids=["pruned", "seeds"],
)
def test_a_search_killed_before_any_write_ends_with_the_same_trials(
    top: Path, changes: dict[str, Any], states: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    projects.write(changes)
    search()
    expected, rows = outcome(top), table()
    assert [trial[0] for trial in expected] == list(range(5 if "seed" in expected[0][2] else 12))
    assert {trial[1] for trial in expected} == states
    (top / ".pipeline/search/tiny").rename(top / ".pipeline/search/whole")
    assert killed_search(monkeypatch, every=24) > 2
    search()  # its table is written after the last write at which it was killed
    assert (outcome(top), table()) == (expected, rows)


def killed_search(monkeypatch: pytest.MonkeyPatch, *, every: int) -> int:
    """Run a search, kill it at a random one of the next `every` writes, before or after it, and so on to its end. Return the number of kills."""
    generator = random.Random(1)
    left = 0

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def write(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and generator.random() < 0.5:
                raise KilledError
            answer = original(*arguments, **options)
            if left <= 0:
                raise KilledError
            return answer

        monkeypatch.setattr(owner, name, write)

    for name in WRITES:
        wrap(RDBStorage, name)
    wrap(files, "write_text")
    for kills in itertools.count():
        left = generator.randint(2, 2 * every) + kills // 10  # so that it comes to an end
        try:
            search()
        except KilledError:
            continue
        left = sys.maxsize  # what follows is not killed
        return kills
    raise AssertionError


def table(name: str = "tiny") -> list[dict[str, str]]:
    """Return the rows of the table of a search, without the names of the runs."""
    with Path(f".pipeline/search/{name}/trials.csv").open(newline="") as file:
        return [{key: value for key, value in row.items() if key != "run"} for row in csv.DictReader(file)]


def test_seeds_have_a_mean_and_a_deviation_but_no_best(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    projects.write(projects.SEEDS)
    search()
    out = capsys.readouterr().out
    assert "search tiny: 5 trials that differ in seed, 1 at a time" in out
    assert "rank" not in out
    assert "best" not in out
    losses = [1 / 3 + abs(0.003 - 0.03) + (seed - 1) ** 2 / 100 for seed in range(1, 6)]
    mean, deviation = np.mean(losses), np.std(losses, ddof=1)
    low, high = scipy.stats.t.interval(0.95, 4, mean, deviation / 5**0.5)
    lines = [line.split() for line in out.splitlines() if line.strip().startswith(("valid/loss", "test/loss"))]
    assert lines == [
        ["valid/loss", f"{mean:.4f}", f"{deviation:.4f}", f"{low:.4f}", "to", f"{high:.4f}"],
        ["test/loss", f"{mean + 1:.4f}", f"{deviation:.4f}", f"{low + 1:.4f}", "to", f"{high + 1:.4f}"],
    ]
    wider = spread(losses, folds=5)  # Nadeau and Bengio: the variance of the mean is larger by 1 / (folds - 1)
    assert wider.high - mean == pytest.approx((high - mean) * ((1 / 5 + 1 / 4) / (1 / 5)) ** 0.5)
    assert len(list(top.glob(".pipeline/search/tiny/trials/*/models/model.safetensors"))) == 5
    with pytest.raises(Refusal, match="--apply: the trials differ in seed, and the best would be so by chance"):
        search(apply=True)


def test_a_grid_has_each_combination_once_and_a_mean_for_each_over_the_seeds(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"type": "categorical", "choices": [0.003, 0.03]}
    space = {"optimizer.learning_rate": rates, "seed": {"type": "int", "low": 1, "high": 3}}
    projects.write({**projects.SEEDS, "pruner": "median", "space": space})  # the last training is the worst, and is not pruned
    search()
    assert [(row["optimizer.learning_rate"], row["seed"]) for row in table()] == [
        (rate, seed) for rate in ("0.003", "0.03") for seed in "123"
    ]
    out = capsys.readouterr().out
    assert "3 complete trainings, lr=3e-3, which differ in seed:" in out
    assert "3 complete trainings, lr=0.03, which differ in seed:" in out


def test_each_fold_validates_its_own_part_and_leaves_the_data_of_the_checkout_alone(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    class Keeping(FakeChild):
        def __init__(self, trial: Any, *more: Any) -> None:
            super().__init__(trial, *more)
            if trial.left == ["train", "evaluate"]:
                found.append({*(trial.paths.prepared / "valid-keys.jsonl").read_text().splitlines()})
                if len(found) == 1:
                    raise KilledError

    monkeypatch.setattr(command, "start", Keeping)
    before = (top / "data/prepared/spec.json").read_bytes()
    projects.write(projects.FOLDS)
    with pytest.raises(KilledError):
        search()
    search()
    own = [set((top / f"data/prepared/{split}-keys.jsonl").read_text().splitlines()) for split in ("train", "valid")]
    assert len(found) == 3
    assert set.union(*found) == own[0] | own[1]
    assert sum(map(len, found)) == len(own[0] | own[1])
    assert (top / "data/prepared/spec.json").read_bytes() == before
    assert not list(top.glob(".pipeline/search/tiny/trials/*/data"))


def test_a_fold_of_a_source_that_has_changed_is_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(folder: Path) -> PreparedRecord:
        found = read_record(folder)
        return (
            found
            if folder == Path("data/prepared")
            else found.model_copy(update={"splits": {**found.splits, "test": found.splits["train"]}})
        )

    monkeypatch.setattr(command, "read_record", changed)
    projects.write(projects.FOLDS)
    with pytest.raises(Refusal, match=r"data/prepared: source.root has changed since it was made: undo the change, or run"):
        search(1)
    assert not FakeChild.starts


def test_a_search_proposes_and_prunes_like_a_study_of_optuna_in_memory(top: Path) -> None:
    seed = 12  # with this one, two trials would be pruned at their last validation
    projects.write({"seed": seed})
    search(12)
    study = optuna.create_study(direction="minimize", pruner=optuna.pruners.MedianPruner())
    rate, clip_norm = projects.SEARCH["space"].values()
    space = {
        "optimizer.learning_rate": optuna.distributions.FloatDistribution(rate["low"], rate["high"], log=True),
        "train.clip_norm": optuna.distributions.CategoricalDistribution(clip_norm["choices"]),
    }
    for number in range(12):
        study.sampler = optuna.samplers.TPESampler(seed=derive(seed, "trial", number) % 2**32)
        proposed, pruned = study.ask(space), False
        for validation in (1, 2, 3):
            loss = abs(proposed.params["optimizer.learning_rate"] - validation / 100) + 1 / validation
            proposed.report(loss, validation)
            if pruned := proposed.should_prune() and validation < 3:
                break
        study.tell(proposed, None if pruned else loss, TrialState.PRUNED if pruned else TrialState.COMPLETE)
    found = [(trial.number, trial.state.name, trial.params, trial.intermediate_values, trial.values) for trial in study.trials]
    assert outcome(top) == found
    assert {trial[1] for trial in found} == {"COMPLETE", "PRUNED"}


def test_a_longer_search_keeps_its_trials_and_the_model_of_the_best(top: Path) -> None:
    search(3)
    first = outcome(top)
    search(3)
    assert FakeChild.starts == [0, 1, 2], "a finished search trains nothing"
    search(5)
    assert outcome(top)[:3] == first
    assert FakeChild.starts == [0, 1, 2, 3, 4]
    best = min(outcome(top), key=lambda trial: trial[4])[0]
    assert [path.parts[-3] for path in top.glob(".pipeline/search/tiny/trials/*/models/*")] == [f"{best:04}"]


def test_the_table_is_ranked_and_names_what_varied(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rank", "trial", "valid/loss", "steps", "outcome", "lr", "clip_norm", "run"] in lines
    complete = sorted((trial for trial in outcome(top) if trial[1] == "COMPLETE"), key=lambda trial: trial[4])
    shown = [line[:2] for line in lines if "complete" in line and "search:" not in line]
    assert shown == [[str(rank), str(trial[0])] for rank, trial in enumerate(complete, 1)]
    assert (top / ".pipeline/search/tiny/trials.csv").read_text().count("\n") == 9


def test_the_best_parameters_are_put_in_place_with_every_digit(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("params.yaml").read_text()
    search(3)
    assert Path("params.yaml").read_text() == before
    search(3, apply=True)
    best = min(outcome(top), key=lambda trial: trial[4])
    trial = top / f".pipeline/search/tiny/trials/{best[0]:04}/params.yaml"
    assert Path("params.yaml").read_text() == trial.read_text() != before
    assert repr(best[2]["optimizer.learning_rate"]) in trial.read_text()


def test_parameters_edited_while_the_search_ran_are_not_overwritten(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Editing(FakeChild):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            Path("params.yaml").write_text("# a note\n")

    monkeypatch.setattr(command, "start", Editing)
    with pytest.raises(Refusal, match=r"params.yaml: has been edited while the search ran, and is left as it is: repeat"):
        search(2, apply=True)
    assert Path("params.yaml").read_text() == "# a note\n"


def test_no_trial_begins_after_a_change_of_what_decides_results(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(FakeChild):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            Path("requirements.lock").write_text("torch==2\n")

    monkeypatch.setattr(command, "start", Changing)
    with pytest.raises(Refusal, match=r"these have changed: requirements.lock: undo the change"):
        search()
    assert FakeChild.starts == [0]


def test_the_best_trial_has_a_model_in_its_run_and_the_run_of_a_killed_search_ends(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setenv("PIPELINE_TRACKING_MIRROR", "false")

    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(command.SearchRunner, "add_results", killed)  # after the last trial
        with pytest.raises(KilledError):
            search(2)
    bests = []
    for num_trials in (2, 5, 8):
        search(num_trials)
        bests.append(min((trial for trial in outcome(top) if trial[4]), key=lambda trial: trial[4])[0])
        parent, *trials = (list(events.read(path / events.EVENTS)) for path in journal.journals(top))
        assert [[event.kind for event in each].count("model") for each in trials] == [int(number in bests) for number in range(num_trials)]
        assert (parent[0].fields["stage"], parent[-1].kind, parent[-1].fields["status"]) == ("search", "end", "FINISHED")
        assert "trials.csv" in {Path(event.fields["file"]).name for event in parent if event.kind == "artifact"}
    assert len(set(bests)) > 1


def test_parameters_that_do_not_fit_each_other_fail_their_trial_only(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project.write_params(top, {"train.batch_size": 64, "train.micro_batch_size": 16})
    space = {
        "train.batch_size": {"type": "categorical", "choices": [16, 64]},
        "train.micro_batch_size": {"type": "categorical", "choices": [16, 64]},
    }
    projects.write({"space": space})
    search()
    assert {trial[1] for trial in outcome(top) if trial[2] == {"train.batch_size": 16, "train.micro_batch_size": 64}} == {"FAIL"}
    reason = "train.micro_batch_size=64: is larger than train.batch_size: write at most 16"
    assert f" failed: {reason}\n" in capsys.readouterr().out
    assert f",{reason}\n" in (top / ".pipeline/search/tiny/trials.csv").read_text()


def test_a_search_that_has_changed_is_refused_with_what_to_do(top: Path) -> None:
    search(1)
    projects.write({"direction": "maximize", "seed": 4})
    project.write_params(top, {"train.batch_size": 32, "train.micro_batch_size": 32})
    spec = top / "data/prepared/spec.json"
    content = spec.read_text()
    (top / "data/prepared").unlink()
    files.write_text(spec, content.replace('"inputs_digest": "', '"inputs_digest": "0'))
    with pytest.raises(Refusal) as caught:
        search()
    assert str(caught.value).startswith(
        ".pipeline/search/tiny/study.db: since this search began, these have changed: direction, seed, params.yaml train.batch_size, "
        "params.yaml train.micro_batch_size, data/prepared: "
    )
    assert str(caught.value).endswith("another `name:` into the search file for a new search, or remove .pipeline/search/tiny")


def test_a_second_search_of_the_same_name_is_refused(top: Path) -> None:
    with (
        files.locked(Path(".pipeline/search/tiny/lock"), wait=False),
        pytest.raises(Refusal, match="another process is running this search: wait for it"),
    ):
        search()


def test_a_damaged_study_is_refused(top: Path) -> None:
    files.write_text(Path(".pipeline/search/tiny/study.db"), "no database " * 1000)
    with pytest.raises(Refusal, match=r"study.db: cannot be opened as a study .*: restore it, or remove .pipeline/search/tiny"):
        search()


def test_without_a_complete_trial_nothing_can_be_applied(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, 2, location=("train", "on_nonfinite"))
    with pytest.raises(Refusal, match="no trial is complete, so no parameters can be applied"):
        search(1, apply=True)


def failing(monkeypatch: pytest.MonkeyPatch, exit_code: int, **place: Any) -> None:
    """Let each trial end at once; if it is refused, because of `place`."""

    class Failing(FakeChild):
        returncode = exit_code

        def __init__(self, trial: TrialFolder, *_: Any) -> None:
            def refuse(*_: Any) -> int:
                raise Refusal("it", **({"file": str(trial.paths.params), "line": 19} | place))

            with monkeypatch.context() as patch, suppress(Refusal):
                patch.setattr(stages, "run", refuse)
                run(str(trial.folder)) if exit_code == Refusal.exit_code else None

    monkeypatch.setattr(command, "start", Failing)


def test_a_child_that_dies_stops_the_search_and_is_resumed(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(1)
    with monkeypatch.context() as patch:
        failing(patch, -9)
        with pytest.raises(
            Refusal, match=r"trial 1 ended with exit code -9 \(no reason is known\): .*log.txt has its output: remove the cause"
        ):
            search(2)
    search(2)
    assert [trial[1] for trial in outcome(top)] == ["COMPLETE", "COMPLETE"]
    assert FakeChild.starts == [0, 1]


def test_a_trial_fails_by_its_parameters_if_the_error_names_one_and_else_the_search_stops(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, 2, location=("stages",), file="dvc.yaml")
    with pytest.raises(Refusal, match=r"trial 0 ended with exit code 2 \(.*stages: it\)"):
        search(1)
    failing(monkeypatch, 2, location=("train", "on_nonfinite"))
    search(1)
    assert [row["reason"] for row in table() if row["outcome"] == "failed"] == ["train.on_nonfinite: it"]


def test_each_of_several_trials_gets_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(device: str, count: int, **more: Any) -> list[str | None]:
        return devices(Environment.model_validate({"PIPELINE_DEVICE": device, **more}), count)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(trial.utilization, "gpus", lambda: ["a", "b", "c"])
    assert given("auto", 4) == ["0", "1", "2", "0"]
    assert given("auto", 1) == [None]
    assert given("cpu", 2) == given("cuda:1", 2) == given("auto", 2, PIPELINE_PROCESSES=2) == [None, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    assert given("cuda", 2) == ["3", "GPU-5"]


@pytest.fixture
def real(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING_MIRROR", "false")
    project.make(tmp_path)
    (tmp_path / "data/prepared").symlink_to(prepared)
    return tmp_path


def wait_for(ready: Path, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a file matches `ready`. The process must run until then."""
    deadline = time.monotonic() + 300
    while not list(ready.parent.parent.glob(f"{ready.parent.name}/{ready.name}")):
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_search(ready: Path) -> None:
    """Run the search in a process, and kill it and its children when there is a file that matches `ready`."""
    process = subprocess.Popen([sys.executable, "-m", "pipeline", "search", str(projects.FILE)])
    wait_for(ready, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in children:
        if each.is_running():
            each.kill()
    process.wait()


def stop_search(ready: Path) -> int:
    """Run the search, send SIGTERM to this process when there is a file that matches `ready`, and return the exit code."""

    def stop() -> None:
        wait_for(ready)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    code = main(["search", str(projects.FILE)])
    thread.join()
    return code


@pytest.mark.slow
def test_a_real_search_is_killed_and_repeated_and_its_best_model_is_reproduced(real: Path, monkeypatch, capsys) -> None:
    projects.write({"trials": 2})
    project.write_params(real, {"train.steps": 160})  # long enough that no signal arrives after the last step
    monkeypatch.setenv("PIPELINE_CHECKPOINT_EVERY_STEPS", "4")
    trials = real / ".pipeline/search/tiny/trials"
    kill_search(trials / "0000/.pipeline/work/*/step-*")
    assert stop_search(trials / "0001/.pipeline/work/*/step-*") == 128 + signal.SIGTERM
    assert main(["search", str(projects.FILE), "--apply"]) == 0
    found = outcome(real)
    assert [(trial[0], trial[1]) for trial in found] == [(0, "COMPLETE"), (1, "COMPLETE")]
    logs = [(trials / f"{number:04}/log.txt").read_text() for number in range(2)]
    assert all("resuming after step" in log for log in logs)
    starts = [next(events.read(path / events.EVENTS)).fields for path in journal.journals(real)]
    assert [start["stage"] for start in starts] == ["search", "train", "train"], "one run for each trial, and the parent"
    for number, start in enumerate(starts[1:]):
        assert start["tags"]["pipeline.parent"] == journal.journals(real)[0].name
        assert start["tags"]["pipeline.trial"] == str(number)
        assert start["name"].startswith(f"tiny #{number} lr=")
    stages.run("train")
    best = min(found, key=lambda trial: trial[4])[0]
    assert files.digest(real / "models/model.safetensors") == files.digest(trials / f"{best:04}/models/model.safetensors")
    assert "now has the parameters of trial" in capsys.readouterr().out
