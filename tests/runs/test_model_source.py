"""A model is found by what people call it: a version in the registry, a logged model, a run; the file comes from MLflow if it is not here."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal
from pipeline.runs import find, journal
from pipeline.runs.mlflow.store import MODEL_TAG
from pipeline.runs.record import Record
from tests.runs.conftest import Tracked, turned_to

Names = dict[str, str]


@pytest.fixture(scope="module")
def names(tracked: Tracked) -> Names:
    """Return the names of the model of the shared run."""
    import mlflow

    run = tracked.run_of(tracked.journal.name)
    (output,) = run.outputs.model_outputs
    with turned_to(tracked):
        registered = mlflow.register_model(f"models:/{output.model_id}", "digits")
    tracked.client.set_registered_model_alias("digits", "best", registered.version)
    folder = tracked.client.get_logged_model(output.model_id).artifact_location
    version = tracked.client.create_model_version("digits", folder)  # as registered by its folder
    return {
        "alias": "models:/digits@best",
        "version": f"models:/digits/{version.version}",
        "logged model": f"models:/{output.model_id}",
        "id of the run": run.info.run_id,
        "journal": tracked.journal.name,
    }


@pytest.fixture
def elsewhere(tracked: Tracked, tmp_path: Path) -> Environment:
    """Return the environment of a folder without journals that uses the same store."""
    return Environment.model_validate({"DVC_ROOT": tmp_path, "MLFLOW_TRACKING_URI": f"sqlite:///{tracked.environment.root}/mlflow.db"})


def test_a_model_is_downloaded_by_each_of_its_names(tracked: Tracked, names: Names, elsewhere: Environment, tmp_path: Path, capsys) -> None:
    for kind in ("alias", "version", "logged model", "id of the run"):
        with find.located(names[kind], Paths(tmp_path), elsewhere) as found:
            assert files.digest(found.path) == files.digest(tracked.model)
        assert not found.path.exists()
    assert capsys.readouterr().out == ""


def test_a_journal_without_a_model_does_not_hide_the_model_of_its_run_in_mlflow(tracked, names, elsewhere: Environment, tmp_path) -> None:
    """Earlier versions sent a training that did not finish and a later one to one run, if MLFLOW_RUN_ID named it for both."""
    unfinished = journal.journals_folder(tmp_path) / "run-000001-20261123T060949Z-00000000"
    shutil.copytree(tracked.journal, unfinished)
    (unfinished / journal.MODEL_DIGEST).unlink()
    (unfinished / journal.MODEL).unlink(missing_ok=True)
    assert find.recorded_run(names["id of the run"], tmp_path) == Record(unfinished)
    with find.located(names["id of the run"], Paths(tmp_path), elsewhere) as found:
        assert files.digest(found.path) == files.digest(tracked.model)


def test_a_run_whose_journal_is_here_is_downloaded_when_its_copy_was_delivered(tracked: Tracked, names: Names, tmp_path: Path) -> None:
    with find.located(names["journal"], Paths(tmp_path), tracked.environment) as found:
        assert files.digest(found.path) == files.digest(tracked.model)


def test_a_file_on_this_machine_with_the_digest_of_the_logged_model_is_used(tracked, names, elsewhere, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(find, "download", lambda *_: pytest.fail("nothing needs to be downloaded"))
    paths = Paths(tmp_path)
    paths.model.parent.mkdir()
    paths.model.write_bytes(tracked.model.read_bytes())
    with find.located(names["alias"], paths, elsewhere) as found:
        assert found.path == paths.model


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("models:/digits@worst", "models:/digits@worst: could not get this model from MLflow .*alias worst not found"),
        ("models:/digits/Production", "models:/digits/Production: is not a model in MLflow: write models:/NAME@ALIAS"),
    ],
)
def test_what_mlflow_does_not_have_is_refused(names: Names, elsewhere: Environment, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(Refusal, match=message), find.located(name, Paths(tmp_path), elsewhere):
        pass


def artifact(tracked: Tracked, names: Names) -> Path:
    logged = tracked.client.get_logged_model(names["logged model"].removeprefix("models:/"))
    return Path(logged.artifact_location.removeprefix("file://")) / "artifacts/model.safetensors"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"other"), "the file in MLflow is damaged, because its SHA-256 is not"),
        (Path.unlink, "logged by an older version of this pipeline lacks this file: give a model file with the SHA-256 [0-9a-f]{64}"),
    ],
    ids=["damaged", "missing"],
)
def test_a_file_that_is_damaged_or_missing_in_mlflow_is_refused(
    tracked: Tracked, names: Names, elsewhere: Environment, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    path = artifact(tracked, names)
    content = path.read_bytes()
    try:
        damage(path)
        with pytest.raises(Refusal, match=message), find.located(names["alias"], Paths(tmp_path), elsewhere):
            pass
    finally:
        path.write_bytes(content)


def test_a_model_of_another_program_is_refused(tracked: Tracked, names: Names, elsewhere: Environment, tmp_path: Path) -> None:
    (experiment, *_) = tracked.client.search_experiments()
    foreign = tracked.client.create_logged_model(experiment.experiment_id, "foreign")
    assert MODEL_TAG not in foreign.tags
    with (
        pytest.raises(Refusal, match="was not logged by this pipeline: give a model file"),
        find.located(f"models:/{foreign.model_id}", Paths(tmp_path), elsewhere),
    ):
        pass


def test_without_mlflow_only_names_in_mlflow_are_refused(elsewhere: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    file = tmp_path / "model.safetensors"
    file.touch()
    with find.located(str(file), Paths(tmp_path), elsewhere) as found:
        assert found.path == file
    with (
        pytest.raises(Refusal, match="models:/digits@best: needs MLflow, which is not installed here"),
        find.located("models:/digits@best", Paths(tmp_path), elsewhere),
    ):
        pass
