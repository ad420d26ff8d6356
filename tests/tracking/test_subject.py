"""A run is found by a part of its name only if no other run has that part."""

from pathlib import Path

from pipeline.tracking import events, journal, subject

FIRST, SECOND, TWIN = "run-000001-20261123T060949Z-ec00a471", "run-000002-20261123T061048Z-9e2e5a29", "run-000002-20261123T061048Z-7234c420"


def make(root: Path, *names: str) -> None:
    for name in names:
        folder = journal.journals_folder(root) / name
        folder.mkdir(parents=True)
        (folder / events.EVENTS).write_text("{}\n")


def test_the_beginning_of_a_name_is_enough_if_it_is_unique(tmp_path: Path) -> None:
    make(tmp_path, FIRST, SECOND, TWIN)
    found = {name: subject.journal_named(name, tmp_path) for name in ("run-000001", "run-000002", "run-00000", "9e2e5a29", "run")}
    assert {name: path.name for name, path in found.items() if path} == {"run-000001": FIRST, "9e2e5a29": SECOND}
