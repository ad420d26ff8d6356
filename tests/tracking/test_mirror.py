import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.io import files
from pipeline.tracking import delivery, events, journal, mirror, mirror_process, run, sender
from pipeline.tracking.cursor import DELIVERED, SYSTEM, Cursor, is_pending
from pipeline.tracking.journal import Journal
from pipeline.tracking.mirror import Outcome
from pipeline.tracking.run_info import RunInfo
from pipeline.tracking.store import Store
from tests.tracking import mirror_command, tiny
from tests.tracking.conftest import FACTS, NUM_STEPS, Told


def delivered(told: Told, folder: Path) -> None:
    assert mirror.deliver(folder, Store(told.environment), tiny.build) is Outcome.DELIVERED


def test_the_run_holds_what_the_journal_was_told(told: Told) -> None:
    found = told.run_of(told.journal.name)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == FACTS.name
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
            "mlflow.note.content": FACTS.description,
            "mlflow.source.git.commit": "c0ffee",
            "mlflow.user": "someone",
            "evaluate.top_k": "3",
            "pipeline.changed.seed": "2",
        }.items()
    )
    assert found.data.metrics["test/accuracy"] == 0.75
    for name in ("train/loss", "train/scale", "valid/loss"):
        assert [point.step for point in told.client.get_metric_history(found.info.run_id, name)] == list(range(1, NUM_STEPS + 1))
    assert next(iter(found.data.metrics)) == "valid/loss", "MLflow compares runs by the metric that they were given first"
    assert "pipeline.refused" not in found.data.tags
    (dataset,) = found.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest, dataset.tags[0].value) == ("digits train", "d" * 8, "training")
    assert json.loads(dataset.dataset.profile) == {"classes": 3, "digest": "d" * 64}


def test_metrics_have_as_many_digits_as_people_read(told: Told) -> None:
    history = told.client.get_metric_history(told.run_of(told.journal.name).info.run_id, "train/loss")
    assert history[2].value == 0.333333


def test_where_a_stage_comes_from_is_an_artifact(told: Told, tmp_path: Path) -> None:
    run_id = told.run_of(told.journal.name).info.run_id
    path = told.client.download_artifacts(run_id, "provenance/train.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == FACTS.provenance


def test_a_description_is_rewritten_unless_somebody_wrote_their_own(told: Told) -> None:
    writing = Journal.create(told.environment.root, stage="train", info=RunInfo(description="in training"))
    writing.describe("trained")
    assert mirror.deliver(writing.folder, Store(told.environment), tiny.build) is Outcome.WRITTEN
    run_id = told.run_of(writing.folder.name).info.run_id
    assert told.client.get_run(run_id).data.tags["mlflow.note.content"] == "trained"
    told.client.set_tag(run_id, "mlflow.note.content", "the one for the paper")
    writing.describe("evaluated")
    writing.end("FINISHED")
    writing.close()
    delivered(told, writing.folder)
    assert told.client.get_run(run_id).data.tags["mlflow.note.content"] == "the one for the paper"


def test_the_load_of_the_machine_waits_for_the_first_metric_of_the_stage(told: Told) -> None:
    writing = Journal.create(told.environment.root, stage="train", info=RunInfo())
    load = events.Writer(writing.folder / SYSTEM)
    load.append({"kind": "metrics", "time_ms": 1, "step": 0, "values": {"system/load": 1.0}})
    load.close()
    for expected in ([], ["valid/accuracy", "system/load"]):
        mirror.deliver(writing.folder, Store(told.environment), tiny.build)
        assert list(told.run_of(writing.folder.name).data.metrics) == expected
        writing.metrics(1, {"valid/accuracy": 0.5})
    writing.close()


def test_artifacts_are_those_of_the_moment(told: Told, tmp_path: Path) -> None:
    run_id = told.run_of(told.journal.name).info.run_id
    assert Path(told.client.download_artifacts(run_id, "plots/history.csv", str(tmp_path))).read_text() == "step,loss\n"


def test_even_a_short_run_has_system_metrics(told: Told) -> None:
    names = told.run_of(told.journal.name).data.metrics
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= set(names)


def test_artifacts_lie_under_the_root_and_the_model_is_no_longer_held_twice(told: Told) -> None:
    assert told.run_of(told.journal.name).info.artifact_uri.startswith((told.environment.root / "mlruns").as_uri())
    assert not (told.journal / "model.safetensors").exists()


def test_a_mirror_killed_midway_delivers_each_point_once(told: Told) -> None:
    writing = Journal.create(told.environment.root, stage="train", info=RunInfo())
    for step in range(3_000):
        writing.metrics(step, {"a": step / 3, "b": float("inf"), "c": float("nan")})
    command = mirror_command.command(writing.folder)
    store = Store(told.environment).address.key
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_ROOT", str(told.environment.root))
        first = subprocess.Popen(command, cwd=mirror_process.CHECKOUT)
    while first.poll() is None and Cursor.load(writing.folder, store).offset < 10_000:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    cursor = Cursor.load(writing.folder, store)
    assert 0 < cursor.offset < (writing.folder / "events.jsonl").stat().st_size
    cursor.offset //= 2  # as if the last batches had arrived and the kill had come before they were noted
    cursor.offset = (writing.folder / "events.jsonl").read_bytes().rfind(b"\n", 0, cursor.offset) + 1
    cursor.save(writing.folder, store)
    writing.end("FINISHED")
    writing.close()
    delivered(told, writing.folder)
    run_id = told.run_of(writing.folder.name).info.run_id
    for name in ("a", "b", "c"):
        assert [point.step for point in told.client.get_metric_history(run_id, name)] == list(range(3_000))


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "FINISHED"])
def test_the_end_is_the_state_of_the_run(told: Told, status: journal.Status) -> None:
    writing = Journal.create(told.environment.root, stage="train", info=RunInfo())
    mirror.deliver(writing.folder, Store(told.environment), tiny.build)
    assert told.run_of(writing.folder.name).info.status == "RUNNING"
    writing.end(status)
    writing.close()
    delivered(told, writing.folder)
    assert told.run_of(writing.folder.name).info.status == status


