import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.runs import events, journal, run
from pipeline.runs.events import DELIVERED, EVENTS, SYSTEM, Cursor, is_pending
from pipeline.runs.journal import Journal, RunInfo
from pipeline.runs.mlflow import mirror, saved_model
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.delivery import Delivery, Sender
from pipeline.runs.mlflow.store import UNNAMED, Store, failure
from tests.forking import wait_until
from tests.runs import tiny
from tests.runs.conftest import NUM_STEPS, RUN_INFO, Tracked, finish

AT_ONCE = """
import sys
from pipeline.runs.mlflow import mirror
from pipeline.tools import sync
mirror.START_AFTER_S = 0.0
sys.exit(sync.run(sys.argv[1]))
"""
"""`python -m pipeline sync --follow`, without the pause before the import of MLflow."""


def test_the_run_holds_all_of_its_journal(tracked: Tracked) -> None:
    found = tracked.run_of(tracked.journal.name)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == RUN_INFO.name
    assert found.data.params == {
        "seed": "1",
        "model.name": "tiny",
        "train.compile": "false",
        "train.clip": "null",
        "train.metric": "valid/accuracy",
    }
    assert (
        found.data.tags.items()
        >= {
            "mlflow.note.content": RUN_INFO.description,
            "mlflow.source.git.commit": "c0ffee",
            "mlflow.user": "someone",
            "evaluate.top_k": "3",
            "pipeline.changed.seed": "2",
        }.items()
    )
    assert found.data.metrics["test/accuracy"] == 0.75
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= found.data.metrics.keys()
    for name in ("train/loss", "train/scale", "valid/loss"):
        history = tracked.client.get_metric_history(found.info.run_id, name)
        assert [point.step for point in history] == list(range(1, NUM_STEPS + 1))
        assert name != "train/loss" or history[2].value == 0.333333, "metrics have six significant digits"
    assert next(iter(found.data.metrics)) == "valid/loss", "MLflow compares runs by the metric that they were given first"
    assert "pipeline.refused" not in found.data.tags
    (dataset,) = found.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest, dataset.tags[0].value) == ("digits train", "d" * 8, "training")
    assert json.loads(dataset.dataset.profile) == {"classes": 3, "digest": "d" * 64}


def test_artifacts_lie_under_the_root_with_the_content_of_the_moment_they_were_logged(tracked: Tracked, tmp_path: Path) -> None:
    found = tracked.run_of(tracked.journal.name).info
    provenance, history = (
        Path(tracked.client.download_artifacts(found.run_id, path, str(tmp_path))).read_text()
        for path in ("provenance/train.json", "plots/history.csv")
    )
    assert json.loads(provenance) == RUN_INFO.provenance
    assert history == "step,loss\n"
    assert found.artifact_uri.startswith((tracked.environment.root / "mlruns").as_uri())
    assert not (tracked.journal / "model.safetensors").exists()


def test_a_description_is_updated_unless_it_was_edited(tracked: Tracked) -> None:
    writing = tracked.begin(RunInfo(description="in training"))
    writing.describe("trained")
    assert not tracked.deliver(writing.folder)
    run_id = tracked.run_of(writing.folder.name).info.run_id
    assert tracked.client.get_run(run_id).data.tags["mlflow.note.content"] == "trained"
    tracked.client.set_tag(run_id, "mlflow.note.content", "the one for the paper")
    writing.describe("evaluated")
    finish(writing)
    assert tracked.deliver(writing.folder)
    assert tracked.client.get_run(run_id).data.tags["mlflow.note.content"] == "the one for the paper"


def test_a_run_without_an_end_is_killed_and_runs_again_when_it_resumes(tracked: Tracked) -> None:
    def status() -> str:
        return str(tracked.run_of(dead.folder.name).info.status)

    dead = tracked.begin()
    dead.close()
    assert (tracked.deliver(dead.folder), status()) == (True, "KILLED")
    again = Journal.reopen(dead.folder, stage="train", info=RunInfo())
    assert (tracked.deliver(dead.folder), status()) == (False, "RUNNING")
    again.end("FAILED")
    again.close()
    assert (tracked.deliver(dead.folder), status()) == (True, "FAILED")


def test_a_failed_run_says_why_until_it_runs_again(tracked: Tracked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "start", lambda *_: None)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter2")
    message = f"{tracked.environment.root.resolve()}/data: the loss is not finite, said hunter2"
    with suppress(Refusal), run.training(tracked.environment, resume_file=tmp_path / "run", info=RUN_INFO) as failed:
        raise Refusal(message)
    assert failed.folder
    assert tracked.deliver(failed.folder)
    found = tracked.run_of(failed.folder.name)
    assert (found.info.status, found.data.tags["pipeline.failure"]) == ("FAILED", "data: the loss is not finite, said ***")
    assert found.data.tags["mlflow.note.content"] == "failed: data: the loss is not finite, said ***"
    with run.training(tracked.environment, resume_file=tmp_path / "run", info=RUN_INFO):
        pass
    assert tracked.deliver(failed.folder)
    found = tracked.run_of(failed.folder.name)
    assert (found.info.status, "pipeline.failure" in found.data.tags) == ("FINISHED", False)
    assert "failed" not in found.data.tags["mlflow.note.content"]


