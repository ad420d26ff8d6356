"""`python -m pipeline tensorboard`: TensorBoard itself reads back every point of the journals, and no point twice."""

import errno
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

from pipeline.__main__ import main
from pipeline.runs import event_files, events
from pipeline.runs.journal import SEARCH_TAG, Journal, RunInfo, short_name
from pipeline.runs.record import Record
from pipeline.tools import ui

PARAMS = {"seed": 1, "model.name": "mlp", "optimizer.learning_rate": 3e-3, "train.patience": None, "train.compile": "off|on", "x": True}
INFO = RunInfo(params=PARAMS, provenance={"git": {"commit": "c0ffee"}})
ALL = {"scalars": 0, "tensors": 0, "images": 0}
Points = dict[str, list[tuple[int, float, np.float32]]]


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    return tmp_path


def begun(top: Path, steps: range = range(10, 60, 10)) -> Journal:
    written = Journal.create(top, stage="train", info=INFO)
    add_steps(written, steps)
    system = [{"kind": "metrics", "time_ms": 10**12 + step, "step": step, "values": {"system/cpu": 10.0 * step}} for step in range(3)]
    (written.folder / events.SYSTEM).write_text("".join(json.dumps(event) + "\n" for event in system))
    return written


def add_steps(written: Journal, steps: range) -> None:
    for step in steps:
        validation = {"valid/loss": 2 / step} if step % 20 == 0 else {}
        written.metrics(step, {"train/objective": 1 / step, "learning_rate": 1e-3, **validation})


def written(journal: Journal, top: Path) -> Path:
    """Run the command, and return the folder with the event files of the journal."""
    assert main(["tensorboard"]) == 0
    return top / ".pipeline/tensorboard" / journal.folder.name


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance=ALL)
    accumulator.Reload()
    return accumulator


