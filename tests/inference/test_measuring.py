"""Metrics over a whole split: beside scikit-learn, and for every division of the split into batches and processes."""

import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as expected

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference.measuring import Measured, metric_named, positive_class, refuse_unfit
from pipeline.inference.metrics import ece
from pipeline.inference.params import METRICS
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.tasks.regression.targets import NumberTargets
from pipeline.tasks.sequence.targets import SequenceTargets
from pipeline.tools.check.command import refuse_unmeasurable
from tests import project
from tests.imports import TOP
from tests.specs import image_spec, text_spec

REFERENCES = {
    "auroc": lambda y, p: expected.roc_auc_score(y, p[:, 1]) if p.shape[1] == 2 else expected.roc_auc_score(y, p, multi_class="ovr"),
    "average_precision": lambda y, p: (
        expected.average_precision_score(y, p[:, 1]) if p.shape[1] == 2 else expected.average_precision_score(np.eye(p.shape[1])[y], p)
    ),
    "balanced_accuracy": lambda y, p: expected.balanced_accuracy_score(y, p.argmax(1)),
    "brier": lambda y, p: ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean() / (2 if p.shape[1] == 2 else 1),
    "cohen_kappa": lambda y, p: expected.cohen_kappa_score(y, p.argmax(1)),
    "ece": lambda y, p: sum(
        abs((p.argmax(1) == y)[inside].mean() - p.max(1)[inside].mean()) * inside.mean()
        for bin_ in range(15)
        if (inside := (p.max(1) > bin_ / 15) & (p.max(1) <= (bin_ + 1) / 15)).any()
    ),
    "log_loss": lambda y, p: -np.log(p[np.arange(len(y)), y]).mean(),
    "macro_f1": lambda y, p: expected.f1_score(y, p.argmax(1), average="macro"),
    "mcc": lambda y, p: expected.matthews_corrcoef(y, p.argmax(1)),
    "top_5_accuracy": lambda y, p: expected.top_k_accuracy_score(y, p, k=5, labels=range(p.shape[1])),
}


SAMPLES = 103


def measured(names: list[str], num_classes: int, **options: int) -> Measured:
    spec = image_spec(shape=(8, 8, 1), classes=list(map(str, range(num_classes))), mean=[0.5], std=[0.5])
    return Measured(names, spec, key="train.metrics", **({"num_samples": SAMPLES, "batch_size": SAMPLES} | options))


def exchanged(ranks: list[Measured]) -> dict[str, float]:
    """Return the values of the first of several processes, which gets what the others send."""
    sent: list[torch.Tensor] = []
    for rank in ranks[1:]:
        rank.values(lambda rows: sent.append(rows) or rows, lambda rows: sent.append(rows) or rows)
    return ranks[0].values(lambda rows: torch.cat([rows, *sent]), lambda rows: torch.stack([rows, *sent], dim=1).flatten(0, 1))


@pytest.mark.parametrize("name", REFERENCES)
def test_a_metric_is_that_of_scikit_learn_for_every_division_into_batches_and_processes(name: str) -> None:
    generator = np.random.default_rng(0)
    for case in range(5):
        num_classes = 6 + case % 3 if name == "top_5_accuracy" else 2 + case % 5
        targets = generator.permutation(np.arange(SAMPLES) % num_classes)
        logits = (generator.normal(size=(SAMPLES, num_classes)) * 3).astype(np.float32)
        powers = np.exp(logits.astype(np.float64))
        of_sklearn = REFERENCES[name](targets, powers / powers.sum(1, keepdims=True))
        outputs, classes = torch.from_numpy(logits), torch.from_numpy(targets)
        found = set()
        for batch_size, size in ((SAMPLES, 1), (1, 1), (7, 1), (16, 2), (16, 4)):
            batches = [
                (outputs[start : start + batch_size], classes[start : start + batch_size]) for start in range(0, SAMPLES, batch_size)
            ]
            batches += [(outputs[:0], classes[:0])] * (-len(batches) % size)
            ranks = [measured([name], num_classes, batch_size=batch_size) for _ in range(size)]
            for number, batch in enumerate(batches):
                ranks[number % size].add(*batch)
            found.add(exchanged(ranks)[name])
        assert len(found) == 1, "to the bit"
        assert found.pop() == pytest.approx(of_sklearn, abs=1e-12)


