"""The verbs: help at once, unknown ones refused, and no verb pays for what it does not use."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import __main__
from pipeline.__main__ import VERBS, main
from tests.imports import TOP

HEAVY = ("torch", "torchvision", "mlflow", "dvc", "sklearn", "matplotlib", "pandas")


def modules_after(*arguments: str, cwd: Path = TOP) -> tuple[int, set[str]]:
    """Exit code of a verb in a process of its own, and which of the heavy modules it imported."""
    code = (
        "import sys; from pipeline.__main__ import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        f"print(code, *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env={"PYTHONPATH": str(TOP)}, capture_output=True, text=True, check=True
    )
    number, *found = done.stderr.splitlines()[-1].split()
    return int(number or 0), set(found)


def test_help_is_there_at_once() -> None:
    for arguments in (["--help"], ["train", "--help"]):
        assert modules_after(*arguments) == (0, set())


def test_bad_parameters_of_prepare_are_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    text = (TOP / "presets/digits.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text.replace("name: digits", "name: digit"), encoding="utf-8")
    assert modules_after("prepare", cwd=tmp_path) == (2, set())


def test_help_lists_every_verb_with_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    for verb, purpose in VERBS.items():
        assert f"{verb} {purpose}" in said


@pytest.mark.parametrize("arguments", [["trian"], [], ["preset"], ["train", "now"], ["check", "--fast"]], ids=str)
def test_a_wrong_verb_or_argument_ends_with_2_and_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: python -m pipeline")
    assert "Traceback" not in said
    if arguments == ["trian"]:
        assert all(verb in said for verb in VERBS)


def test_every_verb_has_its_module() -> None:
    modules = {path.stem for path in (TOP / "pipeline/commands").glob("*.py")} - {"__init__", "stage"}
    stages = {path.stem for path in (TOP / "pipeline/stages").glob("*.py")} - {"__init__"}
    assert modules | stages == set(VERBS)
    for verb in VERBS:
        assert callable(__main__.command(verb))


def test_the_answer_of_a_verb_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, code in ((None, 0), (0, 0), (1, 1)):
        monkeypatch.setattr("pipeline.commands.check.run", lambda answer=answer: answer)
        assert main(["check"]) == code
