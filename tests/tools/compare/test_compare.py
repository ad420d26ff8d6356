"""`compare` prints what differs and nothing else, and tests models on the same test split."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core.environment import Environment, Paths
from pipeline.tools.compare.comparing import compare as compared
from pipeline.tools.compare.differences import Difference, differences, files_between
from pipeline.tools.compare.models import ComparedModel
from pipeline.tracking import mirror_process
from tests import project
from tests.tools.compare.conftest import Checkout, Compare, train

Models = Callable[..., list[ComparedModel]]
RATE = Difference("parameters", "optimizer.learning_rate", ("0.003", "0.03"))


def test_two_runs_that_differ_in_one_parameter_print_that_one_alone(models: Models, working: Checkout, compare: Compare) -> None:
    found = differences(models("first", "rate"))
    assert found.rows == (RATE,)
    assert (found.conclusion, found.notes) == ("Only optimizer.learning_rate differs.", ())
    lines = compare(working.runs["first"], working.runs["rate"])
    start = lines.index("what differs")
    assert [line.split() for line in lines[start + 2 : start + 4]] == [["parameters", "optimizer.learning_rate", "0.003", "0.03"], []]


def test_two_runs_that_differ_in_data_alone_say_so(models: Models) -> None:
    found = differences(models("first", "data"))
    assert {(row.kind, row.name) for row in found.rows} == {
        ("parameters", "source.valid"),
        *(("data", name) for name in ("prepared data", "train split", "valid split")),
    }
    assert found.conclusion == "Only the data (source.valid) differ."


def test_a_change_of_code_is_named_beside_the_parameter(models: Models) -> None:
    found = differences(models("first", "code"))
    assert [(row.kind, row.name) for row in found.rows] == [
        ("parameters", "optimizer.learning_rate"),
        ("code", "code of train"),
        ("code", "commit"),
    ]
    assert found.rows[-1].remark == "1 file differs: pipeline/models/mlp.py"
    assert found.conclusion == (
        "A difference of the scores can come from optimizer.learning_rate or the code, and cannot be attributed to one of them."
    )


def test_the_file_of_another_model_is_no_further_cause_while_the_commit_is_the_same(models: Models) -> None:
    first, second = models("first", "first")
    params = second.manifest.params | {"model": second.manifest.params["model"] | {"name": "convnet"}}
    changed = second.manifest.model_copy(update={"params": params, "inputs": {**second.manifest.inputs, "code": "c" * 64}})
    found = differences([first, ComparedModel("other", "0" * 64, changed, {}, second.record)])
    assert [(row.name, row.remark) for row in found.rows] == [("model.name", ""), ("code of train", "includes the file of the model")]
    assert found.causes == ("model.name",)
    unrecorded = ComparedModel("other", "0" * 64, changed, {}, replace(second.record, provenance={}))
    assert differences([first, unrecorded]).causes == ("model.name", "the code")


def test_a_section_against_null_is_one_difference(models: Models) -> None:
    first, second = models("first", "first")
    changed = second.manifest.model_copy(update={"params": second.manifest.params | {"augment": None}})
    for pair in ([first, replace(second, manifest=changed)], [replace(second, manifest=changed), first]):
        (row,) = differences(pair).rows
        assert (row.name, "null" in row.values) == ("augment", True)
        assert "flip=none" in str(row.values)
        assert differences(pair).causes == ("augment",)


def test_a_commit_in_a_record_cannot_be_an_option_of_git(working: Checkout, tmp_path: Path) -> None:
    output = tmp_path / "written"
    assert files_between(f"--output={output}", "HEAD") is None
    assert files_between("HEAD", f"--output={output}") is None
    assert not output.exists()


def test_lock_machine_and_starting_weights_are_compared(models: Models) -> None:
    first, second = models("first", "first")
    fingerprint = {**second.manifest.fingerprint, "threads": 7}
    inputs = {**second.manifest.inputs, "lock": "e" * 64, "weights": "f" * 64}
    changed = second.manifest.model_copy(update={"inputs": inputs, "fingerprint": fingerprint, "precision": "bf16"})
    found = differences([first, ComparedModel("other", "0" * 64, changed, {}, second.record)])
    assert [(row.kind, row.name, row.values[1]) for row in found.rows] == [
        ("data", "starting weights", "f" * 12),
        ("lock", "requirements.lock", "e" * 12),
        ("hardware", "threads", "7"),
        ("hardware", "precision", "bf16"),
    ]
    assert found.causes == ("the data", "requirements.lock", "the machine")


def test_identical_models_say_same_bytes(working: Checkout, compare: Compare) -> None:
    lines = compare(working.runs["code"], "models/model.safetensors")
    assert "Same bytes: the model files are identical." in lines
    assert not any("paired test" in line for line in lines)


def test_three_models_are_each_tested_against_the_first(working: Checkout, compare: Compare) -> None:
    lines = compare(*(working.runs[name] for name in ("first", "rate", "data")))
    tests = [line for line in lines if line.startswith("paired test of ")]
    assert [line.split(":")[0] for line in tests] == ["paired test of A and B", "paired test of A and C"]
    assert "A and B: Only optimizer.learning_rate differs." in lines
    assert "A and C: Only the data (source.valid) differ." in lines


def test_the_predictions_made_anew_give_the_recorded_scores_and_the_same_output_every_time(working: Checkout, compare: Compare) -> None:
    names = working.runs["first"], working.runs["code"]
    (test,) = compared(names, Paths(), Environment.read()).tests
    recorded = json.loads(Path("metrics/evaluate.json").read_bytes())["test"]
    assert (test.accuracy.second, test.loss.second) == (recorded["accuracy"], pytest.approx(recorded["loss"], rel=1e-12))
    assert test.num_samples == recorded["samples"]
    assert test.discordant
    gained = test.discordant.only_second - test.discordant.only_first
    assert gained == round(test.accuracy.difference * test.num_samples)
    assert test.accuracy.low < test.accuracy.difference < test.accuracy.high
    assert compare(*names) == compare(*names)


def test_swapping_two_models_changes_the_signs_alone(working: Checkout) -> None:
    names = working.runs["first"], working.runs["rate"]
    (test,) = compared(names, Paths(), Environment.read()).tests
    (swapped,) = compared(names[::-1], Paths(), Environment.read()).tests
    assert (swapped.loss.low, swapped.loss.high) == (pytest.approx(-test.loss.high), pytest.approx(-test.loss.low))
    assert (swapped.accuracy.low, swapped.accuracy.high) == (pytest.approx(-test.accuracy.high), pytest.approx(-test.accuracy.low))
    assert {test.second_is_worse, swapped.second_is_worse} <= {test.is_significant, False}


def test_finished_runs_are_compared_and_reported_while_another_training_has_replaced_their_files(
    changeable: Checkout, compare: Compare, refused: Callable[..., str]
) -> None:
    """The state in which a running `dvc repro` on other data leaves a checkout whose results were not committed."""
    names = changeable.runs["first"], changeable.runs["rate"]
    before = compare(*names)
    shutil.rmtree("data/prepared")
    for name in ("models/model.safetensors", "metrics/evaluate.json", "metrics/train.json", "dvc.lock"):
        Path(name).unlink()
    project.write_params(changeable.folder, setting="code")
    assert compare(*names) == before
    assert any(line.startswith("paired test of A and B") for line in before)
    assert main(["report", names[0]]) == 0
    assert f"name a finished run, such as {changeable.runs['code']}" in refused("report")


def test_revisions_and_experiments_are_read_from_git_and_the_cache_of_dvc(models: Models, working: Checkout) -> None:
    first, faster, code = models("first", "faster", "code")
    by_run, rate = models(working.runs["first"], working.runs["rate"])
    assert (first.digest, faster.digest) == (by_run.digest, rate.digest)
    assert first.record.metrics == by_run.record.metrics
    assert first.record.splits == by_run.record.splits
    revision, experiment = models("refs/tags/first", "faster")
    assert revision.record.origin.startswith("revision ")
    assert differences([revision, experiment]).rows == (RATE,)
    assert code.digest != first.digest


def test_markdown_has_tables_and_escapes_names(working: Checkout, compare: Compare) -> None:
    lines = compare(working.runs["first"], working.runs["rate"], "--markdown")
    assert "| parameters | optimizer.learning\\_rate | 0.003 | 0.03 |  |" in lines
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert sum(set(line) <= set("| -") for line in tables) == 4


def test_two_language_models_are_tested_by_their_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compare: Compare) -> None:
    folder = project.make(tmp_path, setting="code-lstm")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(mirror_process, "start", lambda *_: None)
    first = train(folder, {}, "prepare", "train", "evaluate", setting="code-lstm")
    second = train(folder, {"optimizer.learning_rate": 0.03}, "train", "evaluate", setting="code-lstm")
    (test,) = compared([first, second], Paths(), Environment.read()).tests
    recorded = json.loads(Path("metrics/evaluate.json").read_bytes())["test"]
    assert (test.loss.second, test.accuracy.second) == (pytest.approx(recorded["loss"], rel=1e-9), pytest.approx(recorded["accuracy"]))
    assert (test.discordant, test.num_samples) == (None, recorded["samples"])
    assert re.search("by the interval of the loss", compare(first, second)[-1])


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model file of a classifier of texts."""
    folder = project.make(tmp_path_factory.mktemp("texts"), setting="texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PIPELINE_TRACKING", "false")
        patch.setenv("PIPELINE_DEVICE", "cpu")
        assert main(["prepare"]) == main(["train"]) == 0
    return folder / "models/model.safetensors"


