"""`compare` of searches that repeat a training: the metrics are paired by seed and fold."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from pipeline.core.environment import Paths
from pipeline.core.refusal import Refusal
from pipeline.tools.compare.command import run
from pipeline.tools.compare.series import Series
from pipeline.tools.spread import spread
from tests.tools.compare.conftest import Checkout, Compare

BEFORE, AFTER = [0.90, 0.92, 0.91, 0.95, 0.93], [0.94, 0.95, 0.96, 0.97, 0.99]
SEEDS = [{"seed": str(seed)} for seed in range(1, 6)]


@pytest.fixture
def searches(working: Checkout) -> Path:
    """Return the folder of the searches in the checkout."""
    return working.folder / ".pipeline/search"


def write(folder: Path, model: Path, accuracies: list[float], params: list[dict[str, str]]) -> None:
    """Write the table and the models of a search, each a copy of `model`, whose trials have these parameters."""
    lines = [f"trial,outcome,valid/loss,step,{','.join(params[0])},run,reason,test/accuracy"]
    for number, (accuracy, values) in enumerate(zip(accuracies, params, strict=True)):
        lines.append(f"{number},complete,0.5,24,{','.join(values.values())},abc,,{accuracy}")
        paths = Paths(trial=folder / f"trials/{number:04}")
        paths.model.parent.mkdir(parents=True, exist_ok=True)
        paths.model.write_bytes(model.read_bytes())
        paths.params.write_bytes(Path("params.yaml").read_bytes())
    (folder / "trials.csv").write_text("\n".join([*lines, f"{len(lines)},failed,,,{','.join(params[0].values())},,no reason,"]) + "\n")


def test_two_series_print_what_differs_and_the_paired_test_of_each_metric(searches: Path, working: Checkout, compare: Compare) -> None:
    models = [next(working.folder.glob(f".pipeline/journal/{working.runs[name]}/model.safetensors")) for name in ("first", "rate")]
    write(searches / "slow", models[0], BEFORE, SEEDS)
    write(searches / "fast", models[1], AFTER[::-1], SEEDS[::-1])
    lines = compare("slow", "fast")
    assert "Only optimizer.learning_rate differs." in lines
    row = next(line.split() for line in lines if line.strip().startswith("test/accuracy"))
    test = scipy.stats.ttest_rel(AFTER, BEFORE).confidence_interval(0.95)
    assert row == [
        "test/accuracy",
        "0.9220",
        "±",
        "0.0192",
        "0.9620",
        "±",
        "0.0192",
        "+0.0400",
        f"+{test.low:.4f}",
        "to",
        f"+{test.high:.4f}",
    ]
    assert "B differs significantly from A: higher test/accuracy." in lines
    assert "No significant difference." in compare("slow", "slow")
    assert any("| test/accuracy | 0.9220 ± 0.0192 |" in line for line in compare("slow", "fast", "--markdown"))


def test_splits_of_other_data_that_no_run_records_are_not_compared(changeable: Checkout, compare: Compare) -> None:
    for name in ("first", "data"):
        model = next(changeable.folder.glob(f".pipeline/journal/{changeable.runs[name]}/model.safetensors"))
        write(changeable.folder / f".pipeline/search/{name}", model, BEFORE, SEEDS)
    shutil.rmtree(changeable.folder / ".pipeline/journal")
    lines = compare("first", "data")
    assert "Not compared: test, because its samples differ, or are not known to be equal" in lines
    assert not any(line.startswith("test/accuracy") for line in lines)


def test_series_that_cannot_be_paired_are_refused(searches: Path, working: Checkout) -> None:
    model = next(working.folder.glob(f".pipeline/journal/{working.runs['first']}/model.safetensors"))
    write(searches / "five", model, BEFORE, SEEDS)
    write(searches / "others", model, BEFORE, [{"seed": str(seed)} for seed in range(5, 10)])
    with pytest.raises(Refusal, match="five, others: have 1 seeds or folds in common, and a paired test needs two"):
        run("five", ["others"], markdown=False, ensemble=False)
    with pytest.raises(Refusal, match="compare: five is a search over seeds or folds: name only such searches, or only models"):
        run("five", [working.runs["first"]], markdown=False, ensemble=False)
    write(searches / "grid", model, BEFORE[:4], [{"model.width": width, "seed": seed} for width in "89" for seed in "12"])
    with pytest.raises(Refusal, match=r"grid: this search also varies model.width: write a search file for each combination"):
        run("five", ["grid"], markdown=False, ensemble=False)


def test_an_ordinary_search_is_no_series(tmp_path: Path) -> None:
    folder = tmp_path / ".pipeline/search/tpe"
    folder.mkdir(parents=True)
    (folder / "trials.csv").write_text("trial,outcome,valid/loss,step,model.width,run,reason\n0,complete,0.5,24,8,abc,\n")
    assert Series.find("tpe", tmp_path) is None


def test_the_interval_is_that_of_student_and_over_folds_that_of_nadeau_and_bengio() -> None:
    independent, corrected = (spread(BEFORE, folds=folds) for folds in (None, 5))
    assert corrected[:2] == independent[:2] == pytest.approx((np.mean(BEFORE), np.std(BEFORE, ddof=1)))
    assert independent[2:] == pytest.approx(scipy.stats.t.interval(0.95, 4, np.mean(BEFORE), scipy.stats.sem(BEFORE)))
    wider = (corrected.high - corrected.mean) / (independent.high - independent.mean)
    assert wider == pytest.approx(((1 / 5 + 1 / 4) / (1 / 5)) ** 0.5)
