"""The logits of every own model with given weights: a changed stride or activation keeps all shapes, but makes model files answer otherwise.

`python -m tests.models.test_logits` records them, after an intended change of a model.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.core.registry import MODELS
from tests.models import test_models, text_models
from tests.texts import ENCODER_DECODER, pairs

FILE = Path(__file__).with_name("logits.json")
OWN = [*(each for each in test_models.SMALL if each["name"] != "torchvision"), *text_models.CLASSIFIERS, *text_models.LANGUAGE_MODELS]
SETTINGS = {" ".join(str(value) for value in each.values()): each for each in [*OWN, text_models.NGRAMS, ENCODER_DECODER]}


def logits(settings: dict[str, Any]) -> list[list[float]]:
    """Return the logits of two samples, of their last tokens if there is one output for each token."""
    is_image = settings["name"] in {each["name"] for each in test_models.SMALL}
    spec = test_models.spec_of((9, 12, 3)) if is_image else text_models.spec_for(settings)
    inputs = test_models.images(spec).double() if is_image else text_models.texts([12, 12], padded_to=12)
    if settings is ENCODER_DECODER:  # its samples are pairs of texts, of unequal lengths
        spec, inputs = pairs().spec, torch.from_numpy(pairs().train.inputs[:2])
    network = filled(MODELS.settings(settings["name"])(**settings).build(spec))
    with torch.no_grad():
        outputs = network(inputs)
    found: list[list[float]] = (outputs[:, -1] if outputs.ndim == 3 else outputs).tolist()
    return found


def filled(network: nn.Module) -> nn.Module:
    """Return the network in float64 and for inference, with weights that no random generator decides."""
    for number, parameter in enumerate(network.double().eval().parameters()):
        wave = torch.cos(torch.arange(parameter.numel(), dtype=torch.float64) * (1.7 + number)).view(parameter.shape)
        parameter.data = 2 * wave / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 1 + wave / 4
    return network


@pytest.mark.parametrize("title", SETTINGS)
def test_a_model_with_given_weights_has_the_recorded_logits(title: str) -> None:
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    assert torch.allclose(torch.tensor(logits(SETTINGS[title])), torch.tensor(recorded[title]), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    lines = [f"  {json.dumps(title)}: {[[round(value, 6) for value in row] for row in logits(each)]}" for title, each in SETTINGS.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
