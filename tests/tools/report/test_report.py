"""`report` writes one page and one model card, whose numbers are those of the files, and never mixes two models."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.refusal import rounded
from pipeline.tools.report import command
from pipeline.tools.report.command import CARD, Table, rendered
from tests import project
from tests.tools.report.pages import Read, card_parts, plain_text, structure

PAGE = Path("reports/report.html")
QUICK = {"train.steps": 8, "train.report_every_steps": 2, "train.validate_every_steps": 4}
MARKUP = [
    "<script>alert(1)</script>",
    "</pre></td></table><img src=x onerror=alert(1)>",
    '"><b>',
    "a|b||c\\|d",
    "line\nbreak\r\n\n# heading",
    "```\n~~~\n````",
    "*a* _b_ `c` [d](e) ![f](g) ~~h~~",
    "# a",
    "1. a",
    "---",
    "&lt;b&gt; &#60;",
    "{% raw %} ${7*7} : y: [",
]


def finish(folder: Path, setting: str) -> Path:
    """Run the three stages of a setting, with a journal, in a repository without uncommitted changes."""
    project.make(folder, QUICK, setting=setting)
    (folder / ".gitignore").write_text("*\n!params.yaml\n")
    for line in ("init -q", "add -A", "-c user.name=a -c user.email=a@b.c commit -q -m all"):
        subprocess.run(["git", *line.split()], cwd=folder, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PIPELINE_TRACKING", "true")
        patch.setattr("pipeline.runs.mlflow.mirror.start", lambda *_: None)  # the journal is enough
        assert main(["prepare"]) == main(["train"]) == main(["evaluate"]) == 0
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(tmp_path_factory.mktemp("digits"), "digits")


@pytest.fixture
def checkout(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the finished checkout, which is the working folder."""
    shutil.copytree(digits, tmp_path / "checkout", symlinks=True)
    monkeypatch.chdir(tmp_path / "checkout")
    return tmp_path / "checkout"


def report(*arguments: str) -> Read:
    assert main(["report", *arguments]) == 0
    return Read(PAGE.read_text(encoding="utf-8"))


def card() -> tuple[dict[str, Any], list[Any]]:
    return card_parts(PAGE.with_name(CARD.format("report")).read_text(encoding="utf-8"))


def test_the_page_and_the_card_have_what_the_stages_recorded(checkout: Path) -> None:
    page, (metadata, tokens) = report(), card()
    scores, trained = (json.loads(Path(f"metrics/{stage}.json").read_text()) for stage in ("evaluate", "train"))
    digest, commit = files.digest(Path("models/model.safetensors")), page.text.partition("git checkout ")[2].split()[0]
    written = [scores["test"][name] for name in ("accuracy", "loss", "macro_f1", "majority_class_accuracy")]
    for shown in (page.text, plain_text(tokens)):
        assert all(rounded(value) in shown for value in (*written, trained["valid"]["loss"], trained["train"]["objective"]))
        assert all(name in shown for name in ("mlp on digits", digest, "optimizer.learning_rate", "0.003"))
        assert "Cost of the training" in shown
        assert f"git checkout {commit}\nmake setup\nPIPELINE_DEVICE=cpu PIPELINE_THREADS=" in shown
    assert subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip() == commit
    figures = [each.attributes["alt"] for each in page.elements if each.tag == "img"]
    assert figures == ["confusion", "history", "reliability", "mistakes"]
    ((entry,), pipeline_tag) = metadata["model-index"], metadata["pipeline_tag"]
    found = {each["type"]: each["value"] for each in entry["results"][0]["metrics"]}
    assert (found["accuracy"], found["f1"]) == (scores["test"]["accuracy"], scores["test"]["macro_f1"])
    assert (entry["name"], metadata["datasets"], pipeline_tag) == ("mlp on digits", ["digits"], "image-classification")


