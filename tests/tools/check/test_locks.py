"""`check` writes only to repair a lock record of DVC."""

from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core import checkout_lock
from tests import project


@pytest.mark.parametrize("record", [".dvc/tmp/rwlock", ".dvc/tmp/exps/rwlock"])
def test_the_checkout_is_held_only_to_mend_a_record(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert main(["check"]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / record).parent.mkdir(parents=True)
    (tmp_path / record).write_text("{", encoding="utf-8")
    assert main(["check"]) == 0
    assert (tmp_path / checkout_lock.LOCK).exists()
    assert not (tmp_path / record).exists()
