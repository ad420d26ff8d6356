import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.tracking import events, journal, mirror, mirror_process, run, saved_model
from pipeline.tracking.address import Address
from pipeline.tracking.events import DELIVERED, EVENTS, SYSTEM, Cursor, is_pending
from pipeline.tracking.journal import Journal, RunInfo
from pipeline.tracking.store import Store
from tests.tracking import mirror_command, tiny
from tests.tracking.conftest import NUM_STEPS, RUN_INFO, Tracked


def deliver_all(tracked: Tracked, folder: Path) -> None:
    assert mirror.deliver(folder, Store(tracked.environment), tiny.build)


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
    for name in ("train/loss", "train/scale", "valid/loss"):
        assert [point.step for point in tracked.client.get_metric_history(found.info.run_id, name)] == list(range(1, NUM_STEPS + 1))
    assert next(iter(found.data.metrics)) == "valid/loss", "MLflow compares runs by the metric that they were given first"
    assert "pipeline.refused" not in found.data.tags
    (dataset,) = found.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest, dataset.tags[0].value) == ("digits train", "d" * 8, "training")
    assert json.loads(dataset.dataset.profile) == {"classes": 3, "digest": "d" * 64}


def test_metrics_are_rounded_to_six_significant_digits(tracked: Tracked) -> None:
    history = tracked.client.get_metric_history(tracked.run_of(tracked.journal.name).info.run_id, "train/loss")
    assert history[2].value == 0.333333


def test_the_provenance_of_a_stage_is_an_artifact(tracked: Tracked, tmp_path: Path) -> None:
    run_id = tracked.run_of(tracked.journal.name).info.run_id
    path = tracked.client.download_artifacts(run_id, "provenance/train.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == RUN_INFO.provenance


def test_a_description_is_updated_unless_it_was_edited(tracked: Tracked) -> None:
    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo(description="in training"))
    writing.describe("trained")
    assert not mirror.deliver(writing.folder, Store(tracked.environment), tiny.build)
    run_id = tracked.run_of(writing.folder.name).info.run_id
    assert tracked.client.get_run(run_id).data.tags["mlflow.note.content"] == "trained"
    tracked.client.set_tag(run_id, "mlflow.note.content", "the one for the paper")
    writing.describe("evaluated")
    writing.end("FINISHED")
    writing.close()
    deliver_all(tracked, writing.folder)
    assert tracked.client.get_run(run_id).data.tags["mlflow.note.content"] == "the one for the paper"


def test_system_metrics_wait_for_the_first_metric_of_the_stage(tracked: Tracked) -> None:
    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    load = events.Writer(writing.folder / SYSTEM, end=0)
    load.append({"kind": "metrics", "time_ms": 1, "step": 0, "values": {"system/load": 1.0}})
    load.close()
    for expected in ([], ["valid/accuracy", "system/load"]):
        mirror.deliver(writing.folder, Store(tracked.environment), tiny.build)
        assert list(tracked.run_of(writing.folder.name).data.metrics) == expected
        writing.metrics(1, {"valid/accuracy": 0.5})
    writing.close()


def test_an_artifact_has_the_content_of_the_moment_it_was_logged(tracked: Tracked, tmp_path: Path) -> None:
    run_id = tracked.run_of(tracked.journal.name).info.run_id
    assert Path(tracked.client.download_artifacts(run_id, "plots/history.csv", str(tmp_path))).read_text() == "step,loss\n"


def test_even_a_short_run_has_system_metrics(tracked: Tracked) -> None:
    names = tracked.run_of(tracked.journal.name).data.metrics
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= set(names)


def test_artifacts_lie_under_the_root_and_the_copy_of_the_model_is_deleted(tracked: Tracked) -> None:
    assert tracked.run_of(tracked.journal.name).info.artifact_uri.startswith((tracked.environment.root / "mlruns").as_uri())
    assert not (tracked.journal / "model.safetensors").exists()