def test_the_same_files_give_the_same_bytes_and_each_page_has_its_own_card(checkout: Path) -> None:
    report()
    report("--output", "reports/other.html")
    for one, other in ((PAGE, PAGE.with_name("other.html")), *[[PAGE.with_name(CARD.format(name)) for name in ("report", "other")]]):
        assert one.read_bytes() == other.read_bytes()


def test_samples_that_stand_in_two_splits_are_counted(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "are in two splits" not in report().text
    monkeypatch.setattr(command, "shared_samples", lambda _: ["113 of 359 samples of test in train"])
    assert "are in two splits: 113 of 359 samples of test in train)" in report().text


def test_the_scores_of_another_model_or_of_a_killed_evaluation_are_refused(checkout: Path, refused: Callable[..., list[str]]) -> None:
    table = Path("predictions/test.parquet")
    table.unlink()
    assert refused("report") == [f"{table}: is missing: run `dvc pull {table}`, or `dvc repro -f evaluate`"]
    table.touch()
    scores = json.loads(Path("metrics/evaluate.json").read_text())
    Path("metrics/evaluate.json").write_text(json.dumps(scores | {"model": "0" * 12}))
    assert refused("report") == [
        "metrics/evaluate.json: has the scores of another model, not those of models/model.safetensors: run `dvc repro`"
    ]
    assert refused("report", "--output", "report.txt") == ["--output: report.txt: should be an HTML file, such as reports/report.html"]
    assert not PAGE.exists()


def test_commands_are_those_of_a_commit_and_cannot_contain_those_of_a_strangers_model_file() -> None:
    def commands(difference: str) -> list[str]:
        facts = SimpleNamespace(provenance={"git.commit": "c0ffee; rm x", "git.difference": difference})
        model: Any = SimpleNamespace(facts=facts, manifest=SimpleNamespace(fingerprint={"device": "cpu; rm -rf x"}), digest="d1")
        return list(command.commands(model))

    assert commands("two files\n M pipeline/x.py") == []
    first, _, repro, _ = commands("none")
    assert (first, repro) == ("git checkout 'c0ffee; rm x'", "PIPELINE_DEVICE='cpu; rm -rf x' make repro")


def test_a_language_model_has_its_perplexity_and_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finish(tmp_path, "code"))
    page, (metadata, _) = report(), card()
    scores = json.loads(Path("metrics/evaluate.json").read_text())["test"]
    assert f"perplexity {rounded(scores['perplexity'])}" in " ".join(page.text.split())
    assert {"Generated texts", "Least expected passages"} <= set(page.titles)
    assert metadata["pipeline_tag"] == "text-generation"


def everything(text: str) -> dict[str, Any]:
    """Return the content of a report that has `text` wherever a file's text can be."""
    tables = [Table(text, (text, "n"), ((text, "1.5"), ("x", text))), Table(text, (text,), ((text,),), is_folded=True)]
    metadata = {"datasets": [text], "model-index": [{"name": text}]}
    shown = {"title": text, "subtitle": text, "headline": (text, text, text), "beside": [(text, text)]}
    return {**shown, "figures": [(text, "cG5n")], "tables": tables, "samples": text, "commands": text, "metadata": metadata}


def test_text_with_markup_changes_the_structure_neither_of_the_page_nor_of_the_card() -> None:
    page, (_, card) = Read(rendered("page.html", everything("word"))), card_parts(rendered("card.md", everything("word")))
    for text in MARKUP:
        found = Read(rendered("page.html", everything(text)))
        assert found.tags == page.tags, text
        assert [set(each.attributes) - {"class"} for each in found.elements] == [set(each.attributes) - {"class"} for each in page.elements]
        metadata, tokens = card_parts(rendered("card.md", everything(text)))
        assert metadata["datasets"] == [metadata["model-index"][0]["name"]] == [text]
        merged = [[kind for kind in structure(each) if kind not in ("text", "text_special")] for each in (tokens, card)]
        assert merged[0] == merged[1], text
