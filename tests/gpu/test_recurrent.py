"""Recurrent cells on a GPU under autocast."""

import pytest
import torch
from torch import nn

from pipeline.models import recurrent


@pytest.mark.parametrize("cell", recurrent.CELLS)
@pytest.mark.parametrize(("autocast", "computed"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float16)])
def test_a_cell_does_not_compute_in_fp16_under_autocast_to_bf16(cell: str, autocast: torch.dtype, computed: torch.dtype) -> None:
    inputs = torch.randn(2, 3, 8, device="cuda")
    network: nn.RNNBase = recurrent.CELLS[cell](8, 8, batch_first=True).to("cuda")
    with torch.autocast("cuda", dtype=autocast):
        outputs, _ = recurrent.run_cell(network, inputs)
    assert outputs.dtype == computed
