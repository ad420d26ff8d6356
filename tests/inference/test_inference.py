"""Forward passes without gradients: what the model is called with, and what comes back."""

import weakref

import torch
from torch import Tensor, nn

from pipeline.inference.batch import IGNORED, Batch
from pipeline.inference.networks import predict
from pipeline.train.engine.metrics import score
from tests.train.engine.building import objective_of

CPU = torch.device("cpu")
INPUTS = torch.arange(12.0).reshape(6, 2)


class Recording(nn.Module):
    """Returns its inputs, and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, ...]] = []

    def forward(self, *arguments: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.calls.append(arguments)
        return arguments[0].double()


def test_inputs_without_targets_are_predicted_and_padding_is_cut_off() -> None:
    model = Recording().train()
    batches = [(Batch(INPUTS[:4]), 4), (Batch(INPUTS[[4, 5, 4, 4]]), 2)]
    outputs, found = zip(*predict(model, batches, precision="fp32", device=CPU), strict=True)
    assert torch.equal(torch.cat(outputs), INPUTS)
    assert all(output.dtype == torch.float64 for output in outputs), "as the model returns them, but in float32 at least"
    assert found == (None, None)
    assert model.training


def test_an_ignored_target_counts_in_no_loss_and_no_metric() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [9.0, 0.0, 0.0]])
    targets = torch.tensor([0, 1, 0, 2])
    ignoring = targets.clone()
    ignoring[3] = IGNORED
    few, all_but_one = (
        score(predict(Recording(), [(batch, len(batch.inputs))], precision="fp32", device=CPU), objective_of())
        for batch in (Batch(logits[:3], targets[:3]), Batch(logits, ignoring))
    )
    assert all_but_one == few
    assert few["accuracy"] == 2 / 3


def test_the_inputs_of_a_batch_are_freed_before_the_next_forward_pass() -> None:
    freed: list[int] = []

    def made(number: int) -> Batch:
        inputs = INPUTS.clone()
        weakref.finalize(inputs, freed.append, number)
        return Batch(inputs)

    def batches():
        for number in range(3):
            assert len(freed) == number
            yield made(number), 6

    model = nn.Linear(2, 2)
    for _outputs, _targets in predict(model, batches(), precision="fp32", device=CPU):
        pass
    assert freed == [0, 1, 2]
