"""Stores that cannot be used, and runs that are not ours."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.tracking import mirror
from pipeline.tracking.journal import Journal, RunInfo
from pipeline.tracking.store import Store
from tests.imports import TOP
from tests.tracking import tiny
from tests.tracking.conftest import Tracked


def revised(revision: str) -> Callable[[Path], None]:
    def revise(database: Path) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))

    return revise


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda database: database.write_text("no database"), "file is not a database"),
        (lambda database: os.truncate(database, database.stat().st_size // 2), "database disk image is malformed"),
        (revised("17e22815139b"), "found version 17e22815139b, but expected"),
        (revised("of the future"), "found version of the future, but expected"),
    ],
)
def test_a_store_that_mlflow_cannot_open_is_named_with_reason_and_remedies(
    tracked: Tracked, without_mirror: Environment, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    database = tmp_path / "mlflow.db"
    shutil.copy(tracked.environment.root / "mlflow.db", database)
    damage(database)
    with pytest.raises(Refusal, match=reason) as refused:
        _ = Store(without_mirror).client
    assert str(refused.value).startswith(f"{database}: MLflow ")
    assert f"mlflow db upgrade sqlite:///{database}" in str(refused.value)
    assert f"mv {database} " in str(refused.value)


def test_a_locked_database_is_not_called_damaged(without_mirror: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr("mlflow.MlflowClient", locked)
    (without_mirror.root / "mlflow.db").touch()
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        _ = Store(without_mirror).client


def test_a_folder_without_runs_has_nothing_to_deliver(without_mirror: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.sync(without_mirror, tiny.build) == 0
    assert capsys.readouterr().out == "tracking: nothing to deliver: there are no runs here\n"


def test_sync_reports_the_remedy_for_a_damaged_store_and_delivers_after_it(
    tracked: Tracked, without_mirror: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal.create(tmp_path, stage="train", info=RunInfo()).close()
    (tmp_path / "mlflow.db").write_text("no database")
    assert mirror.sync(without_mirror, tiny.build) == 1
    assert "mv " in capsys.readouterr().err
    assert not (tmp_path / "mlflow.db.lock").exists()
    (tmp_path / "mlflow.db").rename(tmp_path / "mlflow.db.damaged")
    shutil.copy(tracked.environment.root / "mlflow.db", tmp_path)
    # In a new process: MLflow keeps a database open in the one that has met it.
    subprocess.run([sys.executable, "-m", "pipeline", "sync"], cwd=TOP, env={**os.environ, "DVC_ROOT": str(tmp_path)}, check=True)
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [".pipeline", "mlflow.db", "mlflow.db.damaged"]


def test_a_database_that_does_not_accept_the_connection_is_not_asked_again_for_minutes(
    make_environment: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.store.db.utils.time.sleep", lambda _: pytest.fail("MLflow's own attempts"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"postgresql+psycopg2://someone:wrong@127.0.0.1:{closed.getsockname()[1]}/runs"
    with pytest.raises(OperationalError, match="Connection refused"):
        _ = Store(make_environment(address)).client


def test_the_newest_runs_have_different_colours(tracked: Tracked) -> None:
    new = [Journal.create(tracked.environment.root, stage="train", info=RunInfo(), experiment="colours") for _ in range(3)]
    for journal in new:
        journal.close()
        assert mirror.deliver(journal.folder, Store(tracked.environment), tiny.build)
    assert len({tracked.run_of(journal.folder.name).data.tags["mlflow.runColor"] for journal in new}) == len(new)