def test_a_mirror_killed_midway_delivers_each_point_once(tracked: Tracked) -> None:
    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    for step in range(3_000):
        writing.metrics(step, {"a": step / 3, "b": float("inf"), "c": float("nan")})
    command = mirror_command.command(writing.folder)
    store = Store(tracked.environment).address.key
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_ROOT", str(tracked.environment.root))
        first = subprocess.Popen(command, cwd=mirror_process.CHECKOUT)
    while first.poll() is None and Cursor.load(writing.folder, store).offsets[EVENTS] < 10_000:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    cursor = Cursor.load(writing.folder, store)
    offset, content = cursor.offsets[EVENTS], (writing.folder / EVENTS).read_bytes()
    assert 0 < offset < len(content)
    # As if the last batches had arrived, and the kill had come before the cursor was saved.
    cursor.offsets[EVENTS] = content.rfind(b"\n", 0, offset // 2) + 1
    cursor.save(writing.folder, store)
    writing.end("FINISHED")
    writing.close()
    deliver_all(tracked, writing.folder)
    run_id = tracked.run_of(writing.folder.name).info.run_id
    for name in ("a", "b", "c"):
        assert [point.step for point in tracked.client.get_metric_history(run_id, name)] == list(range(3_000))


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "FINISHED"])
def test_the_end_event_sets_the_status_of_the_run(tracked: Tracked, status: journal.Status) -> None:
    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    mirror.deliver(writing.folder, Store(tracked.environment), tiny.build)
    assert tracked.run_of(writing.folder.name).info.status == "RUNNING"
    writing.end(status)
    writing.close()
    deliver_all(tracked, writing.folder)
    assert tracked.run_of(writing.folder.name).info.status == status


def test_a_mirror_without_its_cursor_finds_its_run_again(tracked: Tracked) -> None:
    writing = Journal.create(tracked.environment.root, stage="train", info=RUN_INFO)
    writing.metrics(1, {"a": 1.0})
    writing.end("FINISHED")
    writing.close()
    deliver_all(tracked, writing.folder)
    (writing.folder / DELIVERED).write_text("torn {")
    deliver_all(tracked, writing.folder)
    found = tracked.run_of(writing.folder.name)  # the only one
    assert len(tracked.client.get_metric_history(found.info.run_id, "a")) == 1
    assert len(found.inputs.dataset_inputs) == 1


def test_a_run_without_an_end_is_killed_and_runs_again_when_it_resumes(tracked: Tracked) -> None:
    dead = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    dead.close()
    deliver_all(tracked, dead.folder)
    assert tracked.run_of(dead.folder.name).info.status == "KILLED"
    again = Journal.reopen(dead.folder, stage="train", info=RunInfo())
    mirror.deliver(dead.folder, Store(tracked.environment), tiny.build)
    assert tracked.run_of(dead.folder.name).info.status == "RUNNING"
    again.end("FINISHED")
    again.close()
    deliver_all(tracked, dead.folder)


def test_events_that_mlflow_rejects_are_skipped(tracked: Tracked) -> None:
    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    writing.metrics(1, {"good": 1.0})
    writing.metrics(1, {"bad\nname": 1.0})
    broken = tracked.environment.root / "broken.safetensors"
    broken.write_bytes(b"no weights")
    writing.model(broken)
    writing.metrics(2, {"good": 2.0})
    writing.end("FINISHED")
    writing.close()
    deliver_all(tracked, writing.folder)
    found = tracked.run_of(writing.folder.name)
    assert (found.info.status, found.data.metrics) == ("FINISHED", {"good": 2.0})
    assert found.data.tags["pipeline.refused"].startswith("model: ")


