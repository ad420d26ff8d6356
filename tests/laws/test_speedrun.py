"""The preset cifar10-speedrun takes the steps of airbench94_muon.py, whose formulas are repeated here.

Airbench's loss is a sum over the batch and ours a mean, so the preset has other learning rates for the same steps.
"""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from pipeline.core.params import load
from pipeline.core.yaml_document import Document
from pipeline.train.engine import optimizers, plan
from pipeline.train.params import TrainParams
from tests.imports import TOP
from tests.specs import image_spec

PRESET: Path = TOP / "presets/cifar10-speedrun.yaml"
SPEC = image_spec(shape=(32, 32, 3), classes=tuple("abcdefghij"), mean=(0.5,) * 3, std=(0.25,) * 3)
BATCH_SIZE, NUM_STEPS, BIAS_RATE, HEAD_RATE, FILTER_RATE, DECAY = 2000, 200, 0.053, 0.67, 0.24, 2e-6 * 2000


class Airbench:
    """The two optimizers of airbench for a summed loss, except that biases have no weight decay."""

    def __init__(self, network: nn.Module) -> None:
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.filters = [parameter for parameter in trained if parameter.ndim == 4]
        biases, heads = ([parameter for parameter in trained if parameter.ndim == ndim] for ndim in (1, 2))
        groups = [{"params": biases, "peak": BIAS_RATE}, {"params": heads, "peak": HEAD_RATE, "weight_decay": DECAY / HEAD_RATE}]
        self.sgd = torch.optim.SGD(groups, momentum=0.85, nesterov=True)
        self.momenta = [torch.zeros_like(each) for each in self.filters]

    @torch.no_grad()
    def step(self, step: int) -> None:
        rate = 1 - step / NUM_STEPS
        for group in self.sgd.param_groups:
            group["lr"] = group["peak"] * rate
        self.sgd.step()
        for filters, momentum in zip(self.filters, self.momenta, strict=True):
            momentum.mul_(0.6).add_(filters.grad)
            ahead = filters.grad + 0.6 * momentum
            filters.mul_(len(filters) ** 0.5 / filters.norm())
            filters.sub_(FILTER_RATE * rate * turned(ahead.flatten(1)).view(filters.shape))


def turned(matrix: Tensor) -> Tensor:
    found = matrix / (matrix.norm() + 1e-7)
    for _ in range(3):
        gram = found @ found.T
        found = 3.4445 * found + (-4.7750 * gram + 2.0315 * gram @ gram) @ found
    return found


def test_the_preset_takes_the_steps_of_airbench() -> None:
    params = load(Document.read(PRESET), TrainParams)
    torch.manual_seed(0)
    images = 2 * avg_pool2d(torch.randn(200, 3, 36, 36), 5, stride=1).double()
    model = params.model.model_copy(update={"block1_width": 16, "block2_width": 32, "block3_width": 32})
    ours = model.build(SPEC).double()
    model.initialize_weights(ours, lambda count: images[:count])
    theirs, before = copy.deepcopy(ours), copy.deepcopy(ours)
    optimizer, airbench = optimizers.build(ours, params.optimizer), Airbench(theirs)
    assert (params.train.num_steps(50_000), params.train.batch_size) == (NUM_STEPS, BATCH_SIZE)
    for step in range(4):
        inputs, targets = images[step * 50 : step * 50 + 50], torch.arange(50) % 10
        for network, scale in ((ours, 1), (theirs, BATCH_SIZE)):
            network.zero_grad()
            (scale * cross_entropy(network(inputs), targets, label_smoothing=params.loss.label_smoothing)).backward()
        for group in optimizer.param_groups:
            group["lr"] = params.optimizer.learning_rate * group["lr_scale"] * plan.factor(step, NUM_STEPS, params.schedule)
        optimizer.step()
        airbench.step(step)
    for (name, parameter), other, start in zip(ours.named_parameters(), theirs.parameters(), before.parameters(), strict=True):
        assert (parameter - other).norm() <= 1e-2 * (other - start).norm(), name
