"""Stores that cannot be used, and runs that are not ours."""

import re
import shlex
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from mlflow import MlflowClient, experiments
from mlflow.exceptions import MlflowException
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.runs.journal import Journal, RunInfo
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.delivery import Sender
from pipeline.runs.mlflow.store import UNNAMED, Store, accepting, is_refusal
from tests.runs.conftest import Tracked


def test_a_store_of_another_version_of_mlflow_is_named_with_reason_and_remedies(tracked, without_mirror: Environment, tmp_path) -> None:
    database = tmp_path / "mlflow.db"
    shutil.copy(tracked.environment.root / "mlflow.db", database)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'of the future'")
    with pytest.raises(Refusal, match="found version of the future, but expected") as refused:
        _ = Store(without_mirror).client
    assert str(refused.value).startswith(f"{database}: MLflow ")
    assert f"mlflow db upgrade sqlite:///{database}" in str(refused.value)
    assert f"mv {database} " in str(refused.value)


def test_a_copy_of_a_checkout_has_its_own_artifacts(tracked, without_mirror: Environment, tmp_path: Path) -> None:
    root, artifacts = (tracked.environment.root / "mlruns").as_uri(), (tmp_path / "mlruns").as_uri()
    shutil.copy(tracked.environment.root / "mlflow.db", tmp_path)
    shutil.copytree(tracked.environment.root / "mlruns", tmp_path / "mlruns")

    def locations(client: MlflowClient) -> list[str]:
        ours = [each for each in client.search_experiments() if each.name in ("Default", UNNAMED)]  # other tests create others
        models = client.search_logged_models([each.experiment_id for each in ours])
        assert len(ours) == 2
        assert models
        uri = client.get_run(tracked.run_of(tracked.journal.name).info.run_id).info.artifact_uri
        return [uri, *(each.artifact_location for each in (*ours, *models))]

    originals = locations(tracked.client)
    assert all(each.startswith(root + "/") for each in originals)
    assert locations(Store(without_mirror).client) == [artifacts + each.removeprefix(root) for each in originals]


def test_a_locked_database_is_not_called_damaged(tracked, without_mirror: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the errors of SQLite, of SQLAlchemy, which waits for minutes, and of MLflow, whose cause is that of SQLAlchemy."""
    database = without_mirror.root / "mlflow.db"
    shutil.copy(tracked.environment.root / "mlflow.db", database)

    def opened(**_: object) -> None:
        with create_engine(f"sqlite:///{database}", connect_args={"timeout": 0}).connect() as connection:
            connection.execute(text("SELECT 1 FROM runs"))

    def wrapped(**_: object) -> None:
        try:
            opened()
        except OperationalError as error:
            raise MlflowException(str(error)) from error

    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for open_store in (opened, wrapped, lambda **_: sqlite3.connect(database, timeout=0).execute("SELECT 1 FROM runs")):
            monkeypatch.setattr("mlflow.MlflowClient", open_store)
            with pytest.raises((sqlite3.OperationalError, OperationalError, MlflowException), match="database is locked"):
                _ = Store(without_mirror).client


def test_sync_reports_the_remedy_for_a_damaged_store(without_mirror: Environment, tmp_path: Path, capsys) -> None:
    assert mirror.sync(without_mirror) == 0
    assert "nothing to deliver" in capsys.readouterr().out
    Journal.create(tmp_path, stage="train", info=RunInfo()).close()
    (tmp_path / "mlflow.db").write_text("no database")
    assert mirror.sync(without_mirror) == 1
    output = capsys.readouterr().err
    assert "cannot open this SQLite file ((sqlite3.DatabaseError) file is not a database" in output
    assert "mv " in output
    assert not (tmp_path / "mlflow.db.lock").exists()


def test_a_database_that_does_not_accept_the_connection_is_not_asked_again_for_minutes(
    make_environment: Callable[..., Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.store.db.utils.time.sleep", lambda _: pytest.fail("MLflow's own attempts"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"postgresql+psycopg2://someone:wrong@127.0.0.1:{closed.getsockname()[1]}/runs"
    with pytest.raises(OperationalError, match="Connection refused"):
        _ = Store(make_environment(address)).client


@pytest.mark.parametrize("name", ["my photos", "größe", "a/b", "..", "x" * 200])
def test_an_experiment_of_any_name_has_a_folder_that_mlflow_can_load_from(tracked: Tracked, name: str) -> None:
    store = Store(tracked.environment)
    location = store.client.get_experiment(store.experiment_id(name)).artifact_location
    folder = location.removeprefix(f"{(tracked.environment.root / 'mlruns').as_uri()}/")
    assert re.fullmatch(r"[\w.-]+", folder, re.ASCII)
    assert folder.strip(".")
    assert len(folder) < 120


def test_a_deleted_experiment_is_named_with_the_command_that_restores_it(tracked: Tracked, tmp_path: Path, monkeypatch, capsys) -> None:
    """The command is run as it is printed."""
    shutil.copy(tracked.environment.root / "mlflow.db", tmp_path)
    environment = Environment.model_validate({"DVC_ROOT": tmp_path})
    number = Store(environment).experiment_id(UNNAMED)
    Store(environment).client.delete_experiment(number)
    Journal.create(tmp_path, stage="train", info=RunInfo()).close()
    assert mirror.sync(environment) == 1
    remedy = f"`MLFLOW_TRACKING_URI=sqlite:///{tmp_path}/mlflow.db mlflow experiments restore --experiment-id {number}`"
    assert f"the experiment pipeline was deleted, so MLflow accepts no run for it: {remedy}" in capsys.readouterr().err
    variable, program, *words = shlex.split(remedy.strip("`"))
    monkeypatch.setenv(*variable.split("=", 1))
    assert (program, words[0]) == ("mlflow", "experiments")
    experiments.commands.main(words[1:], standalone_mode=False)
    assert mirror.sync(environment) == 0


def test_metrics_are_never_logged_asynchronously(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.environment_variables import MLFLOW_ENABLE_ASYNC_LOGGING

    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
    _ = Store(tracked.environment).client
    assert not MLFLOW_ENABLE_ASYNC_LOGGING.get()


@pytest.mark.parametrize(("code", "refuses"), [("PERMISSION_DENIED", False), ("TEMPORARILY_UNAVAILABLE", False), ("BAD_REQUEST", True)])
def test_a_request_is_left_out_only_if_its_content_is_rejected_twice(code: str, refuses: bool) -> None:
    """A row that another delivery was making is there at the second time."""
    from mlflow.exceptions import RestException

    error = RestException({"error_code": code, "message": "no"})
    assert is_refusal(error) == refuses
    send = MagicMock(side_effect=[error, None])
    with nullcontext() if refuses else pytest.raises(RestException):
        accepting(send)
    assert send.call_count == 1 + refuses
    with pytest.raises(RestException):
        accepting(MagicMock(side_effect=error))
    if refuses:
        left_out: dict[str, str] = {}
        Sender(MagicMock(), "a run", Path(), left_out)._or_leave_out("a dataset", MagicMock(side_effect=[error, None]))
        assert not left_out


def test_a_file_is_left_out_if_it_is_too_large_for_the_server_but_not_if_the_server_fails() -> None:
    from requests import HTTPError, Response

    for status, refuses in ((413, True), (500, False), (507, False)):
        response = Response()
        response.status_code = status
        assert is_refusal(HTTPError(response=response)) == refuses
    assert not is_refusal(OSError("the disk is full"))