def test_what_mlflow_refuses_costs_only_itself_and_is_reported(tracked: Tracked, tmp_path: Path, capsys) -> None:
    info = RunInfo(params={"bad?param": 1, "long": "long " * 2000, "good": 1}, tags={"bad?tag": "1", "good": "1"})
    writing = tracked.begin(info)
    writing.metrics(1, {"valid/bad?name": 1.0, "valid/loss": 1.0})
    writing.metrics(2, {"valid/bad?name": 2.0, "valid/loss": 2.0})
    writing._append("gap", missing="metrics of 1 step")
    writing.model(tiny.write(tmp_path / "model.safetensors", seed=3))
    finish(writing)
    assert tracked.deliver(writing.folder)
    found = tracked.run_of(writing.folder.name)
    assert (found.info.status, found.data.metrics, found.data.tags["good"]) == ("FINISHED", {"valid/loss": 2.0}, "1")
    assert len(tracked.client.get_metric_history(found.info.run_id, "valid/loss")) == 2
    assert found.outputs.model_outputs, "its metrics have the refused name, too"
    cut = found.data.params.pop("long")
    assert (found.data.params, cut[:9], cut[-12:]) == ({"good": "1"}, "long long", "whole value)")
    assert found.data.tags["pipeline.missing"] == "metrics of 1 step"
    mirror.report(writing.folder, tracked.environment)
    output = capsys.readouterr()
    for what in ("param bad?param: ", "tag bad?tag: ", "metric valid/bad?name: "):
        assert all(text.count(what) == 1 for text in (found.data.tags["pipeline.refused"], output.err)), what
        assert output.out.count(what.removesuffix(": ")) == 2, "in the log, and at the end"


def test_a_run_that_was_deleted_comes_back_with_what_this_machine_has_of_it_and_says_so(tracked: Tracked, tmp_path: Path, capsys) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("some text")
    writing = tracked.begin()
    writing.metrics(1, {"valid/loss": 1.0})
    writing.artifact(text)
    model = tiny.write(tracked.environment.root / "models/model.safetensors", seed=4)
    writing.model(model)
    finish(writing)
    assert tracked.deliver(writing.folder)
    deleted = tracked.run_of(writing.folder.name).info.run_id
    tracked.client.delete_run(deleted)
    finish(Journal.reopen(writing.folder, stage="evaluate", info=RunInfo()))
    assert tracked.deliver(writing.folder)
    found = tracked.run_of(writing.folder.name)
    assert found.data.metrics == {"valid/loss": 1.0}
    assert found.outputs.model_outputs
    output = capsys.readouterr().out
    assert f"its run {deleted} in MLflow was deleted: it was sent again, as {found.info.run_id}" in output
    assert "artifact notes.txt: LookupError: " in output


def test_a_redelivery_ends_in_exactly_the_points_of_the_journal(tracked: Tracked) -> None:
    writing = tracked.begin()
    for step in range(1, 11):
        writing.metrics(step, {"train/loss": 1 / step, "train/scale": float("inf"), "valid/loss": float("nan")})
    assert not tracked.deliver(writing.folder)
    for step in range(11, 16):
        writing.metrics(step, {"train/loss": 1 / step})
    finish(writing)
    (writing.folder / DELIVERED).unlink()
    assert tracked.deliver(writing.folder)
    run_id = tracked.run_of(writing.folder.name).info.run_id
    for name, last in (("train/loss", 15), ("train/scale", 10), ("valid/loss", 10)):
        assert [point.step for point in tracked.client.get_metric_history(run_id, name)] == [*range(1, last + 1)]


