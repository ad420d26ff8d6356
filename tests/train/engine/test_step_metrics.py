"""What a window of steps comes to on the host."""

import torch

from pipeline.train.engine.metrics import StepMetrics

QUANTITIES = ("loss", "norm", "skipped", "correct")


def test_what_a_step_did_not_measure_counts_as_nothing() -> None:
    window = StepMetrics()
    one = dict.fromkeys(QUANTITIES, torch.tensor(2.0))
    window.add(8, one)
    window.add(8, {**one, "norm": None, "skipped": None})
    reading = window.read()
    assert (reading.loss, reading.norm) == ([2.0, 2.0], [2.0, 0.0])
    assert reading.num_skipped == 2
    assert window.num_targets == 16


def test_a_restored_window_reads_as_before() -> None:
    window, other = StepMetrics(), StepMetrics()
    window.add(8, dict.fromkeys(QUANTITIES, torch.tensor(3.0)))
    other.restore(window.tensors(), window.num_targets, torch.device("cpu"))
    assert other.read() == window.read()


def test_what_nobody_measured_lies_with_what_was() -> None:
    window = StepMetrics()
    window.add(8, {"loss": torch.empty((), device="meta"), "correct": torch.empty((), device="meta"), "norm": None, "skipped": None})
    assert {tensor.device.type for tensor in window.tensors().values()} == {"meta"}
    assert StepMetrics().tensors() == {}
