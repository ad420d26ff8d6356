"""Errors of torch that the user can fix become messages with the remedy."""

import pytest
import torch
from torch import nn

from pipeline.core.refusal import Refusal
from pipeline.inference import torch_errors
from pipeline.inference.networks import Model
from pipeline.models import mlp


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(784, 10), (2, 64)),
        (nn.Conv2d(3, 4, 3), (2, 1, 8, 8)),
        (nn.LSTM(3, 4), (2, 5, 7)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_a_layer_that_does_not_fit_its_input_is_named_with_the_remedy(layer: nn.Module, shape: tuple[int, ...]) -> None:
    with (
        pytest.raises(Refusal, match=r"^model\.name: in the network, a layer does not fit the size of its input: correct it.* \("),
        torch_errors.with_remedies(size="train.micro_batch_size"),
    ):
        Model(nn.Sequential(layer), nn.Identity())(torch.zeros(shape))


def test_the_line_of_the_models_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ torch.zeros(5, 6)

    code = forward.__code__.replace(co_filename=mlp.__file__)
    monkeypatch.setattr(nn.Identity, "forward", type(forward)(code, forward.__globals__))
    with (
        pytest.raises(Refusal, match=r"^model\.name: in pipeline/models/mlp\.py:\d+, a layer does not fit the size of its input"),
        torch_errors.with_remedies(size="train.micro_batch_size"),
    ):
        Model(nn.Sequential(nn.Identity()), nn.Flatten())(torch.zeros(2, 3))


def test_the_same_error_outside_of_the_model_stays_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), torch_errors.with_remedies(size="train.micro_batch_size"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ValueError("Expected more than 1 value per channel when training, got input size [1, 4]"), "train.micro_batch_size: BatchNorm"),
        (
            RuntimeError("adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but"),
            "train.deterministic: the model has an operation that is not deterministic: write `train.deterministic: false`",
        ),
        (
            RuntimeError("libcuda.so cannot found!"),
            "train.compile: the compiler does not find libcuda.so.1 of the NVIDIA driver: set TRITON_LIBCUDA_PATH",
        ),
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
            "train.compile: the compiler needs a C compiler",
        ),
    ],
)
def test_an_error_with_a_remedy_is_refused_with_both(error: Exception, remedy: str) -> None:
    with pytest.raises(Refusal) as raised, torch_errors.with_remedies(size="train.micro_batch_size"):
        raise error
    assert str(raised.value).startswith(remedy)
    assert str(raised.value).endswith(f"({error})")


@pytest.mark.parametrize(
    "error", [RuntimeError("something else"), Refusal("model.name: Expected more than 1 value per channel, but got 1")]
)
def test_another_error_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, torch_errors.with_remedies(size="train.micro_batch_size"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    "message",
    [
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`",
        "CUDA ran out of memory outside PyTorch's allocator. If this workload uses many dynamic shapes, cuDNN may need",
        "Triton Error [CUDA]: out of memory",
        "NCCL error in: NCCLUtils.hpp:93, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":995, please report a bug to PyTorch. ',
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes.",
    ],
)
def test_a_lack_of_memory_is_recognised_in_the_words_of_each_library(message: str) -> None:
    assert torch_errors.is_out_of_memory(RuntimeError(message))


@pytest.mark.parametrize(
    "message",
    [
        "GET was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    ],
)
@pytest.mark.parametrize(
    ("num_ooms", "free_bytes", "expected"), [(0, 2**33, False), (1, 2**33, True), (0, 2**27, True)], ids=["enough", "was short", "is short"]
)
def test_an_error_that_may_have_another_cause_is_a_lack_of_memory_only_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, message: str, num_ooms: int, free_bytes: int, expected: bool
) -> None:
    monkeypatch.setattr("torch.cuda.memory_stats", lambda: {"num_ooms": num_ooms})
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (free_bytes, 2**35))
    assert torch_errors.is_out_of_memory(RuntimeError(message)) is expected
