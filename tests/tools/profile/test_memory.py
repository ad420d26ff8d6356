"""The memory of this process, and what the machine and its cgroups leave."""

import mmap
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from pipeline.tools.profile import trial

CPU = torch.device("cpu")


def test_the_peak_is_that_since_it_was_reset() -> None:
    trial.reset_peak(CPU)
    before = trial.peak_bytes(CPU)
    block = mmap.mmap(-1, 300_000_000)  # not from the freed memory that malloc keeps
    np.frombuffer(block, np.uint8).fill(1)
    assert trial.peak_bytes(CPU) > before + 250_000_000
    block.close()
    high = trial.peak_bytes(CPU)
    trial.reset_peak(CPU)
    assert trial.peak_bytes(CPU) < high
    assert 0 < psutil.Process().memory_info().rss <= trial.peak_bytes(CPU)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("memory.max", "memory.current", "inactive_file"), 700),
        (("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), 700),
    ],
    ids=["version 2", "version 1"],
)
def test_a_cgroup_leaves_its_limit_less_what_is_used_and_not_cached(tmp_path: Path, names: tuple[str, str, str], expected: int) -> None:
    limit, used, cached = names
    (tmp_path / limit).write_text("1000\n")
    (tmp_path / used).write_text("500\n")
    (tmp_path / "memory.stat").write_text(f"anon 300\n{cached} 200\n")
    assert trial.left_bytes(tmp_path) == expected


@pytest.mark.parametrize("limit", ["max\n", "", None])
def test_a_cgroup_without_a_limit_leaves_everything(tmp_path: Path, limit: str | None, monkeypatch) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("500\n")
    monkeypatch.setattr(trial.limits, "folders", lambda _: iter([tmp_path]))
    assert trial.available_bytes() > 0.5 * psutil.virtual_memory().available
    (tmp_path / "memory.max").write_text("1000000\n")
    assert trial.available_bytes() == 999_500
