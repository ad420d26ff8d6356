"""What a copy without Git answers to commands of DVC that need Git."""

from pathlib import Path

import pytest

from pipeline.container import __main__ as container
from pipeline.container import checkout, git_verbs
from pipeline.refusal import Refusal

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
def test_what_needs_git_is_refused_in_a_copy_with_the_remedy(words: str) -> None:
    with pytest.raises(
        Refusal, match=r"needs Git, and this runs in a copy of /opt/pipeline, which has none: run it in a checkout, with `make"
    ):
        git_verbs.refuse(words.split(), COPY)
    git_verbs.refuse(words.split(), None)


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
def test_all_else_runs_in_a_copy(words: str) -> None:
    git_verbs.refuse(words.split(), COPY)


def test_the_first_process_refuses_before_dvc_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = tmp_path / "pipeline.json"
    built.write_text('{"requirements.lock": "digest"}')
    monkeypatch.setattr(container, "BUILT_FROM", built)
    monkeypatch.setattr(checkout, "find", lambda *_, **__: checkout.Place(tmp_path, copy_of=COPY))
    assert container.main(["dvc", "exp", "run"]) == 2
    assert "`dvc exp run` needs Git" in capsys.readouterr().err
