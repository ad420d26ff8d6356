"""Which floating-point formats a training computes in: autocast, and gradient scaling for fp16."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from pipeline.params.train import Precision
from pipeline.refusal import Refusal

Used = Literal["bf16", "fp16", "fp32"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BF16_CAPABILITY = (8, 0)
FP16_CAPABILITY = (5, 3)


def choose(wish: Precision, device: torch.device) -> Used:
    """The precision to use on `device`. Raises Refusal for one that a GPU cannot do; warns where a CPU would be slow."""
    if device.type == "cpu":
        if wish in DTYPES:
            print(f"warning: train.precision: {wish} is slow on a CPU, for trials only: write `auto` or `fp32`", flush=True)
        return "fp32" if wish == "auto" else wish
    capability = torch.cuda.get_device_capability(device)
    if wish == "auto":
        return "bf16" if capability >= BF16_CAPABILITY else "fp16" if capability >= FP16_CAPABILITY else "fp32"
    needed = {"bf16": BF16_CAPABILITY, "fp16": FP16_CAPABILITY}.get(wish, (0, 0))
    if capability < needed:
        name = torch.cuda.get_device_name(device)
        raise Refusal(f"train.precision: {wish} needs compute capability {dot(needed)}, {name} has {dot(capability)}: write `auto`")
    return wish


def dot(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def autocast(used: Used, device: torch.device) -> AbstractContextManager[None]:
    """The context of a forward pass."""
    if used == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[used])


def scaler(used: Used, device: torch.device) -> torch.amp.GradScaler:
    """Scales the loss for fp16, whose gradients would vanish otherwise; does nothing for the others."""
    return torch.amp.GradScaler(device.type, enabled=used == "fp16")