@pytest.mark.parametrize("error", [RuntimeError("No space left on device"), MemoryError(), ImportError("torch")])
def test_a_model_that_fails_for_a_local_reason_is_kept_and_sent_again(
    tracked: Tracked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    writing.model(tiny.write(tmp_path / "model.safetensors", seed=3))
    writing.end("FINISHED")
    writing.close()
    with monkeypatch.context() as patch:
        patch.setattr(saved_model, "log_model", failing)
        assert not mirror.deliver(writing.folder, Store(tracked.environment), tiny.build)
    assert "pipeline.refused" not in tracked.run_of(writing.folder.name).data.tags
    deliver_all(tracked, writing.folder)
    assert tracked.run_of(writing.folder.name).outputs.model_outputs


def test_a_model_that_is_sent_again_keeps_its_step(tracked: Tracked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def failing(*_: object, step: int, **__: object) -> None:
        steps.append(step)
        raise OSError("a moment")

    monkeypatch.setattr(saved_model, "log_model", failing)
    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    writing.metrics(7, {"a": 1.0})
    writing.model(tiny.write(tmp_path / "model.safetensors", seed=1))
    writing.metrics(9, {"a": 1.0})
    writing.end("FINISHED")
    writing.close()
    for _ in range(2):
        assert not mirror.deliver(writing.folder, Store(tracked.environment), tiny.build)
    assert set(steps) == {7}
    monkeypatch.undo()
    deliver_all(tracked, writing.folder)


def test_an_evaluation_without_a_journal_continues_the_run_on_the_server(tracked: Tracked) -> None:
    digest = tracked.run_of(tracked.journal.name).data.tags["pipeline.model_sha256"]
    new = Journal.create(tracked.environment.root, stage="evaluate", info=RunInfo(), model_sha256=digest)
    new.model(tracked.model)
    new.metrics(NUM_STEPS, {"test/elsewhere": 1.0})
    new.end("FINISHED")
    new.close()
    deliver_all(tracked, new.folder)
    found = tracked.run_of(tracked.journal.name)
    assert found.data.metrics["test/elsewhere"] == 1.0
    assert len(found.outputs.model_outputs) == 1


def test_a_run_named_by_the_user_is_continued(tracked: Tracked) -> None:
    named = tracked.client.create_run("0").info.run_id
    new = Journal.create(tracked.environment.root, stage="train", info=RUN_INFO, run_id=named)
    new.end("FINISHED")
    new.close()
    deliver_all(tracked, new.folder)
    assert tracked.client.get_run(named).data.params["seed"] == "1"


@pytest.mark.parametrize(("named", "expected"), [({"experiment": "mine"}, "mine"), ({}, "set by whoever delivers")])
def test_a_journal_goes_to_the_experiment_that_it_names_whoever_delivers_it(tracked: Tracked, named: dict[str, str], expected: str) -> None:
    """Journals of earlier versions name none."""
    Journal.create(tracked.environment.root, stage="train", info=RunInfo(), **named).close()
    other = tracked.environment.model_copy(update={"mlflow_experiment_name": "set by whoever delivers"})
    new = journal.journals(tracked.environment.root)[-1]
    assert mirror.deliver(new, Store(other), tiny.build)
    assert tracked.client.get_experiment(tracked.run_of(new.name).info.experiment_id).name == expected


def test_a_model_is_logged_in_the_experiment_of_its_run(tracked: Tracked, tmp_path: Path) -> None:
    new = Journal.create(tracked.environment.root, stage="train", info=RunInfo(), experiment="models")
    new.model(tiny.write(tmp_path / "model.safetensors", seed=2))
    new.close()
    for _ in range(2):  # the second time it is known
        deliver_all(tracked, new.folder)
        (new.folder / DELIVERED).unlink()
    found = tracked.run_of(new.folder.name)
    (output,) = found.outputs.model_outputs
    assert tracked.client.get_logged_model(output.model_id).experiment_id == found.info.experiment_id


@pytest.mark.parametrize("named", ["0" * 32, "deleted", "no id: ' /"])
def test_a_named_run_that_is_not_used_is_reported_with_the_one_that_is(
    tracked: Tracked, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if named == "deleted":
        named = tracked.client.create_run("0").info.run_id
        tracked.client.delete_run(named)
    new = Journal.create(tracked.environment.root, stage="train", info=RUN_INFO, run_id=named)
    new.close()
    deliver_all(tracked, new.folder)
    assert f"MLFLOW_RUN_ID={named} is not used" in (output := capsys.readouterr().out)
    assert f"{new.folder.name} is delivered to the run {tracked.run_of(new.folder.name).info.run_id}" in output


def test_a_run_that_the_user_began_keeps_the_tags_of_mlflow(tracked: Tracked) -> None:
    """Also in later journals; our own tags change as ever."""
    theirs = {"mlflow.user": "a stranger", "mlflow.source.git.commit": "theirs", "notes": "theirs"}
    run_id = tracked.client.create_run("0", tags=theirs).info.run_id
    for value in ("1", "2"):
        info = RunInfo(tags={**RUN_INFO.tags, "ours": value})
        new = Journal.create(tracked.environment.root, stage="train", info=info, run_id=run_id)
        new.close()
        deliver_all(tracked, new.folder)
    tags = tracked.client.get_run(run_id).data.tags
    assert theirs.items() <= tags.items()
    assert tags["ours"] == "2"


def test_a_run_keeps_the_user_who_began_it(tracked: Tracked) -> None:
    first = Journal.create(tracked.environment.root, stage="train", info=RUN_INFO)
    first.close()
    deliver_all(tracked, first.folder)
    Journal.reopen(
        first.folder, stage="train", info=RunInfo(tags={"mlflow.user": "someone else", "mlflow.source.git.commit": "c1"})
    ).close()
    deliver_all(tracked, first.folder)
    tags = tracked.run_of(first.folder.name).data.tags
    assert (tags["mlflow.user"], tags["mlflow.source.git.commit"]) == ("someone", "c1")


def test_the_last_evaluation_counts_after_the_clock_was_set_back(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    first.close()
    now_ns = time.time_ns()
    for hours, value in enumerate((0.9, 0.8)):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now_ns - hours * 3600 * 10**9)
        again = Journal.reopen(first.folder, stage="evaluate", info=RunInfo(), amends=True)
        again.metrics(5, {"test/accuracy": value})
        again.close()
    deliver_all(tracked, first.folder)
    assert tracked.run_of(first.folder.name).data.metrics["test/accuracy"] == 0.8


def test_sync_delivers_all_pending_journals(tracked: Tracked, capsys: pytest.CaptureFixture[str]) -> None:
    left = [Journal.create(tracked.environment.root, stage="train", info=RunInfo()) for _ in range(2)]
    for writing in left:
        writing.close()
    assert all(is_pending(writing.folder) for writing in left)
    assert mirror.sync(tracked.environment, tiny.build) == 0
    output = capsys.readouterr().out
    assert all(f"{writing.folder.name}: delivered" in output for writing in left)
    assert mirror.sync(tracked.environment, tiny.build) == 0
    assert "nothing to deliver" in capsys.readouterr().out


def test_a_mirror_also_delivers_journals_of_earlier_runs(tracked: Tracked) -> None:
    left, own = [Journal.create(tracked.environment.root, stage="train", info=RunInfo()) for _ in range(2)]
    left.close()
    own.end("FINISHED")
    own.close()
    assert mirror.follow(own.folder, tracked.environment, tiny.build) == 0
    assert tracked.run_of(left.folder.name).info.status == "KILLED"


def test_only_one_process_delivers_a_journal(tracked: Tracked) -> None:
    writing = Journal.create(tracked.environment.root, stage="train", info=RunInfo())
    with files.locked(writing.folder / journal.MIRROR_LOCK, wait=False):
        assert not mirror.deliver(writing.folder, Store(tracked.environment), tiny.build)
    writing.end("FINISHED")
    writing.close()
    assert mirror.follow(writing.folder, tracked.environment, tiny.build) == 0


def test_a_short_training_is_over_before_its_mirror_imports_mlflow(tmp_path: Path) -> None:
    environment = {**os.environ, "DVC_ROOT": str(tmp_path), "PIPELINE_TRACKING_WAIT_S": "0"}
    writing = Journal.create(tmp_path, stage="train", info=RunInfo())
    with subprocess.Popen(mirror_process.command(writing.folder), cwd=mirror_process.CHECKOUT, env=environment) as process:
        while not (writing.folder / SYSTEM).exists():
            time.sleep(0.05)
        imported = Path(f"/proc/{process.pid}/maps").read_text()
        writing.end("FINISHED")
        writing.close()
        assert process.wait() == 0
    assert "sqlalchemy" not in imported
    assert "pandas" not in imported
    assert not is_pending(writing.folder)


def test_one_mirror_delivers_the_training_and_the_evaluation_that_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_process, "command", mirror_command.command)
    monkeypatch.setattr(mirror_process, "NICENESS", 0)
    monkeypatch.setenv("DVC_STAGE", "train")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    environment = Environment.model_validate({"DVC_ROOT": tmp_path})
    model = tiny.write(tmp_path / "model.safetensors")
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo(), is_followed=lambda: True) as training:
        training.metrics(1, {"valid/loss": 1.0})
    assert training.folder
    files.write_text(training.folder / journal.MODEL_DIGEST, files.digest(model))  # without the model, whose export takes seconds
    store = Address.of(environment).key
    assert not Cursor.load(training.folder, store).is_complete(training.folder), "the stage did not wait"
    while not Cursor.load(training.folder, store).is_complete(training.folder):
        time.sleep(0.1)
    monkeypatch.setattr(mirror_process, "start", lambda *_: pytest.fail("another mirror was started"))
    with run.addition(environment, model, info=RunInfo()) as evaluation:
        evaluation.metrics(1, {"test/accuracy": 0.5})
        while Cursor.load(training.folder, store).offsets[EVENTS] < (training.folder / EVENTS).stat().st_size:
            time.sleep(0.1)  # the mirror knows by now that this is the evaluation: it ends with it
    assert evaluation.folder == training.folder
    assert Cursor.load(training.folder, store).is_complete(training.folder)
    assert mirror_process.STARTED[-1].wait(10) == 0


def test_a_training_that_resumes_while_its_mirror_waits_has_system_metrics_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_process, "command", mirror_command.command)
    monkeypatch.setattr(mirror_process, "NICENESS", 0)
    monkeypatch.setenv("DVC_STAGE", "train")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    environment = Environment.model_validate({"DVC_ROOT": tmp_path})
    with suppress(KeyboardInterrupt), run.training(environment, resume_file=tmp_path / "run", info=RunInfo()) as training:
        training.metrics(1, {"valid/loss": 1.0})
        raise KeyboardInterrupt
    assert training.folder
    folder, store = training.folder, Address.of(environment).key
    while not Cursor.load(folder, store).is_complete(folder):
        time.sleep(0.1)
    before = len(list(events.read(folder / SYSTEM)))
    monkeypatch.setattr(mirror_process, "start", lambda *_: pytest.fail("another mirror was started"))
    with run.training(environment, resume_file=tmp_path / "run", info=RunInfo()) as training:
        training.metrics(2, {"valid/loss": 0.5})
        deadline = time.monotonic() + 10
        while len(list(events.read(folder / SYSTEM))) == before:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    mirror_process.STARTED[-1].kill()  # it would wait for an evaluation
    mirror_process.STARTED[-1].wait()
    assert journal.journals(tmp_path) == [folder]
    assert Cursor.load(folder, store).is_complete(folder)
    steps = [event.fields["step"] for event in events.read(folder / SYSTEM)]
    assert steps == list(range(len(steps)))
