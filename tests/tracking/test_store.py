"""Stores that cannot be used, and runs that are not ours."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment
from pipeline.tracking import run, store
from pipeline.tracking.journal import Journal
from pipeline.tracking.run_info import RunInfo
from tests.tracking import tiny
from tests.tracking.conftest import Told


def revised(revision: str) -> Callable[[Path], None]:
    def revise(database: Path) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))

    return revise


@pytest.mark.parametrize(
    ("spoil", "reason", "remedy"),
    [
        (lambda database: database.write_bytes(b""), "is damaged", "mv "),
        (lambda database: database.write_text("no database"), "is damaged", "mv "),
        (lambda database: os.truncate(database, database.stat().st_size // 2), "is damaged", "mv "),
        (revised("17e22815139b"), "has schema 17e22815139b", "mlflow db upgrade sqlite:///"),
        (revised("of the future"), "was written by a newer version", "use that version"),
    ],
)
def test_a_store_that_cannot_be_used_is_named_with_the_remedy(
    told: Told, tmp_path: Path, spoil: Callable[[Path], None], reason: str, remedy: str
) -> None:
    database = tmp_path / "mlflow.db"
    shutil.copy(told.environment.root / "mlflow.db", database)
    store.refuse_unusable(database)
    spoil(database)
    with pytest.raises(Refusal, match=reason) as refused:
        store.refuse_unusable(database)
    assert str(refused.value).startswith(f"{database}: ")
    assert remedy in str(refused.value)


def test_sync_says_what_to_do_about_a_damaged_store_and_delivers_once_it_is_gone(
    told: Told, alone: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal.create(tmp_path, stage="train", info=RunInfo()).close()
    (tmp_path / "mlflow.db").write_text("no database")
    assert run.sync(alone, tiny.build) == 1
    assert "mv " in capsys.readouterr().err
    assert not (tmp_path / "mlflow.db.lock").exists()
    (tmp_path / "mlflow.db").rename(tmp_path / "mlflow.db.damaged")
    shutil.copy(told.environment.root / "mlflow.db", tmp_path)
    assert run.sync(alone, tiny.build) == 0
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [".pipeline", "mlflow.db", "mlflow.db.damaged"]
