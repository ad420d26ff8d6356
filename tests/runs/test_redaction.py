from pathlib import Path

import pytest

from pipeline.runs.mlflow import address


def test_a_secret_is_redacted_however_it_is_written() -> None:
    for given in ('some/secret key+"ü', "some%2Fsecret%20key%2B%22%C3%BC"):
        for form in (
            'some/secret key+"ü',
            "some/secret%20key%2B%22%C3%BC",
            "some%2Fsecret%20key%2B%22%C3%BC",
            "some%2Fsecret+key%2B%22%C3%BC",
            'some/secret key+\\"\\u00fc',
        ):
            assert address.redacted(f"({form})", address.forms([given, ""])) == "(***)"


def test_a_secret_that_contains_another_is_redacted_as_a_whole() -> None:
    assert address.redacted("secrets secret", address.forms(["secret", "secrets"])) == "*** ***"


def test_secrets_of_the_environment_are_redacted_and_words_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some/secret key+")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    monkeypatch.setenv("SOME_TOKEN_REQUIRED", "true")
    of_server = address.Address("http://someone:hidden@host:5000", tmp_path)
    assert of_server.redacted("true some/secret key+ some%2Fsecret%20key%2B abc hidden") == "true *** *** *** ***"


def test_an_uncaught_error_is_printed_without_its_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, address.redacted_output(["hidden"]):
        raise RuntimeError("no answer from https://someone:hidden@tracking.example")
    assert (ended.value.code, ended.value.__suppress_context__) == (1, True)
    assert "RuntimeError: no answer from https://someone:***@tracking.example" in capsys.readouterr().err
