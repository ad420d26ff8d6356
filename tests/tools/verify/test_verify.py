"""`verify` prints `identical` after a new training, else what is equal, or the first difference with both values; it changes nothing."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.core.section import ValueOf
from pipeline.core.yaml_document import Document
from pipeline.evaluate.reports import recorded
from pipeline.inference import machine, model_file, networks, tensor_file
from pipeline.runs import find, provenance
from pipeline.runs.mlflow.address import Address
from pipeline.tools.verify import command
from pipeline.train.engine import update
from pipeline.train.params import LoopSettings
from tests import project
from tests.repository import GIT, call, repository

MODEL = Path("models/model.safetensors")
QUICK = {"train.steps": 4, "train.report_every_steps": 2, "train.validate_every_steps": 4}
EQUAL = "equal: "
Verify = Callable[..., list[str]]
PLOTS = "pipeline.tasks.classification.evaluate.Evaluator.write"
"""Writes the tables and figures of an evaluation, which takes longer than the rest and which `verify` does not read."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a committed checkout after its three stages, with the journal of the run."""
    folder = repository(tmp_path_factory.mktemp("finished"), QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PIPELINE_TRACKING", "true")
        patch.setenv("PIPELINE_TRACKING_WAIT_S", "0")
        patch.setattr(PLOTS, lambda *_, **__: None)
        assert main(["prepare"]) == main(["train"]) == main(["evaluate"]) == 0
    return folder


@pytest.fixture
def checkout(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy of it, which is the working folder of the test."""
    folder = tmp_path / "checkout"
    shutil.copytree(finished, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setattr(PLOTS, lambda *_, **__: None)
    threads = torch.get_num_threads()
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """Return a function that runs `verify`, checks that the exit code fits the last line, and returns the lines."""

    def run(*arguments: str) -> list[str]:
        capsys.readouterr()
        code = main(["verify", *arguments])
        lines = capsys.readouterr().out.splitlines()
        assert code == (0 if lines[-1] == "identical" or lines[-1].startswith(EQUAL) else 1)
        return lines

    return run


def compared(output: list[str]) -> list[str]:
    """Return the names of the comparisons; all but the last must be equal."""
    lines = [line.split()[1:3] for line in output if line.startswith("verify: ") and line.split()[2] in ("equal", "differs")]
    assert all(outcome == "equal" for _, outcome in lines[:-1])
    return [name for name, _ in lines]


def run_name() -> str:
    (journal,) = Path(".pipeline/journal").iterdir()
    return journal.name


def reseal(change: Callable[[dict, dict], None]) -> None:
    """Change tensors or metadata of the model file, and renew its digest."""
    tensors, metadata = tensor_file.load(MODEL)
    change(tensors, metadata)
    tensor_file.save(MODEL, tensors, metadata)


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): files.digest(path) for path in files.members(folder)}


def test_a_fresh_model_is_identical_and_verifying_it_changes_nothing(checkout: Path, verify: Verify) -> None:
    before = contents(checkout)
    lines = verify("--retrain")
    assert lines[-1] == "identical"
    assert " ".join(compared(lines)) == "file code lock data params source machine score weights training bytes"
    assert contents(checkout) == before


def test_a_run_is_verified_with_its_commit_and_its_own_scores(checkout: Path, verify: Verify) -> None:
    lines = verify(run_name())
    assert " ".join(compared(lines)) == "run file code lock data params source machine commit changes score scores"
    assert lines[-1] == f"equal: {', '.join(compared(lines))}; nothing was trained: `--retrain` trains again and compares the weights"


def test_data_that_were_prepared_with_other_parameters_differ(checkout: Path, verify: Verify) -> None:
    assert main(["set", "source.seed=2"]) == 0
    lines = verify()
    assert compared(lines)[-1] == "source"
    assert lines[-1] == "differs: source: source.seed: 1 in data/prepared, but 2 in params.yaml: run `dvc repro -f prepare`"


def test_a_model_of_an_earlier_version_is_trained_again_with_the_added_parameters(checkout: Path, verify: Verify, monkeypatch) -> None:
    def make_older(_: dict, metadata: dict) -> None:
        metadata["inputs"]["code"] = "0" * 64
        del metadata["params"]["train"]["micro_batch_size"]
        metadata["params"]["train"]["label_smoothing"] = metadata["params"].pop("loss")["label_smoothing"]

    expected = verify("--retrain")
    reseal(make_older)
    monkeypatch.setattr(LoopSettings, "ADDED", {"micro_batch_size": ValueOf("train.batch_size")})
    assert verify()[-1].startswith("differs: code: 000000000000 in the file, but ")
    lines = verify("--retrain")
    assert lines[-1] == "differs: code; all else is equal"
    assert len([line for line in lines if line.startswith("verify: ")]) == len([line for line in expected if line.startswith("verify: ")])


def test_a_run_is_equal_on_the_commit_that_adds_its_parameters_and_results(checkout: Path, verify: Verify, monkeypatch) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setenv("PIPELINE_TRACKING_WAIT_S", "0")
    shutil.rmtree(".pipeline/journal")
    assert main(["set", "optimizer.learning_rate=0.02"]) == 0
    assert main(["train"]) == main(["evaluate"]) == 0
    call(checkout, *GIT, "add", "params.yaml", "metrics", "plots")
    call(checkout, *GIT, "commit", "--quiet", "--message", "parameters and results")
    assert verify(run_name())[-1].startswith(EQUAL)
    Path("README.md").write_text("other words", encoding="utf-8")
    call(checkout, *GIT, "add", "README.md")
    call(checkout, *GIT, "commit", "--quiet", "--message", "words")
    assert re.fullmatch(r"differs: commit: \w{12} in the journal, but \w{12} in this checkout", verify(run_name())[-1])
    assert verify()[-1].startswith(EQUAL), "a model file holds no commit"


def test_the_summary_names_the_run_and_refuses_scores_of_another_model(checkout: Path, monkeypatch, capsys, refused) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    assert main(["summary"]) == 0
    *_, model, hint = capsys.readouterr().out.splitlines()
    assert model.endswith(f"run: {run_name()}")
    assert hint == "compare runs: make ui"
    reseal(lambda _, metadata: metadata.update(step=3))
    assert refused("summary") == [f"metrics/evaluate.json: has the scores of another model, not those of {MODEL}: run `dvc repro`"]
    MODEL.unlink()
    assert refused("summary") == [f"{MODEL}: is missing: run `dvc repro`"]


def test_the_checkouts_file_replaces_a_copy_that_was_moved_to_mlflow(checkout: Path, verify: Verify, refused) -> None:
    Path(".pipeline/journal", run_name(), "model.safetensors").unlink()
    assert verify(run_name())[-1].startswith(EQUAL)
    reseal(lambda _, metadata: metadata.update(step=3))
    remedy = "run `dvc repro` with the run's parameters, which restores the model from DVC's cache if it is there"
    assert refused("verify", run_name()) == [f"{run_name()}: the model of this run is neither on this machine nor in MLflow: {remedy}"]


def test_the_model_of_a_later_training_in_the_same_run_of_mlflow_differs(checkout: Path, verify: Verify, monkeypatch) -> None:
    Path(".pipeline/journal", run_name(), "model.safetensors").unlink()
    reseal(lambda _, metadata: metadata.update(step=3))
    stores = {"sqlite:///elsewhere.db": {"run_id": "0" * 32}, Address.of(Environment.read()).key: {"run_id": "1" * 32}}
    files.write_json(Path(".pipeline/journal", run_name(), "delivered.json"), stores)
    asked = []
    monkeypatch.setattr(find, "from_mlflow", lambda name, *_: asked.append(name) or MODEL)
    assert re.fullmatch(rf"differs: run: \w{{12}} in the journal, but \w{{12}} in {MODEL}, the model of a later .*", verify(run_name())[-1])
    assert asked == ["1" * 32], "the run's id in the store of MLFLOW_TRACKING_URI"


def flip_a_bit() -> None:
    content = bytearray(MODEL.read_bytes())
    content[-1] ^= 1
    MODEL.write_bytes(content)


def prepare_other_data() -> None:
    project.write_params(Path(), {**QUICK, "source.test": 0.3})
    assert main(["prepare"]) == 0


def damage_the_data() -> None:
    path = Path("data/prepared/train-inputs.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def append(path: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("\n# edited\n")


def edit_the_parameters() -> None:
    project.write_params(Path(), {**QUICK, "optimizer.learning_rate": 0.25})


def edit_a_score() -> None:
    path = Path("metrics/evaluate.json")
    path.write_text(re.sub(r'"accuracy": [\d.]+', '"accuracy": 0.75', path.read_text(encoding="utf-8")), encoding="utf-8")


DIGESTS = r"\w{12} in the file, but \w{12} in this checkout \(`dvc status train` names what changed\)"
DIFFERENCES = {
    "a flipped bit": (flip_a_bit, r"file: \w{12} in the file, but \w{12} in its contents: the file was damaged, or changed by hand"),
    "other data": (prepare_other_data, f"data: {DIGESTS}"),
    "damaged data": (
        damage_the_data,
        r"data: \w{12} in the file, but none that can be read \(data/prepared/train-inputs.npy: does not match.*",
    ),
    "missing code": (
        lambda: Path("pipeline/models/mlp.py").unlink(),
        r"code: \w{12} in the file, but no pipeline/models/mlp.py in this checkout .*",
    ),
    "another lock file": (lambda: append("requirements.lock"), f"lock: {DIGESTS}"),
    "other parameters": (edit_the_parameters, r"params: optimizer.learning_rate: 0.003 in the file, but 0.25 in params.yaml"),
    "another score": (edit_a_score, r"score: accuracy: 0.75 in metrics/evaluate.json, but 0\.\d+ in this evaluation"),
}


@pytest.mark.parametrize(("change", "message"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_the_first_difference_is_printed_with_both_values(checkout: Path, verify: Verify, change, message: str) -> None:
    change()
    assert re.fullmatch(f"differs: {message}", next(line for line in verify("--retrain") if line.startswith("differs: ")))


def test_another_number_of_threads_is_a_difference_of_the_machine(checkout: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setenv("PIPELINE_THREADS", str(threads + 1))
    assert verify()[-1] == f"differs: machine: threads: {threads} in the file, but {threads + 1} in this machine"


CPUS = {
    "a file of an earlier version, which names no CPU": (None, "{here}", "nothing in the file, but {here} in this machine"),
    "unknown in both": ("unknown", "unknown", "unknown in the file, but unknown in this machine: the two may differ"),
}


@pytest.mark.parametrize(("there", "here", "message"), CPUS.values(), ids=CPUS)
def test_a_cpu_that_is_another_or_unknown_is_a_difference_of_the_machine(
    checkout: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch, there: str | None, here: str, message: str
) -> None:
    cpu = machine.cpu_model()
    there, here = there and there.format(here=cpu), here.format(here=cpu)
    monkeypatch.setattr(machine, "cpu_model", lambda: here)

    def recorded(_: dict, metadata: dict) -> None:
        metadata["fingerprint"] |= {"cpu": there}
        if there is None:
            del metadata["fingerprint"]["cpu"], metadata["fingerprint"]["extensions"]

    reseal(recorded)
    lines = verify()
    assert lines[-1] == f"differs: machine: cpu: {message.format(there=there, here=here)}"
    assert model_file.load(MODEL), "such a file is read as ever"


def test_an_edited_checkout_differs_from_that_of_a_run(checkout: Path, verify: Verify) -> None:
    append("pipeline/tools/ui.py")
    assert re.fullmatch(
        r"differs: changes: none in the journal, but M pipeline/tools/ui.py \(digest \w{12}\) in this checkout", verify(run_name())[-1]
    )


def test_an_unknown_commit_is_a_difference(checkout: Path, verify: Verify) -> None:
    journal = Path(".pipeline/journal", run_name(), "events.jsonl")
    commit = call(checkout, "git", "rev-parse", "HEAD").strip()
    shutil.rmtree(".git")
    unknown = provenance.gather(Environment.read())["git.commit"]
    journal.write_text(journal.read_text(encoding="utf-8").replace(commit, unknown), encoding="utf-8")
    assert verify(run_name())[-1] == f"differs: commit: {unknown} in the journal, but {unknown} in this checkout"


def test_the_scores_of_a_run_are_compared_with_its_journal(checkout: Path, verify: Verify) -> None:
    journal = Path(".pipeline/journal", run_name(), "events.jsonl")
    edited = re.sub(r'"test/accuracy":[\d.]+', '"test/accuracy":0.75', journal.read_text(encoding="utf-8"))
    journal.write_text(edited, encoding="utf-8")
    assert re.fullmatch(r"differs: scores: test/accuracy: 0.75 in the journal, but 0\.\d+ in this evaluation", verify(run_name())[-1])


def test_a_metric_of_an_earlier_evaluation_only_is_no_difference(checkout: Path, verify: Verify, monkeypatch) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setenv("PIPELINE_TRACKING_WAIT_S", "0")
    for metrics in ("[cohen_kappa]", "[]"):
        assert main(["set", f"evaluate.metrics={metrics}"]) == main(["evaluate"]) == 0
    assert verify(run_name())[-1].startswith(EQUAL)


def one_weight(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return tensors[sorted(tensors)[0]]


def test_a_weight_that_differs_after_training_again_is_named(checkout: Path, verify: Verify) -> None:
    reseal(lambda tensors, _: one_weight(tensors).view(-1)[:2].add_(0.5))
    assert main(["evaluate"]) == 0
    name = sorted(tensor_file.load(MODEL)[0])[0]
    assert verify()[-1].startswith(EQUAL), "without --retrain the weights are compared only with their digest and score"
    assert re.fullmatch(rf"differs: weights: {name}: 2 of \d+ elements differ, by 0.5 at most", verify("--retrain")[-1])


def test_tensors_of_other_forms_or_bits_differ() -> None:
    zero, half = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float16)
    assert command.difference("w", zero, half) == "w: float32 (2, 3) in the file, float16 (2, 3) in the new training"
    assert command.difference("w", zero, None) == "w: float32 (2, 3) in the file, nothing in the new training"
    assert command.difference("w", zero, -zero) == "w: 6 of 6 elements differ, by 0 at most"
    assert command.difference("w", zero / 0, zero / 0) is None, "equal bits of NaN"


BEST = {**QUICK, "train.steps": 8, "train.export_weights": "best"}


def test_a_step_that_differs_after_training_again_is_named(checkout: Path, verify: Verify) -> None:
    project.write_params(Path(), BEST)
    assert main(["train"]) == 0
    best = tensor_file.load(MODEL)[1]["step"]
    other = {4: 8, 8: 4}[best]
    reseal(lambda _, metadata: metadata.update(step=other))
    assert main(["evaluate"]) == 0
    assert verify("--retrain")[-1] == f"differs: training: step: {other} in the file, but {best} in the new training"


def test_a_manifest_that_contradicts_its_data_or_parameters_is_named_after_training_again(checkout: Path, verify: Verify) -> None:
    reseal(lambda _, metadata: metadata.update(channels_last=True))
    assert main(["evaluate"]) == 0
    assert verify("--retrain")[-1] == "differs: training: channels_last: true in the file, but false in the new training"


def test_an_equal_model_in_a_file_of_other_bytes_differs(checkout: Path, verify: Verify) -> None:
    content = MODEL.read_bytes()
    size = int.from_bytes(content[:8], "little")
    MODEL.write_bytes((size + 8).to_bytes(8, "little") + content[8 : 8 + size] + b" " * 8 + content[8 + size :])
    assert verify("--retrain")[-1].startswith("differs: bytes: ")


def test_a_training_that_ran_out_of_memory_is_repeated_with_the_same_micro_batches(checkout: Path, verify: Verify, monkeypatch) -> None:
    raised, accumulate = [], update.accumulate_gradients

    def fail_once(state, batch, micro_batch_size, **more):
        if state.step == 2 and not raised:
            raised.append(micro_batch_size)
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        return accumulate(state, batch, micro_batch_size, **more)

    with monkeypatch.context() as patch:
        patch.setattr(update, "accumulate_gradients", fail_once)
        assert main(["train"]) == main(["evaluate"]) == 0
    assert raised == [64]
    assert verify("--retrain")[-1] == "identical"


def test_a_subject_that_cannot_be_found_and_a_missing_file_are_refused(checkout: Path, refused: Callable[..., list[str]]) -> None:
    kinds = "model file, run, model in MLflow, DVC experiment or git revision"
    assert refused("verify", "nobody") == [f"nobody: is no {kinds} of this checkout: give another name; the newest runs are {run_name()}"]
    for missing, message in (
        ("metrics/evaluate.json", "metrics/evaluate.json: is missing: run `dvc repro`"),
        ("data/prepared/spec.json", "data/prepared/spec.json: is missing: run `dvc repro prepare`"),
        ("models/model.safetensors", "models/model.safetensors: is missing: DVC removes it until "),
    ):
        Path(missing).unlink()
        assert refused("verify")[0].startswith(message)
    Path(".pipeline/journal", run_name(), "model.sha256").unlink()
    assert "this run has no model" in refused("verify", run_name())[0]


def test_metrics_of_another_program_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluate.json"
    for content in ('"[1]"', "{", "{}", '{"test": {}, "model": "x"}', '{"test": {"accuracy": null}, "model": "x"}', "[" * 100_000):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(Refusal, match=r"evaluate\.json: was not written by this version of the pipeline"):
            recorded.read(path)


def test_scoring_is_refused_as_in_the_stage_evaluate(checkout: Path, refused: Callable[..., list[str]], monkeypatch) -> None:
    monkeypatch.setattr(networks, "predict", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory (injected)")))
    assert "evaluate.batch_size: out of memory" in refused("evaluate")[0]
    project.write_params(Path(), {**QUICK, "evaluate.top_k": 11})
    line = Document.read(Path("params.yaml")).line(("evaluate", "top_k"))
    message = f"params.yaml:{line}: evaluate.top_k: 11 is more than the 10 classes of this dataset: write at most 10"
    assert refused("verify") == refused("evaluate") == [message]
