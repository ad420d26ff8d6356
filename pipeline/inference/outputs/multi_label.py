"""The last layer of a trained model of several labels: it turns logits into probabilities."""

from torch import Tensor, nn

from pipeline.core.tasks.multi_label import LabelTargets


class Postprocessing(nn.Module):
    """Returns the probability of each label (n, labels), in float32, for `outputs` (n, labels), which are logits."""

    unit = "probability"
    scale = 1.0

    def __init__(self, targets: LabelTargets) -> None:  # noqa: ARG002  # other tasks need the targets
        super().__init__()

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.float().sigmoid()
