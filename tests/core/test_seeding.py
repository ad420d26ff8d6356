"""Every random draw is a function of the seed, its purpose and a counter."""

import subprocess
import sys

import torch

from pipeline.core import seeding
from tests.imports import TOP

CPU = torch.device("cpu")


def test_derived_seeds_are_the_recorded_numbers() -> None:
    """They decide every result: a change of `derive` changes all of them and needs a line in the CHANGELOG."""
    assert seeding.derive(1, "order", 0) == 7977229684334264838
    assert seeding.derive(1, "weights") == 6645201493885463367
    assert seeding.generator(1, "order", 0).permutation(8).tolist() == [2, 3, 5, 0, 1, 4, 6, 7]


def test_reseeding_gives_torch_the_state_of_a_purpose_whatever_was_drawn_before() -> None:
    seeding.reseed(CPU, 1, "step", 3)
    first = torch.rand(4)
    torch.rand(100)
    seeding.reseed(CPU, 1, "step", 3)
    assert torch.equal(torch.rand(4), first)
    seeding.reseed(CPU, 1, "step", 4)
    assert not torch.equal(torch.rand(4), first)


def test_splits_are_derived_without_torch() -> None:
    code = "import sys; from pipeline.core import seeding; seeding.generator(1, 'split').random(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=TOP, check=False).returncode == 0
