"""`set` changes params.yaml whole or not at all, and what it recommends trains."""

import csv
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from pipeline.__main__ import main
from pipeline.core.yaml_document import Document
from pipeline.tools import checkout_lock, repro
from pipeline.tools.check import command as check
from pipeline.tools.params.editing import types_of
from tests import project
from tests.imports import TOP
from tests.repository import GIT, call
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
PARAMS = Path("params.yaml")
SHORT = ("train.epochs=null", "train.steps=24", "train.report_every_steps=4", "train.validate_every_steps=24", "train.metric=valid/loss")
SETTINGS = {
    "digits": [
        "model=convnet loss=cross_entropy optimizer=sgd schedule=wsd",
        "model=mlp loss=focal optimizer=adam schedule=linear",
        "model=resnet model.width=16 optimizer=adamw schedule=cosine",
        "model=linear schedule=constant",
        "model=airbench model.block1_width=16 model.block2_width=32 model.block3_width=32 optimizer=muon schedule=one_cycle",
    ],
    "texts": ["model=transformer", "model=ngrams", "model=recurrent source=text_classification"],
    "numbers": [f"model=ngrams source.task=regression evaluate=regression loss={name}" for name in ("huber", "mae", "mse", "quantile")],
    "code": ["model=recurrent model.width=64 model.embedding_width=32"],
}
SLOW = [
    ("digits", "model=torchvision"),
    ("digits", "model=timm model.architecture=test_resnet"),
    ("texts", "model=transformers"),
    ("code", "model=transformer model.width=64 model.depth=1 source=package_source"),
]
TEXTS = (f"source.root={project.TABLE}", "source.text_column=2", "source.label_column=1", "source.vocabulary=100")


