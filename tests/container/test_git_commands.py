"""DVC commands that need Git are refused in a copy, which has no Git repository."""

from pathlib import Path

import pytest

from pipeline.container import __main__ as container
from pipeline.container import checkout

COPY = Path("/opt/pipeline")


@pytest.mark.parametrize(
    "words",
    [
        "dvc exp run -S seed=2",
        "dvc -q exp run --temp",
        "dvc --cd models exp show",
        "dvc experiments show",
        "dvc queue start",
        "dvc metrics diff",
        "dvc plots diff",
        "dvc diff",
    ],
)
def test_commands_that_need_git_are_recognised(words: str) -> None:
    assert container.NEEDS_GIT.match(words)


@pytest.mark.parametrize(
    "words",
    [
        "dvc repro",
        "dvc metrics show",
        "dvc status",
        "dvc",
        "dvc add exp",
        "dvc pull exp",
        "dvc repro diff",
        "dvc --cd exp repro",
        "mlflow ui",
        "check",
        "",
    ],
)
def test_other_commands_are_not(words: str) -> None:
    assert not container.NEEDS_GIT.match(words)


def test_they_are_refused_in_a_copy_before_dvc_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = tmp_path / "pipeline.json"
    digests.write_text('{"requirements.lock": "digest"}')
    monkeypatch.setattr(container, "IMAGE_DIGESTS", digests)
    monkeypatch.setattr(checkout, "find", lambda *_, **__: checkout.Checkout(tmp_path, copy_of=COPY))
    assert container.main(["dvc", "exp", "run"]) == 2
    error = capsys.readouterr().err
    assert "`dvc exp` needs Git, and this runs in a copy of /opt/pipeline, which has none: run it in a checkout, with `make" in error
