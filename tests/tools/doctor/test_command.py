"""`doctor` prints a table or JSON and exits with 1 if a training would fail; `check` refuses what makes a training fail."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.tools.doctor import checks
from pipeline.tools.doctor.checks import CHECKS, FOR_TRAINING, Context, Finding
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
MakeContext = Callable[..., Context]
MISSING = "of 1 packages of requirements.lock: not-there missing"


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}


@pytest.fixture
def project(parameters: Parameters, tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_a_lock_that_does_not_match_ends_with_1(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    capsys.readouterr()
    (project / "requirements.lock").write_text("not-there==1.0\n", encoding="utf-8")
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    row = next(number for number, line in enumerate(lines) if line.split()[1] == "lock")
    assert lines[row].split(maxsplit=2) == ["problem", "lock", MISSING]
    assert lines == [line.rstrip() for line in lines]
    assert "→ `rm -f .venv/.locked; make setup`" in lines[row + 1]
    assert lines[-1].startswith("doctor: 1 problem")
    assert main(["doctor", "--json"]) == 1
    assert findings(capsys)["lock"]["text"] == MISSING


def test_only_problems_and_warnings_are_printed_unless_all_is_asked_for(project: Path, monkeypatch, capsys) -> None:
    found = [Finding("ok", "plenty", name="disk"), Finding("ok", "flock works", name="locks")]
    monkeypatch.setattr(checks, "examine", lambda *_: found)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "doctor: 2 ok: a training can run (`python -m pipeline check` examines params.yaml)\n"
    assert main(["doctor", "--all"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[:-1]] == ["disk", "locks"]
    found[1] = Finding("warning", "no flock", "`mount`", name="locks")
    assert main(["doctor"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["warning", "→", "doctor:"]


def test_an_invalid_variable_is_told_and_the_rest_is_examined(project: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PIPELINE_DEVICE", "gpu")
    assert main(["doctor", "--json"]) == 1
    found = findings(capsys)
    assert found["environment"]["text"].startswith("PIPELINE_DEVICE: should be `auto`")
    assert list(found) == ["environment", *(name for name in CHECKS if name != "tracking")]


def test_a_password_is_never_printed(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter2@127.0.0.1:9")
    for arguments in (["doctor"], ["doctor", "--json"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert "http://127.0.0.1:9 cannot be used" in printed
        assert "hunter2" not in printed


def test_without_the_packages_the_remedy_is_told(project: Path) -> None:
    code = "import sys; from pipeline.__main__ import main; sys.exit(main(['doctor', '--json']))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["name"], "make setup" in finding["remedy"]) == ("lock", True)


def test_check_refuses_what_makes_a_training_fail(project: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "requirements.lock").write_text("not-there==1.0\n", encoding="utf-8")
    full = Finding("problem", "1 MiB free in /data", "remove files", name="disk")
    monkeypatch.setattr(checks, "CHECKS", {**checks.CHECKS, "disk": lambda _: full})
    first, second = refused("check")
    assert first.startswith(f"lock: {MISSING}: `rm -f .venv/.locked; make setup`")
    assert second == "disk: 1 MiB free in /data: remove files"


def test_check_warns_of_another_version_and_passes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "requirements.lock").write_text("numpy==1.0\n", encoding="utf-8")
    assert main(["check"]) == 0
    assert capsys.readouterr().err.startswith("warning: lock: of 1 packages of requirements.lock: numpy ")


def test_a_check_that_hangs_or_raises_is_a_warning_and_the_others_are_told(make_context: MakeContext, monkeypatch) -> None:
    released = threading.Event()
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")

    def hang(_: Context) -> Finding:
        released.wait()
        raise AssertionError

    def fail(_: Context) -> Finding:
        raise KeyError("lost, said hunter2")

    table = {"slow": hang, "wrong": fail, "fine": lambda _: Finding("ok", "well")}
    monkeypatch.setattr(checks, "CHECKS", table)
    findings = checks.examine(make_context(), table, limit_s=0.2)
    released.set()
    assert [(finding.name, finding.status) for finding in findings] == [*(("slow", "warning"), ("wrong", "warning"), ("fine", "ok"))]
    assert "no answer within 0.2 s" in findings[0].text
    assert "KeyError: 'lost, said ***'" in findings[1].text


def test_every_check_gives_a_finding_of_its_own_name(make_context: MakeContext) -> None:
    findings = checks.examine(make_context(), limit_s=60)
    assert [finding.name for finding in findings] == list(CHECKS)
    assert not [finding for finding in findings if "could not be examined" in finding.text]
    assert set(FOR_TRAINING) <= set(CHECKS)