def test_what_changed_is_printed_and_git_undoes_it(parameters: Parameters, capsys: pytest.CaptureFixture[str]) -> None:
    before = PARAMS.read_bytes()
    for words in (["init", "--quiet"], ["add", "params.yaml"], ["commit", "--quiet", "--message", "all"]):
        call(Path(), *GIT, *words)
    assert main(["set", "model=mlp", "optimizer.learning_rate=1e-4", "model.width=64", "train.metrics=[auroc]"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "set: model.name: convnet -> mlp",
        "set: model.width: 16 -> 64",
        "set: model.dropout: 0.1 -> 0.2",
        "set: model.depth: 2 is added",
        "set: optimizer.learning_rate: 0.003 -> 0.0001",
        "set: train.metrics: [] -> [auroc]",
    ]
    assert call(Path(), *GIT, "diff", "--shortstat").strip() == "1 file changed, 6 insertions(+), 5 deletions(-)"
    call(Path(), *GIT, "restore", "params.yaml")
    assert PARAMS.read_bytes() == before


def test_a_file_that_has_the_values_is_not_written(parameters: Parameters, capsys: pytest.CaptureFixture[str]) -> None:
    written = PARAMS.stat()
    assert main(["set", "seed=1", "model.width=16"]) == 0
    assert capsys.readouterr().out == "set: params.yaml has these values already\n"
    assert PARAMS.stat().st_ino == written.st_ino


@pytest.mark.parametrize(
    ("assignments", "messages"),
    [
        (["seed=2", "optimizer=adamm"], ["optimizer=adamm: there is no optimizer \"adamm\": did you mean `adam`?"]),
        (["evaluate.top_k=11"], ["evaluate.top_k: 11 is more than the 10 classes of this dataset"]),
        (["train.freeze=[nothing.*]"], ["train.freeze: "]),
        (["source=package_source"], ["augment: ", "evaluate.name: ", "model.name: ", "loss.label_smoothing: ", "train.metric: "]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_and_nothing_is_written(parameters, refused: Refused, assignments: list[str], messages: list[str]) -> None:
    before = PARAMS.read_bytes()
    said = refused("set", *assignments)
    assert said
    assert all(any(line.startswith(message) for message in messages) for line in said), said
    assert PARAMS.read_bytes() == before


def test_another_dataset_and_task_are_chosen_in_one_command(parameters: Parameters) -> None:
    words = ["source=package_source", "model=recurrent", "augment=null", "evaluate=language_modeling", "train.metric=valid/loss"]
    assert main(["set", *words, "loss=cross_entropy"]) == 0
    assert main(["check"]) == 0


@pytest.fixture
def steps(parameters: Parameters, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the width with which `check` and DVC are called by `repro`, which runs nothing else."""
    taken: list[str] = []

    def take(name: str) -> Callable[[], int]:
        return lambda *_: taken.append(f"{name} {Document.read(PARAMS).data['model']['width']}") or 0

    monkeypatch.setattr(check, "run", take("check"))
    monkeypatch.setattr(repro, "dvc_repro", take("dvc"))
    monkeypatch.setattr(repro, "summarize", lambda: None)
    return taken


def test_repro_sets_parameters_before_check_and_they_stay(steps: list[str]) -> None:
    assert main(["repro", "-S", "model.width=8", "-S", "seed=3"]) == 0
    assert main(["repro"]) == 0
    assert steps == ["check 8", "dvc 8"] * 2
    assert Document.read(PARAMS).data["seed"] == 3


def test_repro_with_a_wrong_parameter_changes_and_runs_nothing(steps: list[str], refused: Refused) -> None:
    before = PARAMS.read_bytes()
    assert refused("repro", "-S", "seed=3", "-S", "model.widht=8") == ["model.widht=8: is not a key here: did you mean `width`?"]
    assert PARAMS.read_bytes() == before
    assert steps == []


def test_repro_changes_no_parameter_while_another_container_trains(steps: list[str], refused: Refused, tmp_path: Path, monkeypatch) -> None:
    before = PARAMS.read_bytes()
    with checkout_lock.held(Path()), monkeypatch.context() as elsewhere:
        (tmp_path / "boot_id").write_text("elsewhere", encoding="ascii")
        elsewhere.setattr(checkout_lock, "BOOT", tmp_path / "boot_id")
        assert "is using this checkout" in refused("repro", "-S", "seed=3", code=69)[0]
    assert PARAMS.read_bytes() == before


@pytest.mark.parametrize("words", [["repro", "-S", "seed=4"], ["set", "seed=4"]])
def test_a_second_command_changes_no_parameter_before_the_first_repro_has_ended(steps, words: list[str], monkeypatch) -> None:
    trained, said, second = list[int](), list[str](), Thread(target=main, args=(words,))

    def train(_lock: int) -> int:
        if not trained:
            second.start()
            while not any(f"process {os.getpid()}, or" in text for text in said):
                assert second.is_alive()
                time.sleep(0.02)
        trained.append(Document.read(PARAMS).data["seed"])
        return 0

    monkeypatch.setattr(checkout_lock, "print", lambda text, **_: said.append(text), raising=False)  # capsys loses what a thread prints
    monkeypatch.setattr(repro, "dvc_repro", train)
    monkeypatch.setattr(repro, "summarize", lambda: trained.append(Document.read(PARAMS).data["seed"]))
    assert main(["repro", "-S", "seed=3"]) == 0
    second.join()
    assert trained == [3, 3, *([4, 4] if "repro" in words else [])]
    assert Document.read(PARAMS).data["seed"] == 4


@pytest.mark.parametrize(
    ("setting", "assignments"),
    [
        *((setting, assignments) for setting, several in SETTINGS.items() for assignments in several),
        *(pytest.param(*slow, marks=pytest.mark.slow) for slow in SLOW),
    ],
)
def test_recommended_values_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, assignments: str) -> None:
    project.make(tmp_path, setting="texts" if setting == "numbers" else setting)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    if setting == "numbers":
        table = Path(project.TABLE).read_text(encoding="utf-8")
        for label, number in {"colour": "0.5", "fruit": "1", "metal": "1.5"}.items():
            table = table.replace(f"{label}\t", f"{number}\t")
        Path(project.TABLE).write_text(table, encoding="utf-8")
    data = TEXTS if "source=text_classification" in assignments else ()
    assert main(["set", *assignments.split(), *data, *SHORT]) == 0
    assert main(["prepare"]) == 0
    assert main(["train"]) == 0
    with Path("plots/train/history.csv").open(encoding="utf-8") as file:
        objectives = [float(row["train/objective"]) for row in csv.DictReader(file)]
    assert objectives[-1] < 0.95 * objectives[0], objectives


def test_every_optimizer_and_schedule_is_trained_by_a_test() -> None:
    tested = " ".join([*(assignments for several in SETTINGS.values() for assignments in several), *(slow for _, slow in SLOW)]).split()
    for section in ("optimizer", "schedule"):
        types = types_of(section)
        assert types
        assert {f"{section}={name}" for name in types.names} <= {*tested}


@pytest.mark.parametrize("source", ["digits", "package_source"])
def test_a_source_that_reads_nothing_from_its_root_refuses_another_root(parameters: Parameters, refused: Refused, source: str) -> None:
    if source != "digits":
        PARAMS.write_bytes((TOP / "presets/code-transformer.yaml").read_bytes())
    [error] = refused("set", "source.root=data/raw/mine")
    assert error.startswith("source.root=data/raw/mine: is not read by this source, so it must be data/README.md: to read data of your own")
    assert "source=image_folder source.root=..." in error
