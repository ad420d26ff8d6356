"""Parameters and code that are edited while DVC runs a stage: the stage fails at its end, because DVC would record them for its result."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core import stage
from pipeline.inference import model_file
from pipeline.tracking import run_description
from pipeline.train import training
from tests import project
from tests.conftest import MLP

WIDER = {"model": {**MLP, "width": 20}}
MODEL = Path("models/model.safetensors")
CODE = Path("pipeline/train/engine/fit.py")
LOOP = (training.Training, "save_when_due")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setattr(stage, "SETTLES_WITHIN_S", 0.0)
    monkeypatch.chdir(project.make(tmp_path, copy=True))
    return tmp_path


@pytest.fixture
def prepared(folder: Path) -> Path:
    assert main(["prepare"]) == 0
    return folder


def by_dvc(stage: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("DVC_STAGE", stage)
    return main([stage])


def meanwhile(owner: object, name: str, edit: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `edit` each time that the stage calls `name` of `owner`."""
    original = getattr(owner, name)

    def edited(*arguments, **more):
        edit()
        return original(*arguments, **more)

    monkeypatch.setattr(owner, name, edited)


def test_a_training_whose_parameters_were_edited_fails_and_ends_at_once_with_the_old_ones(prepared: Path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as patch:
        meanwhile(*LOOP, lambda: project.write_params(prepared, WIDER), patch)
        assert by_dvc("train", patch) == 2
    edited, error = Path("params.yaml").read_text(), capsys.readouterr().err
    line = next(number for number, text in enumerate(edited.splitlines(), start=1) if "width: 20" in text)
    assert error.startswith(f"error: params.yaml:{line}: model.width: was 16 when train began, and is 20 now. DVC would store the result")
    assert not MODEL.exists()
    project.write_params(prepared)
    assert by_dvc("train", monkeypatch) == 0
    assert "resuming after step 24" in capsys.readouterr().out


def test_an_edit_while_the_results_are_written_is_found_too(prepared: Path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as patch:
        meanwhile(run_description, "add_training", lambda: project.write_params(prepared, WIDER), patch)
        assert by_dvc("train", patch) == 2
    project.write_params(prepared)
    assert by_dvc("train", monkeypatch) == 0
    assert "resuming after step 24" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_at_the_end_is_no_reason_to_begin_again(prepared: Path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as patch:
        meanwhile(*LOOP, lambda: Path("params.yaml").write_text("model: [\n"), patch)
        assert by_dvc("train", patch) == 2
    streams = capsys.readouterr()
    assert "train: step 24 is saved: with the old values, code and data, the same command continues after it" in streams.out
    assert "It could be read when train began. To keep the old values, restore params.yaml and repeat the command." in streams.err


def test_an_edit_that_is_soon_undone_is_no_error(prepared: Path, monkeypatch) -> None:
    """`dvc exp run --queue` changes the checkout for a second."""
    monkeypatch.setattr(stage, "SETTLES_WITHIN_S", 60.0)
    before, edited = Path("params.yaml").read_bytes(), []

    def undo() -> None:
        edited.append(Path("params.yaml").read_bytes() != before)
        Path("params.yaml").write_bytes(before)

    meanwhile(stage.StageInputs, "change", after_the_first_call(undo), monkeypatch)
    meanwhile(*LOOP, lambda: project.write_params(prepared, WIDER), monkeypatch)
    assert by_dvc("train", monkeypatch) == 0
    assert edited[0]


def after_the_first_call(function: Callable[[], object]) -> Callable[[], object]:
    calls = itertools.count()
    return lambda: next(calls) and function()


def test_code_that_is_edited_while_it_is_imported_is_noticed(prepared: Path, monkeypatch, capsys) -> None:
    meanwhile(stage, "import_module", lambda: CODE.write_text("# edited\n"), monkeypatch)
    assert by_dvc("train", monkeypatch) == 2
    assert f"error: {CODE}: changed while train ran. DVC would store the result under the new code." in capsys.readouterr().err


def test_a_training_of_whose_code_a_file_was_removed_fails(prepared: Path, monkeypatch, capsys) -> None:
    meanwhile(*LOOP, lambda: CODE.unlink(missing_ok=True), monkeypatch)
    assert by_dvc("train", monkeypatch) == 2
    assert f"error: {CODE}: changed while train ran" in capsys.readouterr().err


def test_edits_of_another_stages_parameters_are_allowed(prepared: Path, monkeypatch) -> None:
    meanwhile(*LOOP, lambda: project.write_params(prepared, {"evaluate.top_k": 2}), monkeypatch)
    assert by_dvc("train", monkeypatch) == 0


def test_without_dvc_nothing_records_the_new_parameters(prepared: Path, monkeypatch) -> None:
    meanwhile(*LOOP, lambda: project.write_params(prepared, WIDER), monkeypatch)
    assert main(["train"]) == 0
    assert model_file.load(MODEL)[1].inference.model.width == 16
