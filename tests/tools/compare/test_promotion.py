"""`promote` registers a model in a real store, and moves the alias only to a model that is no worse."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from pipeline.__main__ import main
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal
from pipeline.runs.journal import journals
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.store import Store
from pipeline.runs.record import Record
from pipeline.tools.compare import promotion
from pipeline.tools.compare.models import incomparability, read
from tests.runs.conftest import opened
from tests.specs import text_spec
from tests.tools.compare.conftest import Checkout, Compare


@dataclass(frozen=True)
class Registry:
    """A copy of the checkout whose runs are in MLflow; `runs` are the names of their journals."""

    folder: Path
    runs: dict[str, str]
    client: "MlflowClient"

    def holder(self, name: str, alias: str = "champion") -> str:
        return str(self.client.get_model_version_by_alias(name, alias).version)


@pytest.fixture(scope="module")
def delivered(checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    folder = tmp_path_factory.mktemp("registry") / "checkout"
    shutil.copytree(checkout.folder, folder, symlinks=True)
    environment = Environment.model_validate({"DVC_ROOT": folder})
    client = opened(environment)
    for journal in journals(folder):
        if journal.name in (checkout.runs["first"], checkout.runs["rate"]):
            assert mirror.deliver(journal, Store(environment))
    return Registry(folder, checkout.runs, client)


@pytest.fixture
def registry(delivered: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.chdir(delivered.folder)
    return delivered


@pytest.fixture
def promote(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that runs `promote`, and returns the exit code and the last line."""

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["promote", *arguments])
        return code, capsys.readouterr().out.splitlines()[-1]

    return run


Promote = Callable[..., tuple[int, str]]


def test_the_alias_moves_to_a_better_model_and_not_to_a_worse_one_unless_forced(registry: Registry, promote: Promote) -> None:
    first, better = registry.runs["first"], registry.runs["rate"]
    assert promote(first, "digits") == (0, "promote: digits version 1 is digits@champion: no version had this alias")
    assert promote(first, "digits") == (0, "promote: digits version 1 is digits@champion: it had the alias before, so nothing changed")
    code, line = promote(better, "digits")
    assert (code, registry.holder("digits")) == (0, "2")
    assert line.startswith("promote: digits version 2 is digits@champion: it is significantly better than models:/digits/1: accuracy 0.")
    code, line = promote(first, "digits")
    assert (code, registry.holder("digits")) == (1, "2")
    assert line.startswith("promote: digits version 1 is registered, but is not digits@champion: it is significantly worse than models:/")
    code, line = promote(first, "digits", "--force")
    assert (code, registry.holder("digits")) == (0, "1")
    assert line.endswith("; --force gave it the alias")
    assert {each.version for each in registry.client.search_model_versions("name='digits'")} == {1, 2}, "none is registered twice"
    tag = registry.client.get_model_version("digits", "1").tags["pipeline.promotion"]
    assert tag.startswith("it is significantly worse than models:/digits/2")
    assert promote(better, "digits", "--alias", "candidate")[0] == 0
    assert (registry.holder("digits"), registry.holder("digits", "candidate")) == ("1", "2")