def test_what_the_samples_do_not_determine_is_left_out_and_absent_classes_count_nowhere() -> None:
    outputs, one_class = torch.eye(3), torch.zeros(3, dtype=torch.int64)
    names = ["auroc", "average_precision", "cohen_kappa"]
    found = measured(names, 3, num_samples=3)
    found.add(outputs * 0 + outputs[0], one_class)
    assert found.values() == {}
    found = measured(["auroc", "balanced_accuracy", "macro_f1"], 3, num_samples=3)
    found.add(outputs[:, [0, 1, 1]] * 5, torch.tensor([0, 1, 1]))
    assert found.values() == {"auroc": 1.0, "balanced_accuracy": 0.75, "macro_f1": 2 / 3}


@pytest.mark.parametrize(("positive", "number"), [(None, 1), (-1, 1), ("+1", 0), (1, 0)])
def test_metrics_of_two_classes_are_those_of_the_positive_one(positive: str | int | None, number: int) -> None:
    spec = image_spec(shape=(8, 8, 1), classes=("+1", "-1"), mean=[0.5], std=[0.5])
    spec = spec.model_copy(update={"targets": spec.targets.with_positive(positive)})
    names = ["average_precision", "f1", "precision", "recall"]
    found = Measured(names, spec, key="train.metrics", num_samples=SAMPLES, batch_size=SAMPLES)
    assert positive_class(found.metrics.values(), spec) == spec.targets.output_names[number]
    generator = np.random.default_rng(0)
    logits, actual = generator.normal(size=(SAMPLES, 2)), generator.permutation(np.arange(SAMPLES) % 3 == 0).astype(np.int64)
    found.add(torch.from_numpy(logits), torch.from_numpy(actual))
    is_positive, score, named = actual == number, logits[:, number] - logits[:, 1 - number], logits.argmax(1) == number
    expect = {name: getattr(expected, f"{name}_score")(is_positive, score if name == "average_precision" else named) for name in names}
    assert found.values() == pytest.approx(expect, abs=1e-6)
    with pytest.raises(Refusal, match=r"^source\.positive_class: yes is not one of two classes"):
        spec.targets.with_positive("yes")


def test_an_output_that_is_not_finite_gives_no_value() -> None:
    found = measured(["log_loss"], 2, num_samples=1)
    found.add(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))
    assert found.values() == {}


def test_tokens_count_without_the_padding() -> None:
    found = Measured(["top_5_accuracy"], text_spec(), key="train.metrics", num_samples=1, batch_size=1)
    outputs = torch.arange(10.0).expand(1, 3, 10)
    found.add(outputs, torch.tensor([[9, 4, -100]]))
    assert found.values() == {"top_5_accuracy": 0.5}


def test_a_target_to_ignore_counts_for_no_class() -> None:
    outputs, targets = torch.eye(3)[[0, 1, 1, 2, 0, 0]], torch.tensor([0, 1, 2, 2, 1, -100])
    with_it, without = (measured(["macro_f1", "balanced_accuracy", "mcc"], 3) for _ in range(2))
    with_it.add(outputs, targets)
    without.add(outputs[:-1], targets[:-1])
    assert with_it.values() == without.values()


def test_a_file_with_the_name_of_a_score_that_a_task_always_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(METRICS), "module", lambda *_: ece)
    with pytest.raises(
        Refusal,
        match=r"^train\.metrics: accuracy is the name of a score that this task always has: rename pipeline/inference/metrics/accuracy",
    ):
        measured(["accuracy"], 3)


def test_the_direction_of_a_metric_is_known_without_torch() -> None:
    """The process that sends runs to MLflow asks for it, beside a training."""
    code = "import sys; from pipeline.inference.measuring import directions; print(directions(['ece', 'top_5_accuracy']), 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True)
    assert found.stdout == "{'ece': 'min', 'top_5_accuracy': 'max'} False\n"


def test_a_metric_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Refusal, match=r"^train\.metrics: auroc needs a task with classes, but this task has none: remove it"):
        Measured(["auroc"], text_spec(), key="train.metrics", num_samples=1, batch_size=1)
    with pytest.raises(Refusal, match=r"^train\.metrics: top_5_accuracy needs more than 5 classes, but this data has 5: remove it"):
        measured(["top_5_accuracy"], 5)
    with pytest.raises(Refusal, match=r"^train\.metrics: auroc keeps all outputs of the 1000000000 samples, 24000000000 bytes"):
        measured(["cohen_kappa", "auroc"], 5, num_samples=10**9)


