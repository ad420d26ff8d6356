"""A run is found by a part of its name only if no other run has it."""

import json
import re
from pathlib import Path

import pytest

from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal
from pipeline.runs import events, find, journal

FIRST, SECOND, TWIN = "run-000001-20261123T060949Z-ec00a471", "run-000002-20261123T061048Z-9e2e5a29", "run-000002-20261123T061048Z-7234c420"


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))


def make(root: Path, *names: str) -> None:
    for name in names:
        folder = journal.journals_folder(root) / name
        folder.mkdir(parents=True)
        (folder / events.EVENTS).write_text("{}\n")


def test_a_unique_beginning_or_end_of_a_name_denotes_the_run(tmp_path: Path) -> None:
    make(tmp_path, FIRST, SECOND, TWIN)
    expected = {
        "run-000001": FIRST,
        "run-000001-2026": FIRST,
        "run-000002-20261123T061048Z-9": SECOND,
        "9e2e5a29": SECOND,
        "5a29": SECOND,
        "a29": None,
        "000001": None,
    }
    for name, run in expected.items():
        found = find.recorded_run(name, tmp_path)
        assert (found and found.name) == run, name


def test_a_part_of_a_name_that_is_too_short_is_refused_with_the_minimum(tmp_path: Path) -> None:
    make(tmp_path, SECOND)
    for name, note in (("a29", r" \(a part of a run's name must have at least 4 characters\)"), ("0a29", "")):
        message = f"of this checkout{note}: give another name; the newest runs are {SECOND}$"
        with pytest.raises(Refusal, match=f"^{name}: is no {find.KINDS} {message}"), find.located(name, Paths(), Environment.read()):
            pass


def test_a_path_that_does_not_exist_is_named() -> None:
    message = r"^a/b\.safetensors: there is no such file: correct the path$"
    with pytest.raises(Refusal, match=message), find.located("a/b.safetensors", Paths(), Environment.read()):
        pass


def test_an_empty_name_is_that_of_no_model_and_not_the_newest_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "resolved", lambda *_: "0123abcd")
    with pytest.raises(Refusal, match=f'^"": is no {find.KINDS}'), find.located("", Paths(), Environment.read()):
        pass


def test_a_run_is_found_by_its_id_in_mlflow_beside_stores_that_have_none(tmp_path: Path) -> None:
    make(tmp_path, FIRST, SECOND)
    stores = {"one that never answered": {"run_id": None}, "damaged": "x", "server": {"run_id": "5" * 32}}
    (journal.journals_folder(tmp_path) / SECOND / events.DELIVERED).write_text(json.dumps(stores))
    found = find.recorded_run("5" * 32, tmp_path)
    assert found
    assert found.name == SECOND


def test_the_model_of_a_run_that_ended_on_another_machine_is_that_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, FIRST)
    (journal.journals_folder(tmp_path) / FIRST / events.DELIVERED).write_text(json.dumps({"server": {"run_id": "5" * 32}}))
    monkeypatch.setattr(find, "from_mlflow", lambda *_: tmp_path / "downloaded")
    with find.located("5" * 32, Paths(), Environment.read()) as found:
        assert found.path == tmp_path / "downloaded"


def test_a_model_file_that_dvc_has_removed_is_refused_with_a_finished_run(tmp_path: Path) -> None:
    make(tmp_path, FIRST, SECOND)
    (journal.journals_folder(tmp_path) / FIRST / journal.MODEL_DIGEST).write_text("5" * 64)
    name, message = "models/model.safetensors", f"name a finished run, such as {FIRST}, or"
    with pytest.raises(Refusal, match=message), find.located(name, Paths(), Environment.read()):
        pass


def test_an_ambiguous_name_is_refused_with_the_newest_five_runs(tmp_path: Path) -> None:
    make(tmp_path, FIRST, SECOND, TWIN)
    message = f"run-000002: is the beginning or end of the names of 2 runs ({SECOND}, {TWIN}): write more of the name"
    with pytest.raises(Refusal, match=f"^{re.escape(message)}$"):
        find.recorded_run("run-000002", tmp_path)
    make(tmp_path, *(f"run-00000{number}-20261123T070000Z-00000000" for number in range(3, 7)))
    with pytest.raises(Refusal) as refused:
        find.recorded_run("run-0000", tmp_path)
    assert re.findall("run-00000([0-9])-", str(refused.value)) == ["6", "5", "4", "3", "2"]
    assert ", ...): write more of the name" in str(refused.value)
    (tmp_path / "run-0000").touch()
    with find.located("run-0000", Paths(), Environment.read()) as found:
        assert found.is_file, "a file of this name comes first"
