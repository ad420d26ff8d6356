"""NaN and infinity: the step is named, its batch is saved, and a skipped step changes no weight."""

import json
import math
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference import tensor_file
from pipeline.train import stage
from pipeline.train.engine import fit, update
from pipeline.train.training import Training
from tests import project, texts
from tests.conftest import MLP
from tests.laws.test_resuming import COMMON, CONVNET, OF_TEXT
from tests.train.engine.building import HERE, begin, run, same, stop

BAD = 3
CHANGES = {**COMMON, "model": CONVNET}


def spoil(
    training: Training, monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...] = (BAD,), factor: float = math.inf
) -> list[torch.Tensor]:
    """Multiply the logits of whole steps, and return what these steps read."""
    read: list[torch.Tensor] = []
    model, compute = training.state.model, training.state.model.network.forward
    normalise = model.preprocessing.forward

    def normalise_and_record(images: torch.Tensor) -> torch.Tensor:
        if model.training and training.state.step + 1 in steps:
            read.append(images.cpu())
        return normalise(images)

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        logits = compute(inputs)
        return logits * factor if model.training and training.state.step + 1 in steps else logits

    monkeypatch.setattr(model.preprocessing, "forward", normalise_and_record)
    monkeypatch.setattr(model.network, "forward", forward)
    return read


def test_by_default_the_run_ends_at_the_report_and_names_the_step_its_samples_and_its_rate(
    train_params, prepared, tmp_path: Path, monkeypatch
) -> None:
    training = begin(train_params(CHANGES | {"train.report_every_steps": 4}), prepared, tmp_path)
    read = spoil(training, monkeypatch)
    with pytest.raises(Refusal) as caught:
        run(training)
    path = tmp_path / f"nonfinite-{BAD:012d}.safetensors"
    tensors, metadata = tensor_file.load(path)
    message = str(caught.value)
    rate = training.plan.learning_rate(BAD - 1)
    first = ", ".join(str(row) for row in tensors["rows"][:5].tolist())
    assert message.startswith(f"train.on_nonfinite: step {BAD} has a non-finite loss or gradient, at learning rate {rate:.3g} ")
    assert f"on samples {first}, ... (its batch is in {path})" in message
    assert message.endswith("lower optimizer.learning_rate, or set a lower train.clip_norm, or write `train.on_nonfinite: skip`")
    assert metadata == {"step": BAD}
    assert torch.equal(tensors["inputs"], torch.cat(read))
    assert torch.equal(tensors["targets"], torch.from_numpy(prepared.train.targets)[tensors["rows"]])


UNMEASURED = {"train.clip_norm": None, "train.report_every_steps": 4, "train.validate_every_steps": 4}


def refused(training: Training) -> str:
    with pytest.raises(Refusal) as caught:
        run(training)
    return str(caught.value)


