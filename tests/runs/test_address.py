from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.runs.mlflow.address import Address, redacted_output

MakeEnvironment = Callable[..., Environment]


def test_the_address_for_mlflow_holds_no_password(make_environment: MakeEnvironment) -> None:
    address = Address.of(make_environment("https://someone:p%40ss@tracking.example:5000/path"))
    assert address.for_mlflow == "https://tracking.example:5000/path"
    assert address.credentials == ("someone", "p@ss")
    assert address.redacted("p%40ss and p@ss") == "*** and ***"


def test_the_key_of_a_store_does_not_depend_on_the_password(make_environment: MakeEnvironment) -> None:
    keys = {Address.of(make_environment(f"postgresql://someone:{password}@host/runs")).key for password in ("one", "two")}
    assert len(keys) == 1
    assert Address.of(make_environment("http://host:5000")).key not in keys


def test_a_postgresql_address_without_a_driver_means_the_installed_one_and_keeps_its_key(make_environment: MakeEnvironment) -> None:
    address = Address.of(make_environment("postgresql://someone:hidden@host/runs"))
    assert make_url(address.for_mlflow).get_dialect().import_dbapi().__name__ == "psycopg2"
    assert address.key == files.digest_of("postgresql://host/runs")[:16]
    other = "postgresql+pg8000://someone:hidden@host/runs"
    assert Address.of(make_environment(other)).for_mlflow == other


def test_a_relative_database_lies_under_the_root(make_environment: MakeEnvironment) -> None:
    environment = make_environment("sqlite:///mine.db")
    assert Address.of(environment).for_mlflow == f"sqlite:///{environment.root}/mine.db"
    assert Address.of(make_environment("sqlite:////absolute.db")).for_mlflow == "sqlite:////absolute.db"


def test_a_secret_is_redacted_wherever_it_stands_in_the_address(make_environment: MakeEnvironment) -> None:
    for address in (
        "https://hidden%2Fword@tracking.example",
        "https://someone:hidden%2Fword@tracking.example",
        "postgresql://someone@host/runs?password=hidden%2Fword",
        "mssql://someone:hidden%2Fword@host/runs",
    ):
        assert "hidden" not in Address.of(make_environment(address)).redacted(f"{address} hidden/word hidden%2Fword")


def test_a_secret_is_redacted_however_it_is_written(make_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    for given in ('some/secret key+"ü', "some%2Fsecret%20key%2B%22%C3%BC"):
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", given)
        for form in (
            'some/secret key+"ü',
            "some/secret%20key%2B%22%C3%BC",
            "some%2Fsecret%20key%2B%22%C3%BC",
            "some%2Fsecret+key%2B%22%C3%BC",
            'some/secret key+\\"\\u00fc',
        ):
            assert Address.of(make_environment("http://host:5000")).redacted(f"({form})") == "(***)"


def test_a_secret_that_contains_another_is_redacted_as_a_whole(make_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secrets")
    assert Address.of(make_environment("http://host:5000")).redacted("secrets secret") == "*** ***"


def test_secrets_of_the_environment_are_redacted_and_words_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some/secret key+")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    monkeypatch.setenv("SOME_TOKEN_REQUIRED", "true")
    of_server = Address("http://someone:hidden@host:5000", tmp_path)
    assert of_server.redacted("true some/secret key+ some%2Fsecret%20key%2B abc hidden") == "true *** *** *** ***"


def test_an_uncaught_error_is_printed_without_its_secrets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    address = Address("https://someone:hidden@tracking.example", tmp_path)
    with pytest.raises(SystemExit) as ended, redacted_output(address):
        raise RuntimeError(f"no answer from {address.given}")
    assert (ended.value.code, ended.value.__suppress_context__) == (1, True)
    assert "RuntimeError: no answer from https://someone:***@tracking.example" in capsys.readouterr().err


def test_a_message_is_one_line_without_secrets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    address = Address("https://someone:hidden@tracking.example", tmp_path)
    address.say(f"no answer\nfrom {address.given}", failed=True)
    assert capsys.readouterr().err == "tracking: no answer from https://someone:***@tracking.example\n"