HEAD = "from pipeline.inference import measuring\nclass Metric(measuring.FromCounts):\n    direction = 'max'\n"
OF = "    def of(self, support, predicted, hits):\n"
PART = "    def part(self, outputs, targets):\n        return (outputs.argmax(-1) == targets).float().mean()\n"
BROKEN = {
    "another class": (HEAD.replace("Metric", "Metrics"), r"has no class `Metric`, a subclass of `measuring\.Metric`: define it, "),
    "no direction": (HEAD.replace("direction", "directions"), '`direction` of its class `Metric` is None: write `direction = "max"` if'),
    "a misspelt method": (HEAD, r"its class `Metric` has no method `of\(self, support, predicted, hits\)`: define it, as docs/ext"),
    "an error": (HEAD + OF + "        return hits[4]", "5: fails: IndexError: index 4 is out of bounds .*: correct it, as docs/extending"),
    "a mean of batches": (
        HEAD + PART + "    def value(self, whole):\n        return whole",
        "gives another value if the split is cut into",
    ),
    "changed outputs": (
        HEAD + PART.replace("        return", "        outputs.mul_(-1)\n        return"),
        "its `part` changes its arguments, which the other",
    ),
    "random numbers": (
        HEAD + OF + "        return __import__('random').random() * 0",
        "draws random numbers from Python's random, .*: draw from a ",
    ),
    "a state": (
        HEAD + OF + "        BEST.append(hits.sum())\n        return len(BEST) // 7\nBEST = []",
        "gives another value in a second call",
    ),
    "a missing package": (
        "import nosuchpackage\n" + HEAD,
        "1: ModuleNotFoundError: No module named 'nosuchpackage': correct the name, or add",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_metric_is_refused_with_its_file_and_the_remedy(own, case: str) -> None:
    code, message = BROKEN[case]
    own(METRICS, "own", code)
    with pytest.raises(Refusal, match=rf"^(train\.metrics: )?pipeline/inference/metrics/own\.py:\s?{message}"):
        refuse_unmeasurable(["own"], ClassTargets, 3, "train.metrics")


SQUARES = """
    keeps_rows = True
    def part(self, outputs, targets):
        return (outputs - targets) ** 2
    def value(self, whole):
        return whole.mean()
"""


def test_good_metrics_of_every_task_pass_the_trial(own) -> None:
    own(METRICS, "squares", HEAD.replace("FromCounts", "Metric") + SQUARES)
    for targets, num_outputs, names in (
        (ClassTargets, 7, REFERENCES),
        (NextTokenTargets, 50_000, ["top_5_accuracy"]),
        (SequenceTargets, 300, ["top_5_accuracy"]),
        (NumberTargets.example(), 1, ["squares"]),
    ):
        refuse_unfit({name: metric_named(name)(num_outputs) for name in names}, targets, "train.metrics")


SHARED = """
    k = 1
    def part(self, outputs, targets):
        return (outputs.topk(self.k).indices == targets[:, None]).any(1).sum()[None]
    def value(self, whole):
        return whole[0]
"""


def test_metrics_with_a_common_base_and_those_that_change_what_they_get_have_values_of_their_own(own) -> None:
    own(METRICS, "base", HEAD.replace("FromCounts", "Metric") + SHARED)
    for k in (1, 3):
        own(METRICS, f"top_{k}", f"from pipeline.inference.metrics import base\nclass Metric(base.Metric):\n    k = {k}\n")
    own(METRICS, "greedy", HEAD + OF + "        hits -= hits\n        return 1.0")
    names = ["greedy", "top_1", "top_3", "cohen_kappa"]
    found = measured(names, 4, num_samples=3)
    found.add(torch.tensor([[4.0, 3, 2, 1]]).expand(3, 4), torch.arange(3))
    alone = measured(["cohen_kappa"], 4, num_samples=3)
    alone.add(torch.tensor([[4.0, 3, 2, 1]]).expand(3, 4), torch.arange(3))
    assert found.values() == {"greedy": 1.0, "top_1": 1.0, "top_3": 3.0} | alone.values()
    refuse_unmeasurable(names, ClassTargets, 4, "train.metrics")


def test_a_metric_that_changes_the_value_of_another_is_named(own) -> None:
    own(METRICS, "base", HEAD.replace("FromCounts", "Metric") + SHARED)
    own(METRICS, "top_1", "from pipeline.inference.metrics import base\nclass Metric(base.Metric): pass\n")
    setting = "    def __init__(self, num_outputs):\n        super().__init__(num_outputs)\n        base.Metric.k = 3\n"
    own(METRICS, "setter", f"from pipeline.inference.metrics import base\nclass Metric(base.Metric):\n{setting}")
    named = r"^train\.metrics: pipeline/inference/metrics/setter\.py: changes the value of pipeline/inference/metrics/top_1\.py: "
    base = METRICS.module("base")
    given = {name: metric_named(name)(7) for name in ("top_1", "setter")}
    base.Metric.k = 1
    with pytest.raises(Refusal, match=named):
        refuse_unfit(given, ClassTargets, "train.metrics")


def test_an_exception_in_the_middle_of_a_training_is_named_without_a_traceback(own, tmp_path: Path, monkeypatch, capsys) -> None:
    own(METRICS, "own", HEAD + OF + "        if support.sum() > 100:\n            raise KeyError('late')\n        return 1.0")
    monkeypatch.chdir(project.run(project.make(tmp_path / "project"), "prepare"))
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    project.write_params(tmp_path / "project", {"train.metrics": ["own"]})
    assert main(["train"]) == 2
    assert (
        "error: pipeline/inference/metrics/own.py:6: fails: KeyError: 'late': correct it, as docs/extending.md" in capsys.readouterr().err
    )


def test_check_and_each_stage_try_a_metric_first(own, tmp_path: Path, monkeypatch, capsys) -> None:
    own(METRICS, "own", HEAD + OF + "        return hits[10]")
    folder = project.make(tmp_path / "project", {"evaluate.metrics": ["own"]})
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    for verb, key, verbs in (("check", "evaluate", ()), ("evaluate", "evaluate", ("prepare", "train")), ("train", "train", ())):
        project.run(folder, *verbs)
        project.write_params(folder, {f"{key}.metrics": ["own"]})
        capsys.readouterr()
        assert main([verb]) == 2
        output = capsys.readouterr()
        assert f"{key}.metrics: pipeline/inference/metrics/own.py:5: fails: IndexError: index 10" in output.err
        assert "valid/" not in output.out


def test_a_metric_that_only_an_evaluation_measures_cannot_select_weights(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path, {"train.metric": "valid/auroc", "evaluate.metrics": ["auroc"]}))
    assert main(["check"]) == 2
    assert "train.metric: no validation measures auroc: add it to train.metrics, or choose one of valid/loss, " in capsys.readouterr().err


def test_a_copy_of_top_5_accuracy_counts_as_many_as_its_name_says(own) -> None:
    own(METRICS, "top_2_accuracy", (TOP / "pipeline/inference/metrics/top_5_accuracy.py").read_text(encoding="utf-8"))
    found = measured(["top_2_accuracy"], 3, num_samples=3)
    found.add(torch.tensor([[3.0, 2.0, 1.0]]).expand(3, 3), torch.arange(3))
    assert found.values() == {"top_2_accuracy": pytest.approx(2 / 3)}
    with pytest.raises(Refusal, match=r"^train\.metrics: top_2_accuracy needs more than 2 classes"):
        measured(["top_2_accuracy"], 2)


def test_the_metric_of_the_docs_is_measured_selects_the_weights_and_has_an_interval(own, monkeypatch, tmp_path: Path) -> None:
    text = (TOP / "docs/extending.md").read_text(encoding="utf-8").partition("\n## A metric\n")[2]
    example, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    own(METRICS, "worst_recall", example)
    monkeypatch.setattr("pipeline.evaluate.intervals.RESAMPLES", 50)  # of 200, which take seconds
    names = ["worst_recall", "auroc"]
    changes = {"train.metrics": names, "train.metric": "valid/worst_recall", "train.export_weights": "best", "evaluate.metrics": names}
    folder = project.run(project.make(tmp_path / "project", changes=changes), "prepare", "train", "evaluate")
    rows = list(csv.DictReader((folder / "plots/train/history.csv").read_text(encoding="utf-8").splitlines()))
    best = json.loads((folder / "metrics/train.json").read_bytes())["best"]
    assert best["value"] == max(float(row["valid/worst_recall"]) for row in rows if row["valid/worst_recall"])
    scores = json.loads((folder / "metrics/evaluate.json").read_bytes())["test"]
    assert scores["worst_recall"] == pytest.approx(min(each["recall"] for each in scores["per_class"].values()))
    assert scores["auroc_interval"]["low"] < scores["auroc"] < scores["auroc_interval"]["high"] <= 1
