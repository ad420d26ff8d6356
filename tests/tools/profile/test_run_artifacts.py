"""A profile becomes artifacts of the run that trained the model file, and of no other."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.runs import events, journal
from pipeline.tools.profile import profile
from tests import project


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a trained model. Its journal is not sent."""
    folder = project.make(tmp_path_factory.mktemp("finished"))
    return project.run(folder, "prepare", "train", PIPELINE_TRACKING="true", PIPELINE_TRACKING_MIRROR="false")


@pytest.fixture
def trained(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of it, which is the working folder. No server answers."""
    folder = shutil.copytree(finished, tmp_path / "trained", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("pipeline.runs.mlflow.mirror_process.start", lambda *_: None)
    monkeypatch.setattr(profile, "BUDGET_S", 0.05)
    return folder


def test_the_profile_is_in_the_run_of_the_model(trained: Path, capsys) -> None:
    assert main(["profile", "--log-to-run"]) == 0
    (folder,) = journal.journals(trained)
    assert f"added to the run {folder.name}, as artifacts below profile/" in capsys.readouterr().out
    logged = [
        event.fields for event in events.read(folder / events.EVENTS) if event.kind == "artifact" and event.fields["folder"] == "profile"
    ]
    files = {Path(fields["file"]).name: folder / fields["file"] for fields in logged}
    assert set(files) == {"trace.json.gz", "profile.txt", "profile.json"}
    assert "step" in {event["name"] for event in json.loads(gzip.decompress(files["trace.json.gz"].read_bytes()))["traceEvents"]}
    assert sum(json.loads(files["profile.json"].read_text())["shares"].values()) == pytest.approx(1)
    assert "waiting for data" in files["profile.txt"].read_text()
    assert [event.fields["status"] for event in events.read(folder / events.EVENTS) if event.kind == "end"] == ["FINISHED", "FINISHED"]


def test_another_training_than_that_of_the_model_is_refused(trained: Path, monkeypatch, capsys) -> None:
    project.write_params(trained, {"train.batch_size": 32, "train.micro_batch_size": 32})
    assert main(["profile", "--log-to-run"]) == 2
    assert (
        "--log-to-run: models/model.safetensors was trained with other parameters or data: run `dvc repro` first" in capsys.readouterr().err
    )
    Path("models/model.safetensors").unlink()
    assert main(["profile", "--log-to-run"]) == 2
    assert "no run of this checkout has trained" in capsys.readouterr().err
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    assert main(["profile", "--log-to-run"]) == 2
    assert "PIPELINE_TRACKING is false" in capsys.readouterr().err


def test_a_trace_is_written_where_it_was_asked_for_and_wrong_numbers_are_refused(trained: Path, capsys) -> None:
    assert main(["profile", "--steps", "5", "--trace", "traces/first.json.gz"]) == 0
    assert "trace: traces/first.json.gz: open it at https://ui.perfetto.dev" in capsys.readouterr().out
    assert gzip.decompress(Path("traces/first.json.gz").read_bytes()).startswith(b"{")
    assert main(["profile", "--trace", "traces"]) == 2
    assert "--trace: traces: is a folder: add the name of a file" in capsys.readouterr().err
    for mode in ([], ["--speedup"]):
        assert main(["profile", *mode, "--steps", "0"]) == 2
        assert "--steps: is 0: write a number from 1 on" in capsys.readouterr().err


def test_options_that_do_not_fit_each_other_are_refused(capsys) -> None:
    for options, message in (
        (["--speedup", "--fit-batch"], "--speedup and --fit-batch are two measurements: give one of them"),
        (["--speedup", "--trace", "trace.json"], "--trace has no meaning with --speedup: leave it out"),
        (["--speedup", "--log-to-run"], "--log-to-run has no meaning with --speedup: leave it out"),
        (["--fit-batch", "--steps", "3"], "--steps has no meaning with --fit-batch: leave it out"),
        (["--output", "folder"], "--output needs --speedup"),
    ):
        assert main(["profile", *options]) == 2
        assert capsys.readouterr().err == f"error: profile: {message}\n"
