"""Every model on a GPU: it resumes to equal bytes in each precision and compiled form, and learns what it learns on a CPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.inference import torch_errors
from pipeline.inference.machine import Machine
from pipeline.models import recurrent
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.training import Training
from tests.gpu.conftest import Data
from tests.gpu.models import EVERY_MODEL, EVERY_PRECISION, MODELS, PRECISIONS, changes_of
from tests.laws.test_resuming import SGD, STEPS, assert_same_end
from tests.train.engine.building import stop

WHOLE_BATCH = {"train.micro_batch_size": 16, "train.precision": "bf16"}
"""CUDA graphs need micro-batches of one size."""
STOP = 5
"""The step after which a training is stopped: between two reports, and between two validations."""


def interrupted(begin: Callable[..., Training], params, prepared: Prepared) -> Training:
    """Train to the step STOP, then resume in a training that uses only the checkpoint."""
    first = begin(params, "stopped", prepared)
    stop(first, STOP)
    resumed = begin(params, "stopped", prepared)
    assert resumed.state.step == STOP
    list(resumed.reports())
    return resumed


def assert_resumes_to_the_same_bytes(begin: Callable[..., Training], params, prepared: Prepared) -> None:
    whole = begin(params, "whole", prepared)
    first = {name: weight.detach().clone() for name, weight in whole.state.model.named_parameters() if weight.requires_grad}
    list(whole.reports())
    assert_trained(first, whole)
    assert_same_end(whole, interrupted(begin, params, prepared))


def assert_trained(first: dict[str, Tensor], training: Training) -> None:
    """The weights have moved from the `first` ones, as a whole by less than these are large: equal bytes could be zeros everywhere."""
    moved, size = 0.0, 0.0
    after = dict(training.state.model.named_parameters())
    for name, before in first.items():
        difference = (after[name].detach().double() - before.double()).norm()
        # the bias of an attention's keys, for example, has no gradient, and bf16 rounds small updates away
        assert difference or before.ndim < 2 or before.dtype == torch.bfloat16, name
        moved, size = moved + difference**2, size + before.double().norm() ** 2
    assert 0 < moved < size


@EVERY_MODEL
@EVERY_PRECISION
def test_it_resumes_to_the_same_bytes_in_each_precision(train_params, begin, data: Data, model: str, precision: str) -> None:
    assert_resumes_to_the_same_bytes(begin, train_params(changes_of(model, PRECISIONS[precision])), data(MODELS[model][0]))


@EVERY_MODEL
@pytest.mark.filterwarnings("default")  # whatever a compiler warns of
@pytest.mark.parametrize("mode", ["default", "graphs"])
def test_it_resumes_to_the_same_bytes_when_compiled(train_params, begin, data: Data, monkeypatch, tmp_path, model: str, mode: str) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    assert_resumes_to_the_same_bytes(begin, train_params(changes_of(model, WHOLE_BATCH | {"train.compile": mode})), data(MODELS[model][0]))


@EVERY_MODEL
def test_its_losses_are_those_of_a_cpu_but_for_rounding(train_params, begin, data: Data, tmp_path, model: str) -> None:
    """Without TF32, without dropout, whose draws differ between devices, and with SGD: Adam amplifies the rounding of small gradients."""
    exact = {"train.precision": "fp32", "train.report_every_steps": 1, "train.steps": 4, "train.ema_decay": 0.0, "optimizer": SGD}
    params, prepared = train_params(changes_of(model, exact)), data(MODELS[model][0])
    on_gpu = begin(params, "gpu", prepared)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # until the next training begins
    on_cpu = Training.begin(params, prepared, Machine(torch.device("cpu"), 1), Checkpoints(tmp_path / "cpu", kept=2))
    for module in [*on_gpu.state.model.modules(), *on_cpu.state.model.modules()]:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    losses = [[report.metrics["train/objective"] for report in training.reports()] for training in (on_gpu, on_cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_an_operation_that_is_not_deterministic_is_refused_with_the_remedy(train_params, begin, data: Data) -> None:
    """CUDA has no deterministic gradient of `adaptive_max_pool2d`."""
    training = begin(train_params(changes_of("convnet", {})), "work", data("images"))
    model = training.state.model
    model.network = nn.Sequential(model.network, nn.Unflatten(1, (1, 1, 3)), nn.AdaptiveMaxPool2d((1, 3)), nn.Flatten())
    remedy = r"^train\.deterministic: .*: write `train\.deterministic: false`, or choose another model"
    with pytest.raises(Refusal, match=remedy), torch_errors.with_remedies(size="train.micro_batch_size"):
        list(training.reports())


def test_the_step_that_overflows_in_fp16_is_skipped_counted_and_resumed(train_params, begin, data: Data) -> None:
    """The scale of the loss begins so high that the first gradients are infinite, and those at the end are not."""
    params, prepared = train_params(changes_of("convnet", {"train.precision": "fp16"})), data("images")
    found = []
    for last in (STEPS, STOP):
        training = begin(params, f"until {last}", prepared)
        training.state.scaler.load_state_dict(training.state.scaler.state_dict() | {"scale": 2.0**21})
        stop(training, last)
        resumed = begin(params, f"until {last}", prepared)
        list(resumed.reports())
        found.append(resumed)
    rows = found[0].progress.rows
    assert rows[0]["train/skipped_steps"] >= 1
    assert "train/objective" in rows[-1], "no step was applied at the end"
    assert_same_end(*found)


@pytest.mark.parametrize("cell", recurrent.CELLS)
@pytest.mark.parametrize(("autocast", "computed"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float16)])
def test_a_cell_does_not_compute_in_fp16_under_autocast_to_bf16(cell: str, autocast: torch.dtype, computed: torch.dtype) -> None:
    inputs = torch.randn(2, 3, 8, device="cuda")
    network: nn.RNNBase = recurrent.CELLS[cell](8, 8, batch_first=True).to("cuda")
    with torch.autocast("cuda", dtype=autocast):
        outputs, _ = recurrent.run_cell(network, inputs)
    assert outputs.dtype == computed
