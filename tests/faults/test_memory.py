"""Out of memory during a step gives the bytes of a training that used the smaller micro-batch from that step on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference import model_file
from pipeline.train.engine import update
from pipeline.train.engine.plan import Plan
from pipeline.train.training import Training
from tests import project
from tests.laws.test_resuming import COMMON, CONVNET
from tests.train.engine.building import HERE, begin, run, same, stop

STEP = 3
CHANGES = {**COMMON, "model": CONVNET}
MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB (injected)"


class Shortage:
    """Raises an out-of-memory error in forward or backward number `call` (from 0) of one step."""

    def __init__(self, training: Training, monkeypatch: pytest.MonkeyPatch, *, where: str, call: int, times: int = 1) -> None:
        self.training, self.call, self.times, self.calls = training, call, times, 0
        network = training.state.model.network
        compute, descend = network.forward, torch.autograd.backward

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            logits = compute(inputs)  # BatchNorm has moved its statistics when the memory runs out
            if where == "forward":
                self.count()
            return logits

        def backward(loss: torch.Tensor, gradient: torch.Tensor) -> None:
            descend(loss, gradient)  # as bad as it gets: the gradients of this micro-batch are there already
            if where == "backward":
                self.count()

        monkeypatch.setattr(network, "forward", forward)
        monkeypatch.setattr(torch.autograd, "backward", backward)

    def count(self) -> None:
        if self.training.state.step != STEP - 1 or not self.training.state.model.training:
            return
        self.calls += 1
        if self.calls > self.call and self.times:
            self.times -= 1
            raise torch.OutOfMemoryError(MESSAGE)


def with_micro_batch_changes(params, prepared, *changes: tuple[int, int]) -> Training:
    planned = [{"step": step, "micro_batch_size": size} for step, size in changes]
    training = Training.begin(params, prepared, HERE, begin(params, prepared).saver.checkpoints, micro_batch_changes=planned)
    run(training)
    return training


@pytest.mark.parametrize(("where", "call"), [("forward", 1), ("backward", 2)])
def test_a_step_that_ran_out_of_memory_is_repeated_as_if_it_had_begun_so(
    train_params, prepared, monkeypatch, capsys, where: str, call: int
) -> None:
    params = train_params(CHANGES)
    expected = with_micro_batch_changes(params, prepared, (STEP, 3))
    training = begin(params, prepared)
    with monkeypatch.context() as patch:
        shortage = Shortage(training, patch, where=where, call=call)
        run(training)
    assert shortage.times == 0
    assert same(training.state.tensors(), expected.state.tensors())
    assert training.progress.rows == expected.progress.rows
    assert training.progress.micro_batch_changes == expected.progress.micro_batch_changes == [{"step": STEP, "micro_batch_size": 3}]
    assert (
        f"out of memory at step {STEP}: using micro-batches of 3 from this step on; to start with this size, write `train.micro_batch_size: 3`"
        in capsys.readouterr().out
    )


def test_the_micro_batch_is_halved_as_often_as_needed_and_the_last_word_counts(train_params, prepared, monkeypatch) -> None:
    params = train_params(CHANGES)
    training = begin(params, prepared)
    Shortage(training, monkeypatch, where="forward", call=0, times=2)
    run(training)
    assert training.progress.micro_batch_changes == [{"step": STEP, "micro_batch_size": 1}]


def test_the_samples_of_a_lane_limit_the_size_that_is_halved(train_params, prepared, monkeypatch) -> None:
    training = begin(train_params({**CHANGES, "train.lanes": 2, "train.micro_batch_size": 16}), prepared)
    Shortage(training, monkeypatch, where="forward", call=0)
    run(training)
    assert training.progress.micro_batch_changes == [{"step": STEP, "micro_batch_size": training.params.train.batch_size // 4}]


def test_a_batch_that_cuda_graphs_take_whole_is_not_cut(train_params, prepared, monkeypatch) -> None:
    training = begin(train_params({**CHANGES, "train.micro_batch_size": 16}), prepared)
    monkeypatch.setattr(
        Plan, "step_settings", lambda self, step, step_settings=Plan.step_settings: replace(step_settings(self, step), may_split=False)
    )
    Shortage(training, monkeypatch, where="forward", call=0)
    with pytest.raises(
        Refusal,
        match=f"train.compile: out of memory at step {STEP}, and `graphs` cannot use a smaller micro-batch: write `train.compile: default`",
    ):
        run(training)


def test_below_one_sample_there_is_a_clear_end(train_params, prepared, monkeypatch) -> None:
    training = begin(train_params(CHANGES), prepared)
    Shortage(training, monkeypatch, where="backward", call=0, times=99)
    with pytest.raises(Refusal, match=f"train.micro_batch_size: out of memory at step {STEP} with one sample: choose a smaller model"):
        run(training)


def test_a_resume_goes_on_with_the_micro_batch_that_fitted(train_params, prepared, tmp_path: Path, monkeypatch) -> None:
    params = train_params(CHANGES)
    expected, training = with_micro_batch_changes(params, prepared, (STEP, 3)), begin(params, prepared, tmp_path)
    with monkeypatch.context() as patch:
        Shortage(training, patch, where="backward", call=2)
        stop(training, STEP + 2)
    again = begin(params, prepared, tmp_path)
    assert again.state.step == STEP + 2
    run(again)
    assert same(again.state.tensors(), expected.state.tensors())
    assert again.progress.micro_batch_changes == expected.progress.micro_batch_changes


def test_an_allocation_that_a_cpu_refuses_is_a_shortage() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60)
    assert update.is_out_of_memory(refused.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setenv("PIPELINE_CHECKPOINT_EVERY_STEPS", "1")
    monkeypatch.chdir(project.make(tmp_path, {"model": CONVNET, "train.steps": 8, "train.micro_batch_size": 24}))
    assert main(["prepare"]) == 0
    return tmp_path


def test_the_model_file_names_the_switch(folder: Path, monkeypatch) -> None:
    raised, accumulate_gradients = [], update.accumulate_gradients

    def fail_once(state, batch, micro_batch_size, **more):
        if state.step == 4 and not raised:
            raised.append(micro_batch_size)
            raise torch.OutOfMemoryError(MESSAGE)
        return accumulate_gradients(state, batch, micro_batch_size, **more)

    monkeypatch.setattr(update, "accumulate_gradients", fail_once)
    assert main(["train"]) == 0
    _, manifest = model_file.load(folder / "models/model.safetensors")
    assert raised == [24]
    assert manifest.switches == [{"step": 5, "micro_batch_size": 12}]


def test_a_failure_inside_the_optimizer_ends_the_run_and_never_repeats_the_step_half_done(folder: Path, monkeypatch, capsys) -> None:
    assert main(["train"]) == 0
    whole = (folder / "models/model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        step = torch.optim.AdamW.step

        def fail(self, *args):
            step(self, *args)
            if any(int(state["step"]) == 5 for state in self.state.values()):
                raise torch.OutOfMemoryError(MESSAGE)

        patch.setattr(torch.optim.AdamW, "step", fail)
        assert main(["train"]) == 2
        assert (
            "train.micro_batch_size: out of memory, and a retry with smaller micro-batches is not possible here" in capsys.readouterr().err
        )
    assert main(["train"]) == 0
    assert "resuming after step 4" in capsys.readouterr().out
    assert (folder / "models/model.safetensors").read_bytes() == whole
    assert json.loads((folder / "metrics/train.json").read_text())["steps"] == 8


def test_a_network_that_does_not_fit_is_said_in_words(folder: Path, monkeypatch, capsys) -> None:
    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError(MESSAGE)

    monkeypatch.setattr(Training, "begin", fail)
    assert main(["train"]) == 2
    assert (
        "model: out of memory, and a retry with smaller micro-batches is not possible here: choose a smaller model"
        in capsys.readouterr().err
    )
