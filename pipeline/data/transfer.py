"""Copies to the device that the host does not wait for."""

import torch
from torch import Tensor


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`: by way of page-locked memory, from which a GPU copies by itself while the host goes on."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