def test_a_model_of_another_task_differs_and_is_not_tested(working: Checkout, texts: Path, compare: Compare) -> None:
    lines = compare(working.runs["first"], str(texts))
    assert any(line.split()[:4] == ["parameters", "model.name", "mlp", "recurrent"] for line in lines)
    assert "its commit, uncommitted changes and source parameters are unknown" in "\n".join(lines)
    (reason,) = [line for line in lines if line.startswith("No paired test: ")]
    assert reason == (
        f"No paired test: {texts}: cannot be compared with {working.runs['first']}: the two models have different tasks: "
        "classification of image inputs, and classification of text inputs"
    )


def test_other_test_data_is_named_as_the_reason_for_no_paired_test(
    changeable: Checkout, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_process, "start", lambda *_: None)
    shutil.rmtree(".dvc/cache")  # it has the test data of both runs
    project.write_params(changeable.folder, {"source.test": 0.3})
    assert main(["prepare"]) == 0
    first, rate = changeable.runs["first"], changeable.runs["rate"]
    (reason,) = [line for line in compare(first, rate) if line.startswith("No paired test: ")]
    assert reason.startswith(f"No paired test: {first}: its test split is neither in data/prepared nor in DVC's cache: ")
    other = train(changeable.folder, {"source.test": 0.3}, "train", "evaluate")
    (reason,) = [line for line in compare(other, rate) if line.startswith("No paired test: ")]
    assert re.fullmatch(
        rf"No paired test: {rate}: was evaluated on another test split \(digest \w{{12}}\) than {other} \(\w{{12}}\): train one of .*",
        reason,
    )
    shutil.rmtree("data/prepared")
    assert compare(changeable.runs["first"], changeable.runs["rate"])[-1].startswith("No paired test: data/prepared/spec.json: is missing")


