"""The exchange of gradients by NCCL with one process: the hooks run, change no bit, and never wait for the GPU.

NCCL with several processes needs several GPUs, and is not tested.
"""

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.test_loop import CHANGES, CONVNET, DEVICE, MIXED, MUON, refuse_to_wait
from tests.train.engine.building import exchanging, group_of_one, same, weights

HOOKS = pytest.mark.parametrize("lanes", [1, 2], ids=["added by the backend", "added in order"])


@pytest.fixture(autouse=True)
def nccl() -> Iterator[None]:
    torch.cuda.set_device(DEVICE)
    with group_of_one("nccl", DEVICE):
        yield


@HOOKS
def test_gradients_that_are_exchanged_with_no_other_process_stay_as_they_are(train_params, begin, lanes: int) -> None:
    """To the bit, with two micro-batches in each lane, and weights so large that their norm depends on where they begin in memory."""
    changes = {"model": CONVNET | {"width": 32}, "optimizer": MUON, "train.lanes": lanes, "train.micro_batch_size": 4}
    params = train_params(CHANGES | MIXED | changes)
    plain, exchanged = begin(params, "plain"), exchanging(begin(params, "exchanged"))
    for training in (plain, exchanged):
        list(training.reports())
    assert exchanged.state.lanes.wrapped is not None
    assert same(weights(plain.state), weights(exchanged.state))


@HOOKS
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_exchange_does_not_wait_for_the_gpu(train_params, begin, lanes: int, precision: str) -> None:
    refuse_to_wait(exchanging(begin(train_params(CHANGES | {"train.lanes": lanes, "train.precision": precision}))))
