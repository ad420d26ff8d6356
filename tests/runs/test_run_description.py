"""What the journal is recorded of a run: where it comes from, its name, its data and its result."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import PreparedRecord, SplitRecord
from pipeline.core.registry import MODELS
from pipeline.core.yaml_document import Document
from pipeline.prepare.params import data_name
from pipeline.runs import events, provenance, run, run_description
from pipeline.runs.record import runs_of
from pipeline.tools.params.editing import edited
from tests import project
from tests.repository import GIT, call
from tests.runs import tiny
from tests.specs import text_spec

NEVER_MISSING = {
    "git.commit",
    "git.dirty",
    "git.difference",
    "lock_sha256",
    "image.digest",
    "image.revision",
    "driver",
    "gpu",
    "flags",
    "python",
    "platform",
    "host",
    "dvc.stage",
    "user",
    "inputs",
    *(f"version.{library}" for library in provenance.LIBRARIES),
}
SPLITS = {
    name: SplitRecord(samples=3, left_out=0, also_in=also_in, inputs_digest=name, targets_digest="t")
    for name, also_in in {"train": {}, "valid": {}, "test": {"train": 2}}.items()
}
PREPARED = PreparedRecord(format="pipeline-prepared-4", spec=tiny.SPEC, splits=SPLITS)
SCORES = {
    "loss": 0.25,
    "accuracy": 0.75,
    "accuracy_interval": {"low": 0.5, "high": 1.0},
    "samples": 4,
    "per_class": {"cat": {"f1": 1.0, "support": 2}, "a/b, c": {"f1": 0.5, "support": 2}},
}
Changed = Callable[..., str]


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_description, "read_record", lambda _: PREPARED)


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Changed:
    """Give the name of a run for the default parameters, changed by `KEY=VALUE` since a commit."""
    monkeypatch.chdir(project.make(tmp_path))
    path = Path("params.yaml")
    call(tmp_path, "git", "init", "-q")

    def name(*assignments: str, committed: Sequence[str] = (), **environment: str) -> str:
        path.write_text(edited(first, committed))
        commit()
        path.write_text(edited(first, assignments))
        return run_description.name_of(params(), Paths(), Environment.model_validate(environment))

    def commit() -> None:
        call(tmp_path, "git", "add", "params.yaml")
        call(tmp_path, *GIT, "commit", "-q", "--allow-empty", "-m", "a commit")

    first = path.read_text()
    return name


def params() -> dict[str, Any]:
    return Document.read(Path("params.yaml")).data


def info(environment: Environment) -> run_description.RunInfo:
    return run_description.of_training(params(), Paths(), environment, {"inputs": {"data": "d"}}, direction="max")


def test_the_start_of_a_training_records_its_provenance(without_mirror: Environment, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    with run.training(without_mirror, resume_file=tmp_path / "run", info=info(without_mirror)) as reports:
        assert reports.folder
        start = next(events.read(reports.folder / events.EVENTS)).fields
    assert NEVER_MISSING - start["provenance"].keys() == set()
    assert not any(value.startswith("unknown") for value in start["tags"].values())
    assert {"seed", "model.name", "optimizer.learning_rate", "train.steps"} <= start["params"].keys()
    assert len(start["provenance"]["lock_sha256"]) == 64
    assert "optimize" in json.loads(start["provenance"]["flags"])


def test_each_stage_logs_the_splits_that_it_used(without_mirror: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    trained, evaluated = info(without_mirror).datasets, run_description.of_evaluation(params(), Paths(), without_mirror).datasets
    assert [(used.name, used.context) for used in trained] == [("digits train", "training"), ("digits valid", "validation")]
    assert [(used.name, used.context) for used in evaluated] == [("digits test", "test")]
    assert len({used.digest for used in (*trained, *evaluated)}) == 3
    assert evaluated[0].profile["also_in"] == {"train": 2}
    assert info(without_mirror).tags["pipeline.samples_in_two_splits"] == "2 of 3 samples of test in train"


def test_a_restored_training_has_the_metrics_of_the_exported_weights(without_mirror: Environment, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    paths, manifest = Paths(), SimpleNamespace(inputs={}, fingerprint={}, params={"seed": 1}, step=10)
    files.write_text(paths.model, "weights")
    files.write_text(paths.history, "step,learning_rate,train/loss,valid/loss\n10,0.1,0.2,0.3\n20,0.1,0.1,0.9\n")
    trained = {"steps": 20, "exported_step": 10, "train": {"loss": 0.2}, "valid": {"loss": 0.3}, "last": {"valid": {"loss": 0.9}}}
    files.write_json(paths.metrics / "train.json", trained)
    run_description.record_evaluation(params(), paths, without_mirror, manifest=manifest, scores=SCORES)
    [recorded] = runs_of(tmp_path)
    assert recorded.metrics("train/", "valid/", "exported/", step=10) == {"train/loss": 0.2, "valid/loss": 0.3, "exported/valid/loss": 0.3}
    assert "valid loss 0.3000 at step 10 of 20; mlp on digits" in [event.fields.get("text") for event in recorded.events]


def test_runs_go_to_an_experiment_of_their_data_and_task() -> None:
    def named(**source: object) -> str:
        return run_description.experiment({"source": source})

    assert named(name="digits", root="data/README.md") == "digits"
    assert named(name="table", root="data/churn.csv", task="classification") == "churn"
    assert named(name="table", root="data/churn.csv", task="regression") == "churn regression"
    assert named(name="text", root="..") == "text language_modeling"
    assert len(named(name="image_folder", root="x" * 999)) == 200


def test_the_start_names_the_experiment_unless_the_user_chose_one(without_mirror: Environment, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    for chosen, expected in ((None, "digits"), ("mine", "mine")):
        environment = without_mirror.model_copy(update={"mlflow_experiment_name": chosen})
        with run.training(environment, resume_file=tmp_path / expected, info=info(environment)) as reports:
            assert reports.folder
        start = next(events.read(reports.folder / events.EVENTS)).fields
        assert (start["experiment"], start["tags"]["pipeline.metric_direction"]) == (expected, "max")


def test_a_name_lists_the_parameters_that_differ_from_the_last_commit(changed: Changed) -> None:
    assert changed() == "mlp-digits"
    assert changed("optimizer.learning_rate=5e-3", "seed=2") == "mlp-digits seed=2 lr=5e-3"
    assert changed("source.seed=2") == "mlp-digits source.seed=2"
    assert changed("source=arrays", "source.root=data/raw/flowers.npz") == "mlp-flowers"
    assert changed("loss=focal", "loss.class_weights=balanced") == "mlp-digits loss=focal class_weights=balanced"
    assert changed("loss=mse", "source=image_table", "source.task=regression", "augment.mixup=0.0") == "mlp-images loss=mse task=regression"
    assert changed("augment=null") == "mlp-digits augment=null"
    assert changed(committed=["augment=null"]) == "mlp-digits augment=on"


def test_a_name_bounds_the_changes_and_begins_with_those_of_the_model(changed: Changed) -> None:
    changes = ("source.test=0.3", "augment.mixup=0.1", "train.steps=9", "optimizer.learning_rate=0.01", "model.width=8")
    assert changed(*changes, DVC_EXP_NAME="murky-zoon") == "mlp-digits width=8 lr=0.01 steps=9 mixup=0.1 +1 [murky-zoon]"


def test_of_a_replaced_section_a_name_lists_what_differs_from_the_recommended_values(changed: Changed) -> None:
    assert changed("model=convnet") == "convnet-digits"
    assert changed("optimizer=sgd", "optimizer.learning_rate=0.05") == "mlp-digits optimizer=sgd lr=0.05"
    changes = ("source=text_classification", "augment=null", "model=transformer", "model.depth=3")
    assert changed(*changes) == "transformer-texts depth=3 augment=null"


def test_own_data_is_named_by_its_root_and_published_data_by_its_source() -> None:
    roots = ("data/raw/spam.tsv", "data/raw/my.images.tar.gz", "/data/flowers", "v1.2", "x.zip/")
    named = [data_name({"source.name": "image_folder", "source.root": root}) for root in roots]
    assert named == ["spam", "my.images", "flowers", "v1.2", "x"]
    assert data_name({"source.name": "digits", "source.root": "data/README.md"}) == "digits"
    assert data_name({"source.name": "of a fork", "source.root": "a.tsv"}) == "of a fork"
    assert data_name({}) == ""


def test_a_run_is_named_after_the_title_of_its_model() -> None:
    for name in MODELS.names:
        settings = MODELS.settings(name)
        section = {"name": name, **settings.recommended(name=name, task="classification")}
        document = {"model": section, "source": {"name": "data"}}
        assert run_description.subject(document) == f"{settings(**section).title} on data"


def test_a_name_needs_no_git_and_the_environment_can_name_a_run_and_tag_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    assert info(Environment()).name == "mlp-digits"
    monkeypatch.setenv("MLFLOW_RUN_CONTEXT", '{"mlflow.runName": "the third", "team": "vision"}')
    found = info(Environment.read())
    assert (found.name, found.tags["team"]) == ("the third", "vision")
    assert "mlflow.runName" not in found.tags


def test_values_in_a_name_are_short() -> None:
    values = (0.005, 0.1, 1e-8, 0.0, 3, None, True)
    assert [run_description.short(value) for value in values] == ["5e-3", "0.1", "1e-8", "0", "3", "null", "true"]


def test_scores_of_each_class_are_a_table_and_not_metrics() -> None:
    assert run_description.test_metrics(SCORES) == {
        "test/loss": 0.25,
        "test/accuracy": 0.75,
        "test/accuracy_interval/low": 0.5,
        "test/accuracy_interval/high": 1.0,
        "test/samples": 4.0,
    }
    assert run_description.class_scores(SCORES["per_class"]) == 'class,f1,support\ncat,1.0,2\n"a/b, c",0.5,2\n'


def test_the_result_becomes_the_description(without_mirror: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    with run.training(without_mirror, resume_file=tmp_path / "run", info=info(without_mirror)) as reports:
        known = info(without_mirror)
        Path("params.yaml").write_text("edited: [while it trained")
        run_description.add_evaluation(reports, Paths(), known, step=7, scores=SCORES)
        assert reports.folder
        recorded = [event.fields for event in events.read(reports.folder / events.EVENTS)]
    assert [fields["text"] for fields in recorded if fields["kind"] == "description"] == [
        "test accuracy 0.7500 (between 0.5000 and 1.0000) on 4 samples; lowest F1: 0.5000 (class a/b, c); mlp on digits"
    ]
    assert "per_class.csv" in [Path(fields["file"]).name for fields in recorded if fields["kind"] == "artifact"]


def test_a_dataset_is_described_without_its_vocabulary() -> None:
    spec = text_spec(letters="".join(map(chr, range(500, 601))), classes=[str(number) for number in range(100)])
    dataset = run_description.dataset_of({"source": {"name": "text"}}, PREPARED.model_copy(update={"spec": spec}), "test")
    described = spec.model_dump(mode="json")
    described["inputs"]["tokenizer"]["vocabulary"] = "101 entries"
    assert dataset.profile == {**described, "samples": 3, "also_in": {"train": 2}}
