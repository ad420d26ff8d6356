"""Asynchronous copies to the device."""

import torch
from torch import Tensor


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor` on `device`. A copy to a GPU goes through pinned memory and does not block the host."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