def test_the_version_belongs_to_its_run_and_predicts_and_is_compared_by_its_alias(registry, promote, compare, tmp_path, capsys) -> None:
    assert promote("faster", "experiments")[0] == 0, "an experiment of DVC has a run with the same bytes"
    version = registry.client.get_model_version_by_alias("experiments", "champion")
    assert registry.client.get_run(version.run_id).data.tags["pipeline.journal"] == registry.runs["rate"]
    np.save(tmp_path / "images.npy", np.zeros((2, 8, 8, 1), np.uint8), allow_pickle=False)
    capsys.readouterr()
    assert main(["predict", "models:/experiments@champion", str(tmp_path / "images.npy")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert any(registry.runs["rate"] in line for line in compare("models:/experiments@champion", registry.runs["first"]))


def test_a_model_from_a_store_without_its_journal_has_the_facts_of_its_run_in_mlflow(
    registry: Registry, promote: Promote, compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert promote(registry.runs["first"], "elsewhere")[0] == 0
    assert promote(registry.runs["rate"], "elsewhere")[0] == 0
    by_run = read(registry.runs["first"], Paths(), Environment.read())
    version = registry.client.get_model_version("elsewhere", "1")
    folder = tmp_path / "checkout"
    shutil.copytree(registry.folder, folder, symlinks=True)
    shutil.rmtree(folder / ".pipeline/journal")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{registry.folder}/mlflow.db")
    text = "\n".join(lines := compare("models:/elsewhere/1", "models:/elsewhere/2"))
    assert "in MLflow" in lines[1]
    facts = read("models:/elsewhere/1", Paths(), Environment.read()).facts
    assert facts.metrics == pytest.approx({name: value for name, value in by_run.facts.metrics.items() if "test/" in name}, rel=1e-5)
    assert (facts.splits, facts.params) == (by_run.facts.splits, by_run.facts.params)
    assert facts.provenance["git.commit"] == by_run.facts.provenance["git.commit"]
    assert "only optimizer.learning_rate differs.\n" in text
    assert "paired test of A and B" in text
    assert "test/accuracy" in text
    (folder / "mlflow.db").unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{registry.folder}/mlflow.db")  # which MLflow's variables replaced
    assert promote("models:/elsewhere/1", "from-elsewhere")[0] == 0
    assert not (folder / "mlflow.db").exists()
    assert registry.client.get_model_version("from-elsewhere", "1").model_id == version.model_id


def test_a_model_that_cannot_be_compared_needs_force(registry: Registry, promote: Promote, monkeypatch: pytest.MonkeyPatch) -> None:
    assert promote(registry.runs["first"], "uncompared")[0] == 0
    holder = text_spec(classes=("cat", "dog"))
    monkeypatch.setattr(promotion, "incomparability", lambda _, spec: incomparability(holder, spec))  # as if it had been trained on texts
    code, line = promote(registry.runs["rate"], "uncompared")
    assert (code, registry.holder("uncompared")) == (1, "1")
    assert "it could not be compared with models:/uncompared/1: one is for classification of text inputs" in line
    assert promote(registry.runs["rate"], "uncompared", "--force")[0] == 0
    assert registry.holder("uncompared") == "2"


def test_a_model_that_mlflow_does_not_have_is_refused_with_the_command_that_sends_it(
    registry: Registry, refused: Callable[..., str]
) -> None:
    (run_id,) = Record(registry.folder / ".pipeline/journal" / registry.runs["rate"]).run_ids.values()
    registry.client.delete_run(run_id)
    for name in ("rate", "code"):
        message = refused("promote", registry.runs[name], "missing")
        assert f"{registry.runs[name]}: MLflow has no run with this model: send its run with `python -m pipeline sync`" in message
    registry.client.restore_run(run_id)


def test_another_registry_is_refused_and_the_same_one_is_not(registry: Registry, refused: Callable[..., str], monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{registry.folder}/mlflow.db")
    Store(Environment.read()).refuse_other_registry()
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "sqlite:///registry.db")
    for arguments in (("promote", registry.runs["first"], "digits"), ("predict", "models:/digits@champion", "x.png")):
        assert "MLFLOW_REGISTRY_URI: models are registered in the store of MLFLOW_TRACKING_URI only" in refused(*arguments)


def test_names_that_mlflow_cannot_store_are_refused() -> None:
    for registered, alias in (("a/b", "a"), ("", "a"), ("a b", "a"), ("digits", "latest"), ("digits", "v3"), ("digits", "")):
        with pytest.raises(Refusal, match=": is not a valid "):
            promotion.refuse_bad_names(registered, alias)


def test_without_a_store_nothing_is_created(working: Checkout, refused: Callable[..., str]) -> None:
    assert "there is no MLflow store" in refused("promote", working.runs["first"], "digits")
    assert not Path("mlflow.db").exists()