def test_a_bare_file_with_other_prepared_data_of_the_same_test_split_needs_its_run(changeable: Checkout, compare: Compare) -> None:
    shutil.copy(changeable.folder / ".pipeline/journal" / changeable.runs["data"] / "model.safetensors", "bare.safetensors")
    assert any("paired test of A and B" in line for line in compare(changeable.runs["first"], "bare.safetensors")), "its run is here"
    shutil.rmtree(changeable.folder / ".pipeline/journal" / changeable.runs["data"])
    assert "name its run, or train it again" in compare(changeable.runs["first"], "bare.safetensors")[-1]


@pytest.mark.parametrize("name", ["nothing", "run-000009-20261123T000000Z-00000000", "HEAD~99", "--output=x", "a\nb"])
def test_an_unknown_name_is_refused(working: Checkout, refused: Callable[..., str], name: str) -> None:
    message = refused("compare", working.runs["first"], "--", name)
    assert (
        "is not a model file, run, DVC experiment or git revision of this checkout: give one of them, such as the newest run, run-"
        in message
    )
    assert len(message.splitlines()) == 1


def test_a_missing_file_and_a_revision_without_a_model_are_refused(changeable: Checkout, refused: Callable[..., str]) -> None:
    assert "missing.safetensors: is missing" in refused("compare", "models/model.safetensors", "missing.safetensors")
    assert "first~1: this revision has no dvc.lock, so it names no model: run `dvc repro`" in refused(
        "compare", "refs/tags/first", "first~1"
    )
    shutil.rmtree(changeable.folder / ".dvc/cache")
    message = refused("compare", "models/model.safetensors", "refs/tags/first")
    assert "refs/tags/first: could not read the model of this revision" in message
    assert "dvc pull models/model.safetensors" in message


def test_a_damaged_file_is_refused(changeable: Checkout, refused: Callable[..., str]) -> None:
    content = bytearray(Path("models/model.safetensors").read_bytes())
    content[-3] ^= 1
    Path("damaged.safetensors").write_bytes(content)
    assert "damaged.safetensors: " in refused("compare", "models/model.safetensors", "damaged.safetensors")


def test_too_many_models_are_refused(working: Checkout, refused: Callable[..., str]) -> None:
    assert "name 26 at most" in refused("compare", *["models/model.safetensors"] * 27)