def test_a_mirror_that_forgot_its_place_finds_its_run_again(told: Told) -> None:
    writing = Journal.create(told.environment.root, stage="train", info=FACTS)
    writing.metrics(1, {"a": 1.0})
    writing.end("FINISHED")
    writing.close()
    delivered(told, writing.folder)
    (writing.folder / DELIVERED).write_text("torn {")
    delivered(told, writing.folder)
    found = told.run_of(writing.folder.name)  # the only one
    assert len(told.client.get_metric_history(found.info.run_id, "a")) == 1
    assert len(found.inputs.dataset_inputs) == 1


def test_a_writer_that_died_was_killed_and_runs_again_when_it_resumes(told: Told) -> None:
    dead = Journal.create(told.environment.root, stage="train", info=RunInfo())
    dead.close()
    delivered(told, dead.folder)
    assert told.run_of(dead.folder.name).info.status == "KILLED"
    again = Journal.reopen(dead.folder, stage="train", info=RunInfo())
    mirror.deliver(dead.folder, Store(told.environment), tiny.build)
    assert told.run_of(dead.folder.name).info.status == "RUNNING"
    again.end("FINISHED")
    again.close()
    delivered(told, dead.folder)


def test_what_mlflow_refuses_does_not_hold_up_the_rest(told: Told) -> None:
    writing = Journal.create(told.environment.root, stage="train", info=RunInfo())
    writing.metrics(1, {"good": 1.0})
    writing.metrics(1, {"bad\nname": 1.0})
    broken = told.environment.root / "broken.safetensors"
    broken.write_bytes(b"no weights")
    writing.model(broken)
    writing.metrics(2, {"good": 2.0})
    writing.end("FINISHED")
    writing.close()
    delivered(told, writing.folder)
    found = told.run_of(writing.folder.name)
    assert (found.info.status, found.data.metrics) == ("FINISHED", {"good": 2.0})
    assert found.data.tags["pipeline.refused"].startswith("model: ")