def test_a_redelivery_sends_only_the_points_that_mlflow_does_not_have(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = tracked.begin()
    for step in range(1, 11):
        writing.metrics(step, {"train/loss": 1 / step, "valid/loss": float("nan")})
    assert not tracked.deliver(writing.folder)
    run_id = tracked.run_of(writing.folder.name).info.run_id
    # another journal adds to the same run: its later points say nothing about those of this one
    for step in range(11, 16):
        writing.metrics(step, {"train/loss": 1 / step})
    tracked.client.log_metric(run_id, "train/loss", 5.0, timestamp=2**42, step=99)
    finish(writing)
    (writing.folder / DELIVERED).unlink()
    client_type, sent = type(tracked.client), []
    log_batch = client_type.log_batch

    def watched(self: object, run_id: str, metrics: tuple = (), **more: object) -> None:
        sent.extend((point.key, point.step) for point in metrics)
        log_batch(self, run_id, metrics=metrics, **more)

    monkeypatch.setattr(client_type, "log_batch", watched)
    assert tracked.deliver(writing.folder)
    assert sent == [("train/loss", step) for step in range(11, 16)]
    assert [point.step for point in tracked.client.get_metric_history(run_id, "train/loss")] == [*range(1, 16), 99]


def test_a_model_that_fails_for_a_local_reason_is_kept_and_sent_again_with_its_step(tracked: Tracked, tmp_path: Path, monkeypatch) -> None:
    errors, steps = [OSError("a moment"), MemoryError()], []

    def failing(*_: object, step: int, **__: object) -> None:
        steps.append(step)
        raise errors[-1]

    monkeypatch.setattr(saved_model, "log_model", failing)
    writing = tracked.begin()
    writing.metrics(7, {"a": 1.0})
    writing.model(tiny.write(tmp_path / "model.safetensors", seed=1))
    writing.metrics(9, {"a": 1.0})
    finish(writing)
    while errors:
        with pytest.raises(type(errors[-1])) as failed:
            tracked.deliver(writing.folder)
        assert failure(failed.value).startswith("event model: ")
        errors.pop()
    assert set(steps) == {7}
    assert "pipeline.refused" not in tracked.run_of(writing.folder.name).data.tags
    monkeypatch.undo()
    assert tracked.deliver(writing.folder)
    assert tracked.run_of(writing.folder.name).outputs.model_outputs


def test_an_evaluation_without_a_journal_continues_the_run_on_the_server(tracked: Tracked) -> None:
    digest = tracked.run_of(tracked.journal.name).data.tags["pipeline.model_sha256"]
    new = Journal.create(tracked.environment.root, stage="evaluate", info=RunInfo(), model_sha256=digest)
    new.model(tracked.model)
    new.metrics(NUM_STEPS, {"test/elsewhere": 1.0})
    finish(new)
    assert tracked.deliver(new.folder)
    found = tracked.run_of(tracked.journal.name)
    assert found.data.metrics["test/elsewhere"] == 1.0
    assert len(found.outputs.model_outputs) == 1


def test_a_journal_goes_to_the_experiment_that_it_names_whoever_delivers_it(tracked: Tracked) -> None:
    """Journals of earlier versions name none."""
    other = tracked.environment.model_copy(update={"mlflow_experiment_name": "set by whoever delivers"})
    for named, expected in (({"experiment": "mine"}, "mine"), ({}, UNNAMED)):
        new = tracked.begin(**named)
        new.close()
        assert mirror.deliver(new.folder, Store(other))
        assert tracked.client.get_experiment(tracked.run_of(new.folder.name).info.experiment_id).name == expected


def test_an_event_that_is_sent_again_or_added_leaves_the_user_of_the_run(tracked: Tracked) -> None:
    new = tracked.begin(RUN_INFO)
    new.close()
    assert tracked.deliver(new.folder)
    later = RunInfo(tags={"mlflow.user": "someone else", "mlflow.source.git.commit": "c1"})
    Journal.reopen(new.folder, stage="train", info=later).close()
    assert tracked.deliver(new.folder)
    tags = tracked.run_of(new.folder.name).data.tags
    assert (tags["mlflow.user"], tags["mlflow.source.git.commit"]) == ("someone", "c1")


def test_sync_delivers_all_pending_journals(tracked: Tracked, capsys: pytest.CaptureFixture[str]) -> None:
    left = [tracked.begin() for _ in range(2)]
    for writing in left:
        writing.close()
    assert mirror.sync(tracked.environment) == 0
    output = capsys.readouterr().out
    assert all(f"{writing.folder.name}: delivered" in output for writing in left)
    assert mirror.sync(tracked.environment) == 0
    assert "nothing to deliver" in capsys.readouterr().out


def test_a_short_training_is_over_before_its_mirror_imports_mlflow(tracked: Tracked, tmp_path: Path) -> None:
    shutil.copy(tracked.environment.root / "mlflow.db", tmp_path)
    environment = {**os.environ, "DVC_ROOT": str(tmp_path), "PIPELINE_TRACKING_WAIT_S": "0"}
    writing = Journal.create(tmp_path, stage="train", info=RunInfo())
    with subprocess.Popen(mirror.command(writing.folder), cwd=mirror.CHECKOUT, env=environment) as process:
        while not (writing.folder / SYSTEM).exists():
            time.sleep(0.05)
        imported = Path(f"/proc/{process.pid}/maps").read_text()
        finish(writing)
        assert process.wait() == 0
    assert "sqlalchemy" not in imported
    assert "pandas" not in imported
    assert not is_pending(writing.folder)


def test_one_mirror_delivers_the_training_and_its_resumption_and_the_evaluation_that_follows(tracked, tmp_path, monkeypatch) -> None:
    shutil.copy(tracked.environment.root / "mlflow.db", tmp_path)  # to create one takes seconds
    monkeypatch.setattr(mirror, "command", lambda folder: [sys.executable, "-c", AT_ONCE, str(folder)])
    monkeypatch.setattr(mirror, "NICENESS", 0)
    monkeypatch.setenv("DVC_STAGE", "train")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    environment = Environment.model_validate({"DVC_ROOT": tmp_path})
    store, model = Address.of(environment).key, tiny.write(tmp_path / "model.safetensors")
    with suppress(KeyboardInterrupt), run.training(environment, resume_file=tmp_path / "run", info=RunInfo()) as training:
        training.metrics(1, {"valid/loss": 1.0})
        raise KeyboardInterrupt
    folder = training.folder
    assert folder
    assert not Cursor.load(folder, store).is_complete(folder), "the stage did not wait"
    wait_until(lambda: Cursor.load(folder, store).is_complete(folder))
    num_samples = len(list(events.read(folder / SYSTEM)))
    monkeypatch.setattr(mirror, "start", lambda *_: pytest.fail("another mirror was started"))
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo()) as training:
        training.metrics(2, {"valid/loss": 0.5})
        wait_until(lambda: len(list(events.read(folder / SYSTEM))) > num_samples)
    files.write_text(folder / journal.MODEL_DIGEST, files.digest(model))  # without the model, whose export takes seconds
    with run.addition(environment, model, info=RunInfo()) as evaluation:
        evaluation.metrics(1, {"test/accuracy": 0.5})
        wait_until(lambda: Cursor.load(folder, store).offsets[EVENTS] == (folder / EVENTS).stat().st_size)
        # the mirror knows by now that this is the evaluation: it ends with it
    assert journal.journals(tmp_path) == [evaluation.folder] == [folder]
    assert Cursor.load(folder, store).is_complete(folder)
    assert mirror.STARTED[-1].wait(60) == 0
    steps = [event.fields["step"] for event in events.read(folder / SYSTEM)]
    assert steps == list(range(len(steps)))


