"""`report` writes one page and one model card, whose numbers are those of the files, and never mixes two models."""

import csv
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pyarrow import parquet

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.prepared import read_record
from pipeline.core.section import leaves
from pipeline.evaluate.reports import predictions
from pipeline.inference import model_file, networks
from pipeline.runs.journal import Journal, RunInfo
from pipeline.tools.report import results, samples
from tests import project
from tests.project import TABLE
from tests.tools.report.pages import Read, card_parts, plain_text

QUICK = {"train.steps": 8, "train.report_every_steps": 2, "train.validate_every_steps": 4}
CARD, PAGE = Path("reports/report-model-card.md"), Path("reports/report.html")
SCRIPT, PIPE, REVERSED = "<script>alert(1)</script>", "a|b `*_", "\u202eevil"


pytestmark = pytest.mark.usefixtures("unplotted")  # a report does not read the figures


def finish(folder: Path, setting: str, changes: dict[str, Any], *, hostile: bool = False, tracking: bool = True) -> Path:
    """Run the three stages of a setting. With `hostile`, the classes have names that could break a page."""
    project.make(folder, {**QUICK, **changes}, setting=setting)
    if hostile:
        text = (folder / TABLE).read_text(encoding="utf-8")
        for name, other in (("colour", SCRIPT), ("fruit", PIPE)):
            text = text.replace(f"{name}\t", f"{other}\t{REVERSED} <b>{other}</b> ")
        (folder / TABLE).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PIPELINE_TRACKING", "true" if tracking else "false")
        patch.setattr("pipeline.runs.mlflow.mirror_process.start", lambda *_: None)  # the journal is enough, and it keeps what it has
        assert main(["prepare"]) == main(["train"]) == main(["evaluate"]) == 0
    return folder