def test_a_model_that_is_tried_again_is_still_that_of_its_step(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def failing(*_: object, step: int, **__: object) -> None:
        steps.append(step)
        raise OSError("a moment")

    monkeypatch.setattr(sender, "log_model", failing)
    monkeypatch.setattr(delivery, "PAUSE_S", 0.0)
    writing = Journal.create(told.environment.root, stage="train", info=RunInfo())
    writing.metrics(7, {"a": 1.0})
    writing.model(tiny.write(tmp_path / "model.safetensors", seed=1))
    writing.metrics(9, {"a": 1.0})
    writing.end("FINISHED")
    writing.close()
    for _ in range(2):
        assert mirror.deliver(writing.folder, Store(told.environment), tiny.build) is Outcome.SET_ASIDE
    assert set(steps) == {7}
    monkeypatch.undo()
    delivered(told, writing.folder)


def test_a_model_without_a_journal_goes_on_with_the_run_on_the_server(told: Told) -> None:
    digest = told.run_of(told.journal.name).data.tags["pipeline.model_sha256"]
    new = Journal.create(told.environment.root, stage="evaluate", info=RunInfo(), model_sha256=digest)
    new.model(told.model)
    new.metrics(NUM_STEPS, {"test/elsewhere": 1.0})
    new.end("FINISHED")
    new.close()
    delivered(told, new.folder)
    found = told.run_of(told.journal.name)
    assert found.data.metrics["test/elsewhere"] == 1.0
    assert len(found.outputs.model_outputs) == 1


def test_a_run_that_the_user_named_is_gone_on_with(told: Told) -> None:
    named = told.client.create_run("0").info.run_id
    new = Journal.create(told.environment.root, stage="train", info=FACTS, run_id=named)
    new.end("FINISHED")
    new.close()
    delivered(told, new.folder)
    assert told.client.get_run(named).data.params["seed"] == "1"


@pytest.mark.parametrize(("named", "expected"), [({"experiment": "mine"}, "mine"), ({}, "set by whoever delivers")])
def test_a_journal_goes_to_the_experiment_that_it_names_whoever_delivers_it(told: Told, named: dict[str, str], expected: str) -> None:
    """Journals of earlier versions name none."""
    Journal.create(told.environment.root, stage="train", info=RunInfo(), **named).close()
    other = told.environment.model_copy(update={"mlflow_experiment_name": "set by whoever delivers"})
    new = journal.journals(told.environment.root)[-1]
    assert mirror.deliver(new, Store(other), tiny.build) is Outcome.DELIVERED
    assert told.client.get_experiment(told.run_of(new.name).info.experiment_id).name == expected


def test_a_model_is_logged_in_the_experiment_of_its_run(told: Told, tmp_path: Path) -> None:
    new = Journal.create(told.environment.root, stage="train", info=RunInfo(), experiment="models")
    new.model(tiny.write(tmp_path / "model.safetensors", seed=2))
    new.close()
    for _ in range(2):  # the second time it is known
        delivered(told, new.folder)
        (new.folder / DELIVERED).unlink()
    found = told.run_of(new.folder.name)
    (output,) = found.outputs.model_outputs
    assert told.client.get_logged_model(output.model_id).experiment_id == found.info.experiment_id


@pytest.mark.parametrize("named", ["0" * 32, "deleted", "no id: ' /"])
def test_a_named_run_that_cannot_be_used_is_said_with_the_run_that_is(told: Told, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    if named == "deleted":
        named = told.client.create_run("0").info.run_id
        told.client.delete_run(named)
    new = Journal.create(told.environment.root, stage="train", info=FACTS, run_id=named)
    new.close()
    delivered(told, new.folder)
    assert f"MLFLOW_RUN_ID={named} is not used" in (said := capsys.readouterr().out)
    assert f"{new.folder.name} is sent to run {told.run_of(new.folder.name).info.run_id}" in said


@pytest.mark.parametrize("num_others", [0, 300])
def test_tags_that_a_run_had_before_us_keep_their_values(told: Told, num_others: int) -> None:
    """Also in later journals; our own tags change as ever. MLflow cuts the list of very many tags off: then only its own are kept."""
    theirs = {"mlflow.user": "a stranger", "mlflow.source.type" if num_others else "data.train": "theirs"}
    theirs |= {f"{number:040}": "theirs" for number in range(num_others)}
    run_id = told.client.create_run("0", tags=theirs).info.run_id
    for value in ("1", "2"):
        new = Journal.create(told.environment.root, stage="train", info=FACTS, run_id=run_id)
        new.tags({"data.train": "ours", "ours": value})
        new.close()
        delivered(told, new.folder)
    tags = told.client.get_run(run_id).data.tags
    assert theirs.items() <= tags.items()
    assert (tags["ours"], tags["mlflow.source.git.commit"]) == ("2", "c0ffee")


def test_a_run_keeps_the_user_who_began_it(told: Told) -> None:
    first = Journal.create(told.environment.root, stage="train", info=FACTS)
    first.close()
    delivered(told, first.folder)
    Journal.reopen(first.folder, stage="train", info=RunInfo(tags={"mlflow.user": "someone else", "ours": "new"})).close()
    delivered(told, first.folder)
    tags = told.run_of(first.folder.name).data.tags
    assert (tags["mlflow.user"], tags["ours"]) == ("someone", "new")


def test_the_last_evaluation_counts_after_the_clock_was_set_back(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal.create(told.environment.root, stage="train", info=RunInfo())
    first.close()
    now_ns = time.time_ns()
    for hours, value in enumerate((0.9, 0.8)):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now_ns - hours * 3600 * 10**9)
        again = Journal.reopen(first.folder, stage="evaluate", info=RunInfo(), amends=True)
        again.metrics(5, {"test/accuracy": value})
        again.close()
    delivered(told, first.folder)
    assert told.run_of(first.folder.name).data.metrics["test/accuracy"] == 0.8


def test_sync_delivers_what_is_left(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    left = [Journal.create(told.environment.root, stage="train", info=RunInfo()) for _ in range(2)]
    for writing in left:
        writing.close()
    assert all(is_pending(writing.folder) for writing in left)
    assert run.sync(told.environment, tiny.build) == 0
    said = capsys.readouterr().out
    assert all(f"{writing.folder.name}: delivered" in said for writing in left)
    assert run.sync(told.environment, tiny.build) == 0
    assert "nothing to deliver" in capsys.readouterr().out


def test_a_mirror_also_delivers_what_earlier_runs_left(told: Told) -> None:
    left, own = [Journal.create(told.environment.root, stage="train", info=RunInfo()) for _ in range(2)]
    left.close()
    own.end("FINISHED")
    own.close()
    assert mirror.mirror(own.folder, told.environment, tiny.build) == 0
    assert told.run_of(left.folder.name).info.status == "KILLED"


def test_one_mirror_a_journal(told: Told) -> None:
    writing = Journal.create(told.environment.root, stage="train", info=RunInfo())
    with files.locked(writing.folder / mirror.MIRROR_LOCK, wait=False):
        assert mirror.deliver(writing.folder, Store(told.environment), tiny.build) is Outcome.BUSY
    writing.end("FINISHED")
    writing.close()
    assert mirror.mirror(writing.folder, told.environment, tiny.build) == 0