def spoil_gradient(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Make the gradient of one step infinite while its loss is finite."""
    gather = update.accumulate_gradients

    def spoiling(state, *given, **more):
        found = gather(state, *given, **more)
        if state.step + 1 == step:
            for parameter in state.parameters:
                parameter.grad.mul_(math.inf)
        return found

    monkeypatch.setattr(update, "accumulate_gradients", spoiling)


@pytest.mark.parametrize("where", ["loss of step 3", "gradient of step 2"])
def test_where_no_norm_was_measured_both_steps_that_may_have_spoiled_it_are_named_and_kept(
    train_params, prepared, tmp_path: Path, monkeypatch, where: str
) -> None:
    training = begin(train_params(CHANGES | UNMEASURED), prepared, tmp_path)
    if where == "loss of step 3":
        spoil(training, monkeypatch)
    else:
        spoil_gradient(monkeypatch, 2)
    message = refused(training)
    assert message.startswith("train.on_nonfinite: step 3 has a non-finite loss or gradient, at learning rate ")
    assert "; or an earlier gradient was non-finite, most likely that of step 2, at learning rate " in message
    assert "; set `train.report_every_steps: 1` to find out which: lower optimizer.learning_rate" in message
    for step in (2, 3):
        path = tmp_path / f"nonfinite-{step:012d}.safetensors"
        assert f"(its batch is in {path})" in message
        assert torch.equal(tensor_file.load(path)[0]["rows"], next(training.batches(step - 1)).batch_index.rows.cpu())


@pytest.mark.parametrize(("step", "every"), [(1, 1), (3, 1), (3, 2)])
def test_a_step_is_named_alone_where_all_are_measured(train_params, prepared, monkeypatch, step: int, every: int) -> None:
    """The gradient of the step of a report is measured, so a loss after it is that of its own step."""
    training = begin(train_params(CHANGES | UNMEASURED | {"train.report_every_steps": every}), prepared)
    if every == 2:
        spoil(training, monkeypatch, (step,))
    else:
        spoil_gradient(monkeypatch, step)
    message = refused(training)
    assert message.startswith(f"train.on_nonfinite: step {step} has a non-finite loss or gradient, ")
    assert "most likely" not in message


@pytest.mark.parametrize("where", ["weight", "average of squares"])
def test_an_infinite_weight_or_moment_without_effect_on_the_loss_ends_the_training(train_params, prepared, monkeypatch, where: str) -> None:
    """An infinite bias before a ReLU only deactivates its unit, and Adam stops updating a weight whose second moment is infinite."""
    training = begin(train_params(CHANGES | UNMEASURED | {"model": MLP}), prepared)
    optimizer, bias = training.state.optimizer, training.state.parameters[1]
    step = optimizer.step

    def spoiling(*given, **more):
        step(*given, **more)
        with torch.no_grad():
            if where == "weight":
                bias[0] = -math.inf
            else:
                optimizer.state[bias]["exp_avg_sq"][0] = math.inf

    monkeypatch.setattr(optimizer, "step", spoiling)
    message = refused(training)
    assert message.startswith(f"optimizer.learning_rate: a weight or an optimizer state became inf at or before step 4: {fit.REMEDY}; ")
    assert message.endswith("set `train.report_every_steps: 1` to find the exact step")


def test_the_batch_of_mixed_samples_is_kept_with_their_shares(train_params, prepared, tmp_path: Path, monkeypatch) -> None:
    changes = {"augment.mixup": 0.4, "augment.cutmix": 1.0, "train.report_every_steps": 4, "train.micro_batch_size": 6}
    training = begin(train_params(CHANGES | changes), prepared, tmp_path)
    read = spoil(training, monkeypatch)
    with pytest.raises(Refusal):
        run(training)
    tensors, _ = tensor_file.load(tmp_path / f"nonfinite-{BAD:012d}.safetensors")
    assert torch.equal(tensors["inputs"], torch.cat(read))
    _, targets = next(next(training.batches(BAD - 1)).parts(1000))
    assert targets.shape[1] == 3
    assert torch.equal(tensors["targets"], targets.cpu())


def test_the_batch_of_a_language_model_is_kept_with_its_texts(train_params, tmp_path: Path, monkeypatch) -> None:
    prepared, read = texts.corpus(), []
    changes = {**OF_TEXT, "model": texts.TRANSFORMER_LANGUAGE_MODEL, "train.report_every_steps": 4}
    training = begin(train_params(changes), prepared, tmp_path)
    compute = training.state.model.network.forward

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        if not training.state.model.training or training.state.step + 1 != BAD:
            return compute(tokens)
        read.append(tokens.cpu())
        return compute(tokens) * math.inf

    monkeypatch.setattr(training.state.model.network, "forward", forward)
    with pytest.raises(Refusal) as caught:
        run(training)
    tensors, _ = tensor_file.load(tmp_path / f"nonfinite-{BAD:012d}.safetensors")
    rows = tensors["rows"]
    assert f"on windows from tokens {', '.join(map(str, rows[:5].tolist()))}, ..." in str(caught.value)
    assert torch.equal(tensors["inputs"], torch.cat(read))
    sequence = torch.from_numpy(prepared.train.inputs).flatten()
    positions = rows[:, None] + torch.arange(texts.LENGTH)
    assert torch.equal(tensors["inputs"], sequence[positions % len(sequence)])
    assert torch.equal(tensors["targets"], sequence[(positions + 1) % len(sequence)].long())


def test_skipping_goes_on_as_if_the_step_had_changed_nothing_and_says_so(
    train_params, prepared, tmp_path: Path, monkeypatch, capsys
) -> None:
    params = train_params({**CHANGES, "train.on_nonfinite": "skip"})
    training, other = begin(params, prepared, tmp_path), begin(params, prepared)
    spoil(training, monkeypatch)
    spoil(other, monkeypatch, factor=math.nan)
    run(training)
    run(other)
    assert same(training.state.tensors(), other.state.tensors()), "what spoiled the step left a trace"
    assert all(torch.isfinite(tensor).all() for tensor in training.state.tensors().values())
    assert [row.get("train/skipped_steps") for row in training.progress.rows] == [None, 1, None, None, None]
    assert f"warning: step {BAD} has a non-finite loss or gradient" in capsys.readouterr().out
    assert (tmp_path / f"nonfinite-{BAD:012d}.safetensors").exists()


def test_a_run_that_skipped_resumes_to_the_same_bytes(train_params, prepared, tmp_path: Path, monkeypatch) -> None:
    params = train_params({**CHANGES, "train.on_nonfinite": "skip"})
    whole, training = begin(params, prepared), begin(params, prepared, tmp_path)
    spoil(whole, monkeypatch)
    run(whole)
    spoil(training, monkeypatch)
    stop(training, BAD)
    again = begin(params, prepared, tmp_path)
    run(again)
    assert same(whole.state.tensors(), again.state.tensors())
    assert whole.progress.rows == again.progress.rows


LONG = {**CHANGES, "train.on_nonfinite": "skip", "train.steps": 40, "train.validate_every_steps": 120}


def test_a_run_ends_after_twenty_skipped_steps_in_a_row_also_if_it_was_resumed(train_params, prepared, tmp_path: Path, monkeypatch) -> None:
    params = train_params({**LONG, "train.report_every_steps": 3})
    training = begin(params, prepared, tmp_path)
    spoil(training, monkeypatch, steps=(3, *range(5, 99)))
    stop(training, 14)
    again = begin(params, prepared, tmp_path)
    spoil(again, monkeypatch, steps=tuple(range(5, 99)))
    message = r"^optimizer\.learning_rate: every step from 5 to 24 had a non-finite loss or gradient: lower optimizer"
    with pytest.raises(Refusal, match=message):
        run(again)


def test_skipped_steps_that_fill_a_report_do_not_end_a_run(train_params, prepared, monkeypatch) -> None:
    """Such as a last report of one step, and every report of `train.report_every_steps: 1`."""
    training = begin(train_params({**LONG, "train.report_every_steps": 3}), prepared)
    spoil(training, monkeypatch, steps=(*range(4, 23), 40))
    run(training)
    assert [row.get("train/skipped_steps") for row in training.progress.rows] == [None, *[3] * 6, 1, *[None] * 5, 1]


def test_a_run_whose_every_step_was_skipped_ends_without_a_model(train_params, prepared, monkeypatch) -> None:
    training = begin(train_params({**CHANGES, "train.on_nonfinite": "skip"}), prepared)
    spoil(training, monkeypatch, steps=tuple(range(1, 99)))
    message = r"^train\.on_nonfinite: every step from 1 to \d+ had a non-finite loss or gradient: with the initial weights, before any update, outputs are"
    with pytest.raises(Refusal, match=message):
        run(training)


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ("outputs", "outputs are not finite: correct the model or the inputs, or write"),
        ("loss", "the outputs are finite, but the loss is not: correct the loss or the targets, or write"),
        ("gradient", "outputs and loss are finite, but a gradient is not: correct the model or the loss, or write"),
    ],
)
def test_for_the_first_step_no_learning_rate_is_the_remedy(train_params, prepared, monkeypatch, spoilt: str, message: str) -> None:
    training = begin(train_params(CHANGES), prepared)
    loss, made = training.objective.training_loss, []

    def training_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        made.append(loss(outputs, targets))
        if spoilt == "gradient":
            made[-1].register_hook(lambda gradient: gradient * math.nan)
        return made[-1] * math.nan if spoilt == "loss" and len(made) == 2 else made[-1]  # the second micro-batch of the step

    monkeypatch.setattr(training.objective, "training_loss", training_loss)
    if spoilt == "outputs":
        spoil(training, monkeypatch, steps=(1,))
    with pytest.raises(Refusal, match=rf"^train\.on_nonfinite: step 1 has .*: with the initial weights, before any update, {message}"):
        run(training)


def test_an_infinite_loss_with_finite_gradients_is_no_overflow_of_the_scale(train_params, prepared, monkeypatch) -> None:
    changes = {"model": MLP, "train.precision": "fp16", "train.validate_every_steps": 8}
    training, gather = begin(train_params(CHANGES | changes), prepared), update.accumulate_gradients
    monkeypatch.setattr(
        update,
        "accumulate_gradients",
        lambda *given, **more: (gather(*given, **more)[0] * math.inf, {"correct": torch.tensor(1.0, device=HERE.device)}),
    )
    with pytest.raises(Refusal, match=r"^optimizer\.learning_rate: train/objective became inf at or before step 2: lower optimizer"):
        run(training)


def test_the_batch_of_a_skipped_step_outlives_the_training(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.chdir(project.make(tmp_path, {"train.on_nonfinite": "skip"}))
    assert main(["prepare"]) == 0
    gather = update.accumulate_gradients

    def spoiling(state, *given, **more):
        loss, correct = gather(state, *given, **more)
        return (loss * math.nan if state.step == BAD - 1 else loss), correct

    monkeypatch.setattr(update, "accumulate_gradients", spoiling)
    for _ in range(2):  # a forced repeat of equal inputs is a training of its own
        assert main(["train"]) == 0
        message = capsys.readouterr().out
        assert "from the beginning" in message
        (kept,) = tmp_path.glob(f".pipeline/work/*/nonfinite-{BAD:012d}.safetensors")
        assert str(kept.relative_to(tmp_path)) in message
        assert {path.name for path in kept.parent.iterdir()} == {kept.name, "inputs.json"}


LATE = {
    "train.export_weights": "best",
    "train.ema_decay": 0.0,
    "train.on_nonfinite": "stop",
    "train.clip_norm": None,
    "train.report_every_steps": 8,
}


def test_after_a_late_nan_both_ways_on_that_the_message_names_work(tmp_path: Path, monkeypatch, capsys) -> None:
    """Later checkpoints, whose weights are not finite, do not displace the last one whose weights are."""
    for name, value in {"TRACKING": "false", "CHECKPOINT_EVERY_STEPS": "1", "CHECKPOINTS_KEPT": "2", "DEVICE": "cpu"}.items():
        monkeypatch.setenv(f"PIPELINE_{name}", value)
    monkeypatch.chdir(project.make(tmp_path, LATE | {"train.export_weights": "last", "train.ema_decay": 0.5}))
    assert main(["prepare"]) == 0
    with monkeypatch.context() as patch:
        spoil_gradient(patch, 13)
        messages = []
        for _ in range(2):
            assert main(["train"]) == 2
            messages.append(capsys.readouterr().err)
    assert messages[0] == messages[1]
    checkpoints = [path.name for path in sorted(tmp_path.glob(".pipeline/work/*/step-*"))]
    assert checkpoints == ["step-000000000012.safetensors", *(f"step-{each:012d}.nonfinite.safetensors" for each in (14, 15))]
    commands = [each for each in re.findall("`(.*?)`", messages[0]) if " set " in each]
    assert len(commands) == 2
    for number, command in enumerate(commands):
        for words in map(shlex.split, command.split("&&")):
            if words[:3] == ["python", "-m", "pipeline"]:
                assert main(words[3:]) == 0
            else:
                subprocess.run(words, check=True)
        assert main(["train"]) == 0
        output = capsys.readouterr().out
        assert "from the beginning" in output
        assert (f"tensors start from data/weights/{checkpoint_key(messages[0])}-step-12.safetensors\n" in output) == bool(number)


@pytest.mark.usefixtures("unplotted")
def test_with_finish_a_late_nan_ends_in_the_best_weights_also_after_a_kill_before_they_are_written(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    for name, value in {"TRACKING": "false", "CHECKPOINT_EVERY_STEPS": "1", "DEVICE": "cpu"}.items():
        monkeypatch.setenv(f"PIPELINE_{name}", value)
    monkeypatch.chdir(project.make(tmp_path, LATE | {"train.on_nonfinite": "finish"}))
    assert main(["prepare"]) == 0
    write = stage.write_results

    def killed(*_: object) -> None:
        raise SystemExit(137)

    spoil_gradient(monkeypatch, 13)
    written = []
    for interruption in (None, killed):
        if interruption:
            monkeypatch.setattr(stage, "write_results", interruption)
            with pytest.raises(SystemExit):
                main(["train"])
            monkeypatch.setattr(stage, "write_results", write)
        assert main(["train"]) == 0
        assert "after step 8, epoch" in (output := capsys.readouterr().out)
        assert "; a non-finite value ended the training after step 16 of " in output
        written.append([Path(name).read_bytes() for name in ("models/model.safetensors", "metrics/train.json", "plots/train/history.csv")])
    assert written[0] == written[1]
    _, manifest = tensor_file.load(Path("models/model.safetensors"))
    assert (manifest["step"], manifest["ended_at"], json.loads(written[0][1])["ended_at"]) == (8, 16, 16)
    assert main(["evaluate"]) == 0


def test_with_finish_every_way_to_diverge_ends_in_the_best_weights_and_nothing_before_the_first_validation(
    train_params, prepared, tmp_path: Path, monkeypatch
) -> None:
    changes = CHANGES | {"train.on_nonfinite": "finish", "train.export_weights": "best", "train.report_every_steps": 1}
    for best in (2, 4):
        training = begin(train_params(changes | {"train.validate_every_steps": best}), prepared, tmp_path)
        spoil(training, monkeypatch)
        if best > BAD:
            assert "train.on_nonfinite: step 3 has a non-finite loss" in refused(training)
        else:
            run(training)
            assert (training.exported()[1], training.progress.ended_at) == (best, BAD)
    training = begin(train_params(changes | {"train.validate_every_steps": 1}), prepared, tmp_path)
    score = iter([{"loss": 1.0}, {"loss": math.inf}])
    monkeypatch.setattr(type(training), "validation", lambda *_: lambda: {"accuracy": 0.5} | next(score))
    run(training)
    assert (training.exported()[1], training.progress.ended_at) == (1, 2)


def checkpoint_key(message: str) -> str:
    found = re.search(r"/work/(\w{8})\w*/weights-", message)
    assert found
    return found[1]


def test_a_run_that_diverges_is_said_in_words_once(train_params, prepared, monkeypatch, capsys) -> None:
    training = begin(train_params(CHANGES | {"train.report_every_steps": 1, "train.validate_every_steps": 9}), prepared)
    spoil(training, monkeypatch, steps=(3, 4, 5), factor=1e6)
    run(training)
    assert (
        capsys.readouterr().out.count(
            "warning: at step 3 the loss is far above the loss of uniform guessing: lower optimizer.learning_rate"
        )
        == 1
    )


def test_nothing_synchronises_with_the_device_between_reports(train_params, prepared, monkeypatch) -> None:
    """Synchronisations are counted: one for the metrics of a report and one for a validation, for any number of steps."""
    reads = []
    for name in ("item", "tolist", "__float__", "__bool__", "__int__"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, *args, read=read, name=name: reads.append(name) or read(self, *args))
    counts = []
    for steps in (4, 8):
        changes = {"train.steps": steps, "train.report_every_steps": steps, "train.validate_every_steps": steps}
        training = begin(train_params(CHANGES | changes | {"train.on_nonfinite": "skip"}), prepared)
        reads.clear()
        run(training)
        counts.append(len(reads))
    assert counts[0] == counts[1] <= 3, counts