@pytest.fixture(scope="module")
def digits(unplotted: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(tmp_path_factory.mktemp("digits"), "digits", {})


@pytest.fixture(scope="module")
def written(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the checkout's report: `report.html` and the model card."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(digits)
        patch.setenv("PIPELINE_TRACKING", "false")
        folder = tmp_path_factory.mktemp("written")
        assert main(["report", "--output", str(folder / "report.html")]) == 0
    return folder


@pytest.fixture
def page(written: Path) -> Read:
    return Read((written / PAGE.name).read_text(encoding="utf-8"))


@pytest.fixture
def checkout(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy of the finished checkout, which is the working folder."""
    shutil.copytree(digits, tmp_path / "checkout", symlinks=True)
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    threads = torch.get_num_threads()
    yield tmp_path / "checkout"
    torch.set_num_threads(threads)


def commit_all(folder: Path) -> str:
    """Make the folder a git repository with one commit, and return the commit."""
    for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b.c commit -q -m all"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def report(*arguments: str) -> Read:
    assert main(["report", *arguments]) == 0
    return Read(PAGE.read_text(encoding="utf-8"))


def test_every_number_of_the_metrics_is_on_the_page_as_it_is_in_the_file(digits: Path, page: Read) -> None:
    written = {
        f"{path}#{name}": json.dumps(value)
        for path in ("metrics/evaluate.json", "metrics/train.json")
        for name, value in leaves(json.loads((digits / path).read_text()))
    }
    found = {key: value for key, value in page.numbers if key}
    assert set(found) <= set(written)
    assert found == {key: written[key] for key in found}
    assert set(written) - set(found) == {"metrics/evaluate.json#model", "metrics/train.json#steps", "metrics/train.json#exported_step"}


def test_the_scores_of_the_training_are_those_of_the_exported_weights(checkout: Path) -> None:
    project.write_params(checkout, {"train.export_weights": "best", "optimizer.learning_rate": 0.5})  # too high: it gets worse
    assert main(["train"]) == main(["evaluate"]) == 0
    trained = json.loads((checkout / "metrics/train.json").read_text())
    assert trained["exported_step"] < trained["steps"]
    assert trained["last"]["valid"]["loss"] != trained["valid"]["loss"]
    with (checkout / "plots/train/history.csv").open() as file:
        (row,) = (row for row in csv.DictReader(file) if int(row["step"]) == trained["exported_step"])
    report()
    line = next(line for line in CARD.read_text(encoding="utf-8").splitlines() if line.startswith("| loss |"))
    assert line.split("|")[3] == f" {float(row['valid/loss']):.4f} " == f" {trained['valid']['loss']:.4f} "


def test_the_model_card_has_the_metadata_of_hugging_face(digits: Path, written: Path) -> None:
    metadata, tokens = card_parts((written / CARD.name).read_text(encoding="utf-8"))
    scores = json.loads((digits / "metrics/evaluate.json").read_text())["test"]
    (entry,) = metadata["model-index"]
    (result,) = entry["results"]
    assert (entry["name"], metadata["datasets"], metadata["pipeline_tag"]) == ("mlp on digits", ["digits"], "image-classification")
    assert "license" not in metadata
    assert {each["type"]: each["value"] for each in result["metrics"]} == {
        ("f1" if name == "macro_f1" else name): scores[name]
        for name in ("loss", "accuracy", "top_k_accuracy", "macro_f1", "expected_calibration_error")
    }
    assert f"{scores['accuracy']:.4f}" in plain_text(tokens)


def test_the_page_loads_and_runs_nothing(page: Read) -> None:
    assert not {"script", "link", "iframe", "object", "form"} & set(page.tags)
    sources = [each.attributes["src"] for each in page.elements if each.tag == "img"]
    assert len(sources) > 20
    assert all(source.startswith(("data:image/png;base64,", "data:image/svg+xml;base64,")) for source in sources)
    assert not any(name.startswith("on") for each in page.elements for name in each.attributes)
    assert "http" not in page.page.replace("http-equiv", "")


def test_all_sections_of_a_tracked_classifier_are_there(digits: Path, page: Read) -> None:
    overview = ["Result", "Compared with the run before", "Errors"]
    measured = ["All scores", "Training", "Wrong samples", "Calibration"]
    assert page.titles == [*overview, *measured, "Model", "Data", "Cost", "Provenance", "Reproduce"]
    assert page.page.count("data:image/svg+xml") == 5
    scores = json.loads((digits / "metrics/evaluate.json").read_text())["test"]
    interval = scores["accuracy_interval"]
    assert f"95% interval {interval['low']:.4f} to {interval['high']:.4f}" in page.text
    assert files.digest(digits / "models/model.safetensors") in page.text
    assert "training time" in page.text


def test_of_written_texts_the_chrf_of_the_run_before_is_compared_too() -> None:
    record: Any = SimpleNamespace(metrics=lambda _: {"test/exact_match": 0.0, "test/chrf": 10.0})
    evidence: Any = SimpleNamespace(evaluation=SimpleNamespace(scores={"exact_match": 0.0, "chrf": 12.5}, origin=None))
    assert [row[0] for row in results.score_rows(record, evidence)] == ["exact match", "chrf"]


def test_the_run_before_is_compared_by_its_scores_and_parameters(checkout: Path, page: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "This checkout has no earlier run of mlp on digits." in page.text
    earlier = json.loads(Path("metrics/evaluate.json").read_text())["test"]
    project.write_params(checkout, {**QUICK, "optimizer.learning_rate": 0.02})
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setattr("pipeline.runs.mlflow.mirror_process.start", lambda *_: None)
    Journal.create(checkout, stage="train", info=RunInfo(subject="mlp on digits")).close()  # a training that was stopped
    assert main(["train"]) == main(["evaluate"]) == 0
    now = json.loads(Path("metrics/evaluate.json").read_text())["test"]
    page, (first, _, second) = report(), (path.name.rpartition("-")[2] for path in sorted(Path(".pipeline/journal").iterdir()))
    begin = page.texts.index("Compared with the run before", page.texts.index("Result") + 20)
    texts = [text for each in page.texts[begin:] if (text := each.strip())]
    scores = [[f"{earlier[name]:.4f}", f"{now[name]:.4f}", f"{now[name] - earlier[name]:+.4f}"] for name in ("accuracy", "loss")]
    assert texts[4:12] == ["accuracy", *scores[0], "loss", *scores[1]]
    assert texts[16:19] == ["optimizer.learning_rate", "0.003", "0.02"]
    assert "Data, code, requirements.lock and machine are the same." in texts
    assert f"compare {first} {second}" in page.text


def test_samples_that_stand_in_two_splits_are_counted(checkout: Path, page: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stand in two splits" not in page.text
    record = read_record(checkout / "data/prepared")
    test = record.splits["test"].model_copy(update={"also_in": {"train": 113, "valid": 0}})
    shared = record.model_copy(update={"splits": {**record.splits, "test": test}})
    monkeypatch.setattr(samples, "read_record", lambda _: shared)
    assert f"Samples with equal inputs stand in two splits: 113 of {test.samples} samples of test in train." in report().text


def test_wrong_samples_are_those_of_the_evaluation_and_are_not_predicted_again(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "predict", lambda *_, **__: pytest.fail("the evaluation has the predictions"))
    page = report()
    lines = (checkout / "plots/evaluate/confusion.csv").read_text().splitlines()[1:]
    wrong = [line for line in lines if len(set(line.split(","))) == 2]
    shown = [each.attributes["alt"] for each in page.elements if each.tag == "img" and "predicted" in each.attributes["alt"]]
    assert len(shown) == min(24, len(wrong)) > 0
    assert f"{len(shown)} of {len(wrong)} wrong samples." in page.text
    assert {alt.replace("true ", "").replace(" predicted ", "").rpartition(", p")[0] for alt in shown} <= set(wrong)
    confidences = [float(alt.rpartition("= ")[2]) for alt in shown]
    assert confidences == sorted(confidences, reverse=True)


def test_the_same_files_give_the_same_bytes_in_another_folder_and_each_page_has_its_own_card(checkout: Path, written: Path) -> None:
    report()
    assert [path.read_bytes() for path in (PAGE, CARD)] == [(written / path.name).read_bytes() for path in (PAGE, CARD)]
    CARD.write_bytes(b"edited")
    report("--output", "reports/other.html")
    assert Path("reports/other-model-card.md").read_bytes() == (written / CARD.name).read_bytes()
    assert CARD.read_bytes() == b"edited"


def test_metrics_of_another_model_are_not_used(checkout: Path) -> None:
    """The scores of the file say that they are of another model, so they are computed again, and are the same."""
    written = json.loads((checkout / "metrics/evaluate.json").read_text())
    changed = {"test": {**written["test"], "accuracy": 0.123456}, "model": "0" * 12}
    (checkout / "metrics/evaluate.json").write_text(json.dumps(changed))
    page = report()
    assert not any(key.startswith("metrics/evaluate.json") for key, _ in page.numbers)
    assert json.dumps(written["test"]["accuracy"]) in [value for _, value in page.numbers]
    assert "computed for this report" in page.text
    assert "0.1235" not in page.text


def test_a_run_whose_model_is_no_longer_the_checkouts_is_evaluated_anew_with_the_curves_of_its_journal(checkout: Path, page: Read) -> None:
    (journal,) = Path(".pipeline/journal").iterdir()
    earlier = page
    for path in ("metrics/evaluate.json", "metrics/train.json", "plots/train/history.csv", "models/model.safetensors"):
        Path(path).unlink()
    page = report(journal.name)
    charts = [line for line in earlier.page.splitlines() if "image/svg" in line and "loss (nats)" in line]
    assert charts
    assert charts == [line for line in page.page.splitlines() if "image/svg" in line and "loss (nats)" in line]
    assert {value for key, value in earlier.numbers if "#test." in key} <= {value for _, value in page.numbers}
    assert not any(key for key, _ in page.numbers)


def test_without_the_data_of_the_model_its_scores_cannot_be_computed(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("data/prepared")
    page = report()  # its scores are recorded
    assert "is not the data that this model was trained on" in page.text
    assert "Wrong samples" not in page.titles
    Path("metrics/evaluate.json").unlink()
    assert main(["report"]) == 2
    assert "has no scores of this model" in capsys.readouterr().err


def test_tables_of_another_or_a_killed_evaluation_are_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = checkout / "predictions/test.parquet"
    predictions.write(table, parquet.read_table(table).slice(1), origin="")
    assert main(["report"]) == 2
    assert "has the predictions of another evaluation" in capsys.readouterr().err
    table.write_bytes(b"PAR1")
    assert main(["report"]) == 2
    assert "predictions/test.parquet: cannot be read" in capsys.readouterr().err
    table.unlink()
    assert main(["report"]) == 2
    assert (
        "test.parquet: is missing, and belongs to metrics/evaluate.json: run `dvc pull predictions/test.parquet` or `dvc repro -f evaluate`"
        in capsys.readouterr().err
    )
    assert not PAGE.exists()


def test_what_cannot_be_reported_is_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--output", "report.txt"], "should be an HTML file"),
        (["--output", "params.yaml/report.html"], "params.yaml: a part of this path is a file"),
        (["no.safetensors"], "no.safetensors: there is no such file"),
    ):
        assert main(["report", *arguments]) == 2
        assert message in capsys.readouterr().err
        assert not Path("reports").exists()


def test_the_level_of_the_interval_is_not_rounded_to_a_certainty(checkout: Path) -> None:
    project.write_params(checkout, {**QUICK, "evaluate.confidence_level": 0.995})
    assert main(["evaluate"]) == 0
    assert "99.5% interval" in report().text


def test_without_a_journal_there_is_no_cost_and_no_commit_and_the_source_is_that_of_the_data(checkout: Path, page: Read) -> None:
    assert "no journal" not in page.text  # the journal is there, but git could not tell it the commit
    shutil.rmtree(".pipeline")
    found = report()
    assert "Cost" not in found.titles
    assert "mlp on digits" in found.text
    assert "source.name" in found.text
    assert "unknown: no journal of the training is here" in found.text
    assert "# check out the commit with the code of this model" in found.text


def test_the_source_is_not_that_of_an_evaluation_with_other_parameters(checkout: Path, monkeypatch) -> None:
    shutil.rmtree(".pipeline")
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setattr("pipeline.runs.mlflow.mirror_process.start", lambda *_: None)
    project.write_params(checkout, {**QUICK, "source.valid": 0.25})
    assert main(["prepare"]) == main(["evaluate"]) == 0
    text = report().text
    assert "source.valid" not in text
    assert "the source of the data is not known here" in text


def test_uncommitted_changes_of_code_are_named_and_those_of_parameters_are_commands(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(".gitignore").write_text("reports/\n")
    commit = commit_all(checkout)
    (checkout / "requirements.lock").write_text("changed")
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setattr("pipeline.runs.mlflow.mirror_process.start", lambda *_: None)
    assert main(["train"]) == main(["evaluate"]) == 0
    text = report().text
    assert f"{commit}, with uncommitted changes:  M requirements.lock" in text
    assert "# the uncommitted changes are needed too:  M requirements.lock" in text
    assert f"git checkout {commit}" in text


FLAGS = {"MKL_CBWR": "$(rm z)", "NVIDIA_TF32_OVERRIDE": "", ";rm": "z"}


def test_the_commands_cannot_contain_those_of_a_strangers_model_file(checkout: Path) -> None:
    model, manifest = model_file.load(checkout / "models/model.safetensors")
    changed = manifest.model_copy(update={"fingerprint": {**manifest.fingerprint, "device": "cpu; rm -rf x\nrm y", "flags": FLAGS}})
    model_file.export(checkout / "evil.safetensors", model.network.state_dict(), changed)
    text = report("evil.safetensors").text
    assert "PIPELINE_DEVICE='cpu; rm -rf x\nrm y' PIPELINE_THREADS=" in text
    assert "';rm'=z MKL_CBWR='$(rm z)' dvc repro" in text


def test_hostile_names_and_texts_of_the_data_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finish(tmp_path, "texts", {}, hostile=True, tracking=False))
    page = report()
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert SCRIPT in page.text
    assert "\u202e" not in page.page + CARD.read_text(encoding="utf-8")
    assert "\\u202e" in page.text
    _, tokens = card_parts(CARD.read_text(encoding="utf-8"))
    assert not [token for token in tokens if token.type.startswith("html")]
    assert PIPE in plain_text(tokens)
    assert "Wrong samples" in page.titles


def test_a_language_model_has_its_perplexity_its_texts_and_no_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finish(tmp_path, "code", {}, tracking=False))
    Path("plots/evaluate/reliability.csv").write_text("bin_centre,confidence,accuracy,samples\n0.5,0.5,0.5,1\n")  # of an earlier task
    page = report()
    scores = json.loads(Path("metrics/evaluate.json").read_text())["test"]
    assert page.titles[:5] == ["Result", "Training", "All scores", "Generated text", "Least expected passages"]
    assert "baseline: frequencies of tokens" in page.text
    assert not {"Errors", "Calibration", "Wrong samples", "Cost"} & set(page.titles)
    headline = next(each for each in page.elements if each.attributes.get("data-key") == "metrics/evaluate.json#test.perplexity")
    assert headline.attributes["value"] == json.dumps(scores["perplexity"])
    metadata, tokens = card_parts(CARD.read_text(encoding="utf-8"))
    assert metadata["pipeline_tag"] == "text-generation"
    with Path("plots/evaluate/loss_by_position.csv").open(encoding="utf-8", newline="") as file:
        first, *_, last = (f"{float(row['loss']):.4f}" for row in csv.DictReader(file))
    assert {first, last} <= set(plain_text(tokens).split()), "the loss by position"


def test_the_report_of_two_models_begins_with_their_comparison(checkout: Path) -> None:
    (journal,) = Path(".pipeline/journal").iterdir()
    shutil.copy("models/model.safetensors", "other.safetensors")
    project.write_params(checkout, {**QUICK, "optimizer.learning_rate": 0.02})
    assert main(["train"]) == main(["evaluate"]) == 0
    page = report("other.safetensors", "models/model.safetensors")
    assert page.titles[:2] == ["What differs", "Result"]
    assert page.titles.count("Model") == 2
    assert "Only optimizer.learning_rate differs." in page.text
    assert "significant" in page.text
    metadata, _ = card_parts(CARD.read_text(encoding="utf-8"))
    first, second = (each["results"][0]["metrics"][1]["value"] for each in metadata["model-index"])
    assert second == json.loads(Path("metrics/evaluate.json").read_text())["test"]["accuracy"]
    only_of_the_second = [key for key, _ in page.numbers if key == "metrics/train.json#best.value"]
    assert len(only_of_the_second) == 1
    assert journal.name in page.text
    assert first != second
