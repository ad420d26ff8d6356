"""`compare` prints what differs and nothing else, and tests models on the same test split."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.environment import Environment, Paths
from pipeline.core.raw_dataset import TEST
from pipeline.inference.machine import Machine
from pipeline.runs.provenance import code_between
from pipeline.tools.compare.comparing import DifferingRow, causes, conclusion, differences, paired_tests
from pipeline.tools.compare.models import ComparedModel, Facts, Paired, read
from tests import project
from tests.specs import text_spec
from tests.tools.compare.conftest import Checkout, Compare

Models = Callable[..., list[ComparedModel]]
RATE = DifferingRow("parameters", "optimizer.learning_rate", ("0.003", "0.03"))


def paired_with(models: list[ComparedModel]) -> list[Paired | str]:
    return paired_tests(models, Paths(), Machine.set_up(Environment.read()))


@pytest.mark.parametrize(
    ("other", "rows", "text"),
    [
        ("rate", ["optimizer.learning_rate"], "Of what is recorded and can affect a result, only optimizer.learning_rate differs."),
        (
            "data",
            ["source.valid", "prepared data"],
            "Of what is recorded and can affect a result, only the data (source.valid) differs.",
        ),
        (
            "code",
            ["optimizer.learning_rate", "code of train", "commit"],
            "A difference of the scores can come from optimizer.learning_rate or the code, and cannot be attributed to one of them.",
        ),
    ],
)
def test_only_what_differs_is_listed_and_every_cause_is_named(models: Models, other: str, rows: list[str], text: str) -> None:
    first, second = models("first", other)
    found = differences([first, second])
    assert ([row.name for row in found], conclusion(first, second)) == (rows, text)
    assert (found[-1].remark == "1 file changed: pipeline/models/mlp.py") is (other == "code")


def test_the_file_of_another_model_is_no_further_cause_while_the_commit_is_the_same(models: Models) -> None:
    first, later = models("first", "code")

    def with_code(facts: Facts, **params: dict[str, Any]) -> ComparedModel:
        sections = {key: first.manifest.params[key] | section for key, section in params.items()}
        update = {"params": first.manifest.params | sections, "inputs": {**first.manifest.inputs, "code": "c" * 64}}
        return ComparedModel("other", "0" * 64, first.manifest.model_copy(update=update), {}, facts)

    convnet = {"model": {"name": "convnet"}}
    assert causes(first, with_code(first.facts, **convnet)) == ["model.name"]
    assert causes(first, with_code(replace(first.facts, provenance={}), **convnet)) == ["model.name", "the code"]
    assert causes(first, with_code(later.facts)) == ["the code"]
    assert causes(first, with_code(first.facts, loss={"name": "other"})) == ["loss.name", "the code"]


def test_a_key_that_moved_since_an_earlier_version_is_no_difference(models: Models) -> None:
    first, second = models("first", "first")
    params = {name: dict(section) if isinstance(section, dict) else section for name, section in second.manifest.params.items()}
    params["train"]["label_smoothing"] = params.pop("loss")["label_smoothing"]
    assert differences([first, replace(second, manifest=second.manifest.model_copy(update={"params": params}))]) == []


def test_a_commit_in_a_record_cannot_be_an_option_of_git(working: Checkout, tmp_path: Path) -> None:
    output = tmp_path / "written"
    assert code_between(f"--output={output}", "HEAD") is None
    assert code_between("HEAD", f"--output={output}") is None
    assert not output.exists()


def test_lock_machine_and_starting_weights_are_compared(models: Models) -> None:
    first, second = models("first", "first")
    fingerprint = {**second.manifest.fingerprint, "threads": 7}
    inputs = {**second.manifest.inputs, "lock": "e" * 64, "weights": "f" * 64}
    changed = second.manifest.model_copy(update={"inputs": inputs, "fingerprint": fingerprint, "precision": "bf16", "channels_last": True})
    other = ComparedModel("other", "0" * 64, changed, {}, second.facts)
    assert [(row.kind, row.name, row.values[1]) for row in differences([first, other])] == [
        ("data", "starting weights", "f" * 12),
        ("lock", "requirements.lock", "e" * 12),
        ("hardware", "precision", "bf16"),
        ("hardware", "channels_last", "true"),
        ("hardware", "threads", "7"),
    ]
    assert causes(first, other) == ["the data", "requirements.lock", "the machine"]


def test_identical_models_say_same_bytes(working: Checkout, compare: Compare) -> None:
    assert "A and B: Same bytes: the model files are identical." in compare(working.runs["code"], "models/model.safetensors")


def test_three_models_are_each_tested_against_the_first(working: Checkout, compare: Compare) -> None:
    lines = compare(*(working.runs[name] for name in ("first", "rate", "data")))
    samples = "the samples of C differ from those of A, or no run records them, so their metrics are not comparable."
    assert [line for line in lines if line.endswith("not comparable.")] == [f"valid: {samples}"], "the test split is the same"
    tests = [line for line in lines if line.startswith("paired test of ")]
    assert [line.split(":")[0] for line in tests] == ["paired test of A and B", "paired test of A and C"]
    table = [line.split() for line in lines[lines.index("what differs") :]]
    assert ["parameters", "optimizer.learning_rate", "0.003", "0.03", "0.003"] in table
    assert {row[0] for row in table[: table.index([], 4)] if row} >= {"parameters", "data"}
    assert "A and B: Of what is recorded and can affect a result, only optimizer.learning_rate differs." in lines


def test_the_predictions_give_the_recorded_scores_and_the_same_test_every_time(models: Models) -> None:
    (test,) = paired_with(models("first", "code"))
    assert isinstance(test, Paired)
    recorded = json.loads(Path("metrics/evaluate.json").read_bytes())["test"]
    assert (test.accuracy.second, test.loss.second) == (recorded["accuracy"], pytest.approx(recorded["loss"], rel=1e-12))
    assert test.num_samples == recorded["samples"]
    assert test.discordant
    gained = test.discordant.only_second - test.discordant.only_first
    assert gained == round(test.accuracy.difference * test.num_samples)
    assert test.accuracy.low < test.accuracy.difference < test.accuracy.high
    assert paired_with(models("first", "code")) == [test]


def test_finished_runs_are_compared_but_not_tested_while_another_training_has_replaced_their_files(changeable, compare, refused) -> None:
    """The state in which a running `dvc repro` on other data leaves a checkout whose results were not committed."""
    names = changeable.runs["first"], changeable.runs["rate"]
    before = compare(*names)
    shutil.rmtree("data/prepared")
    for name in ("models/model.safetensors", "metrics/evaluate.json", "metrics/train.json", "dvc.lock"):
        Path(name).unlink()
    project.write_params(changeable.folder, setting="code")
    start = next(number for number, line in enumerate(before) if line.startswith("paired test of A and B"))
    *lines, reason = compare(*names)
    assert lines == before[:start]
    assert reason.startswith("No paired test: data/prepared/spec.json: is missing")
    assert f"name a finished run, such as {changeable.runs['code']}" in refused("report")


def test_revisions_and_experiments_have_the_facts_of_their_runs(models: Models, working: Checkout) -> None:
    first, faster, code = models("refs/tags/first", "faster", "code")
    by_run, rate = models(working.runs["first"], working.runs["rate"])
    assert (first.digest, faster.digest) == (by_run.digest, rate.digest)
    assert first.facts == by_run.facts
    assert differences([first, faster]) == [RATE]
    assert code.digest != first.digest


def test_revisions_without_runs_are_read_from_git_and_tested(changeable: Checkout, compare: Compare) -> None:
    """As in a clone for a pull request."""
    shutil.rmtree(".pipeline/journal")
    text = "\n".join(compare("refs/tags/first", "faster"))
    assert "revision " in text
    assert "A and B: Of what is recorded and can affect a result, only optimizer.learning_rate differs.\n" in text
    assert "This checkout has no run of A, B: what only a run records is unknown" in text
    assert "recorded metrics" not in text
    assert "paired test of A and B" in text
    assert read("refs/tags/first", Paths(), Environment.read()).facts.provenance["git.difference"] == "none"


def test_models_without_a_common_test_split_are_not_tested_but_the_others_are(models: Models) -> None:
    def of_split(model: ComparedModel) -> ComparedModel:
        return replace(model, facts=replace(model.facts, splits={**model.facts.splits, TEST: "e" * 64}))

    first, rate, data = models("first", "rate", "data")
    of_texts = replace(rate, manifest=rate.manifest.model_copy(update={"spec": text_spec(classes="ab")}))
    *reasons, test = paired_with([first, of_texts, of_split(rate), replace(data, facts=Facts()), rate])
    assert isinstance(test, Paired)
    assert str(reasons[0]).startswith(f"{rate.name}: cannot be compared with {first.name}: one is for classification of image inputs")
    for model, reason in zip((rate, data), reasons[1:], strict=True):
        assert str(reason).startswith(f"{model.name}: nothing shows that data/prepared has its test split: run `dvc repro prepare`")
    (reason,) = paired_with([of_split(first), rate])
    assert str(reason).startswith(f"{first.name}: nothing shows")


def test_more_models_than_letters_are_refused(working: Checkout, refused: Callable[..., str]) -> None:
    assert "27 models are named: name 26 at most" in refused("compare", *["models/model.safetensors"] * 27)


def test_an_unknown_name_is_refused(working: Checkout, refused: Callable[..., str]) -> None:
    for name in ("nothing", "--output=x", "a\nbc"):
        message = refused("compare", working.runs["first"], "--", name)
        assert (
            " is no model file, run, model in MLflow, DVC experiment or git revision of this checkout: give another name; the newest runs are run-"
            in message
        )
        assert len(message.splitlines()) == 1


def test_missing_and_damaged_files_and_a_revision_without_a_model_are_refused(changeable: Checkout, refused: Callable[..., str]) -> None:
    assert "missing.safetensors: there is no such file" in refused("compare", "models/model.safetensors", "missing.safetensors")
    message = refused("compare", "refs/tags/first", "first~1")
    assert "first~1: this revision has no dvc.lock, so it names no model: run `dvc repro`" in message
    shutil.rmtree(changeable.folder / ".dvc/cache")
    assert "refs/tags/first: could not read the model of this revision" in refused("compare", "models/model.safetensors", "refs/tags/first")