def points_read(folder: Path) -> Points:
    accumulator = read(folder)
    return {
        tag: [(point.step, point.wall_time, np.float32(point.value)) for point in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def points_of(journal: Path) -> Points:
    """Return every point of a journal; its values as float32, as TensorBoard keeps them."""
    found: Points = {}
    for name in (events.EVENTS, events.SYSTEM):
        for event in events.read(journal / name):
            for tag, value in (event.fields["values"] if event.kind == "metrics" else {}).items():
                found.setdefault(tag, []).append((event.fields["step"], event.time_ms / 1000, np.float32(value)))
    return found


def texts_read(folder: Path) -> dict[str, str]:
    accumulator = read(folder)
    tags = [tag for tag in accumulator.Tags()["tensors"] if tag.endswith("/text_summary")]
    return {tag.removesuffix("/text_summary"): accumulator.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags}


def test_every_point_of_every_run_is_read_back_with_its_step_and_time(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journals = [begun(top, steps).folder for steps in (range(10, 60, 10), range(1, 500))]
    assert main(["tensorboard"]) == 0
    folder = top / ".pipeline/tensorboard"
    for journal in journals:
        expected = points_of(journal)
        assert points_read(folder / journal.name) == expected
        assert expected.keys() == {"train/objective", "learning_rate", "valid/loss", "system/cpu"}
    *runs, last = capsys.readouterr().out.splitlines()
    assert runs[0] == f"tensorboard: {journals[0].name}: 15 points, 0 figures"
    assert last == f"show them: tensorboard --logdir {folder}"


def test_writing_again_adds_nothing_and_a_run_that_went_on_is_continued(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = begun(top)
    folder = written(first, top)
    before = sorted(folder.iterdir())
    capsys.readouterr()
    assert main(["tensorboard"]) == 0
    assert sorted(folder.iterdir()) == before
    assert capsys.readouterr().out.startswith(f"tensorboard: {first.folder.name}: 0 points, 0 figures\n")
    watching = read(folder)
    add_steps(first, range(60, 100, 10))
    assert points_read(written(first, top)) == points_of(first.folder)
    watching.Reload()
    assert [point.step for point in watching.Scalars("train/objective")] == list(range(10, 100, 10))


@pytest.mark.parametrize("first_call", [True, False])
def test_a_call_that_was_killed_doubles_nothing(top: Path, monkeypatch: pytest.MonkeyPatch, first_call: bool) -> None:
    journal = begun(top)
    if not first_call:
        assert main(["tensorboard"]) == 0
        add_steps(journal, range(60, 100, 10))
    with monkeypatch.context() as patch:
        patch.setattr(event_files.files, "write_json", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            event_files.write(top / ".pipeline/tensorboard" / journal.folder.name, Record(journal.folder), top)
    assert points_read(written(journal, top)) == points_of(journal.folder)


def test_a_journal_that_was_restored_from_a_backup_is_written_anew(top: Path) -> None:
    journal = begun(top)
    backup = (journal.folder / events.EVENTS).read_bytes()
    add_steps(journal, range(60, 100, 10))
    assert main(["tensorboard"]) == 0
    (journal.folder / events.EVENTS).write_bytes(backup)
    assert points_read(written(journal, top)) == points_of(journal.folder)


def test_a_disk_that_is_full_is_named(top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    journal = begun(top)
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    assert main(["tensorboard"]) == 69
    assert capsys.readouterr().err.startswith(f"error: {top}/.pipeline/tensorboard/{journal.folder.name}: the disk is full")


def test_infinite_and_missing_numbers_and_damaged_lines_do_not_stop_it(top: Path) -> None:
    journal = begun(top)
    journal.metrics(60, {"train/objective": math.inf, "learning_rate": math.nan})
    with (journal.folder / events.EVENTS).open("ab") as file:
        file.write(b'{"kind": "metrics", "time_ms": 5}\n\x00\xff\n{"kind": "metr')
    found = points_read(written(journal, top))
    assert found["train/objective"][-1][2] == math.inf
    assert math.isnan(found["learning_rate"][-1][2])


def test_parameters_provenance_and_result_are_texts_and_the_parameters_are_hparams(top: Path) -> None:
    journal = begun(top)
    journal.describe("test accuracy 0.9")
    journal.close()
    again = Journal.reopen(journal.folder, stage="train", info=INFO)
    again.describe("test accuracy 0.95")
    folder = written(journal, top)
    found = texts_read(folder)
    assert found["result"] == "test accuracy 0.95"
    rows = found["parameters"].splitlines()[2:]
    assert rows == [
        "| seed | 1 |",
        "| model.name | mlp |",
        "| optimizer.learning_rate | 0.003 |",
        "| train.patience | null |",
        "| train.compile | off\\|on |",
        "| x | true |",
    ]
    assert "| git.commit | c0ffee |" in found["provenance/train"]
    start = parse_session_start_info_plugin_data(read(folder).SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content)
    values: dict[str, Any] = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {**PARAMS, "train.patience": "null"}
    assert start.group_name == journal.folder.name


def test_figures_are_taken_from_the_journal_or_an_equal_file_of_the_checkout_and_stay(top: Path) -> None:
    journal = begun(top)
    figures = [top / f"plots/evaluate/{name}.png" for name in ("confusion", "calibration")]
    figures[0].parent.mkdir(parents=True)
    for side, figure in enumerate(figures, start=1):
        Image.new("RGB", (side, 4)).save(figure)
        journal.artifact(figure, folder="plots/evaluate")
    journal.text("notes.txt", b"no figure", folder="plots")
    copies = [journal.folder / "files" / hashlib.sha256(figure.read_bytes()).hexdigest()[:16] / figure.name for figure in figures]
    figures[0].write_bytes(b"that of another model")
    copies[1].unlink()
    for _ in range(2):
        found = read(written(journal, top))
        shown = {tag: [(image.step, image.width, image.height) for image in found.Images(tag)] for tag in found.Tags()["images"]}
        assert shown == {"plots/evaluate/confusion": [(50, 1, 4)], "plots/evaluate/calibration": [(50, 2, 4)]}
        copies[0].unlink(missing_ok=True)


def test_chosen_runs_go_to_a_chosen_folder(top: Path) -> None:
    first, second = (begun(top).folder for _ in range(2))
    assert main(["tensorboard", first.name.rpartition("-")[2], "--output", "elsewhere"]) == 0
    assert [path.name for path in (top / "elsewhere").iterdir()] == [first.name]
    assert main(["tensorboard", str(second), "--output", "elsewhere"]) == 0
    assert {path.name for path in (top / "elsewhere").iterdir()} == {first.name, second.name}


def test_a_search_and_its_trials_have_their_names_in_mlflow_and_do_not_replace_each_other(top: Path, capsys) -> None:
    names = (
        "search digits",
        "digits #7 lr=3e-3 width=16",
        "digits #7 lr=3e-3 width=16",
        "digits #8 weights=../a/b.safetensors" + "x" * 300,
    )
    journals = [Journal.create(top, stage="train", info=replace(INFO, tags={SEARCH_TAG: "5e3c"}, name=name)) for name in names]
    for journal in journals:
        add_steps(journal, range(10, 20, 10))
    assert main(["tensorboard"]) == 0
    ends = [short_name(journal.folder.name) for journal in journals]
    expected = [f"{name} {end}" for name, end in zip(names[:3], ends, strict=False)]
    *found, longest = [path.name for path in sorted((top / ".pipeline/tensorboard").iterdir(), key=lambda path: ends.index(path.name[-8:]))]
    assert found == expected
    assert longest.startswith("digits #8 weights=.._a_b.safetensorsxx")
    assert longest.endswith(f"x {ends[3]}")
    assert f"tensorboard: {expected[1]}: 2 points, 0 figures\n" in capsys.readouterr().out


def test_what_is_missing_is_said_with_the_remedy(top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tensorboard"]) == 2
    assert capsys.readouterr().err.endswith("there is no run: run `dvc repro`\n")
    assert main(["tensorboard", "x"]) == 2
    assert capsys.readouterr().err.endswith("train a model, by `make repro`\n")
    newest = begun(top).folder.name
    assert main(["tensorboard", "nothing"]) == 2
    assert capsys.readouterr().err == f"error: nothing: is no run of this checkout: give another name; the newest runs are {newest}\n"
    monkeypatch.setattr(ui, "find_spec", lambda _: None)
    assert main(["tensorboard"]) == 2
    assert capsys.readouterr().err == "error: tensorboard is not installed: run `make setup-tensorboard` in the checkout\n"