def test_a_line_is_delivered_only_after_it_was_fsynced(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line written while the journal is forced to the disk waits for the next time."""
    writing = tracked.begin()
    writing.metrics(1, {"a": 1.0})
    path, durable, fsync, sent = writing.folder / EVENTS, [0], files.sync, []

    def sync(target: Path) -> None:
        size = path.stat().st_size
        writing.metrics(2 + len(durable), {"a": 2.0})
        fsync(target)
        if target == path:
            durable.append(size)

    def send(_: Sender, batch: list[events.Event]) -> None:
        sent.append(batch[-1].end)
        assert batch[-1].end <= durable[-1]

    monkeypatch.setattr(files, "sync", sync)
    monkeypatch.setattr(Sender, "send", send)
    delivered = Delivery(writing.folder, Store(tracked.environment))
    delivered.catch_up()
    assert sent
    assert sent[-1] < path.stat().st_size
    finish(writing)


def test_params_are_compared_and_not_logged_again(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tracked.begin(RUN_INFO)
    first.close()
    tracked.deliver(first.folder)
    client_type = type(tracked.client)
    log_batch, logged = client_type.log_batch, []

    def watched(self: object, run_id: str, metrics: tuple = (), params: tuple = (), tags: tuple = (), **more: object) -> None:
        logged.append(list(params))
        log_batch(self, run_id, metrics=metrics, params=params, tags=tags, **more)

    monkeypatch.setattr(client_type, "log_batch", watched)
    for _ in range(2):
        Journal.reopen(first.folder, stage="train", info=RUN_INFO).close()
        tracked.deliver(first.folder)
    assert logged
    assert not any(logged)
    assert not [name for name in tracked.run_of(first.folder.name).data.tags if name.startswith("pipeline.changed")]


def test_file_copies_are_deleted_after_a_complete_delivery_and_events_are_kept(tracked: Tracked, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("some text")
    writing = tracked.begin()
    writing.artifact(text)
    tracked.deliver(writing.folder)
    assert list(writing.folder.glob("files/*/*")), "a journal that is written keeps them"
    finish(writing)
    tracked.deliver(writing.folder)
    assert not (writing.folder / "files").exists()
    before = (writing.folder / EVENTS).read_bytes()
    (writing.folder / DELIVERED).write_text("torn {")
    assert tracked.deliver(writing.folder)
    assert (writing.folder / EVENTS).read_bytes() == before
    assert "pipeline.refused" not in tracked.run_of(writing.folder.name).data.tags, "it is the same run, and the only one"
