"""The model as others use it: any number of raw images, whatever their channels, after an export as before."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

from pipeline.__main__ import main
from pipeline.inference import model_file
from tests import project

MODELS = [
    {"name": "convnet", "weights": None, "width": 4, "dropout": 0.1},
    {
        "name": "airbench",
        "weights": None,
        "block1_width": 8,
        "block2_width": 16,
        "block3_width": 16,
        "whiten_images": 20,
        "whiten_eps": 5e-4,
    },
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_an_exported_model_takes_any_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model, channels: int, channels_last: bool
) -> None:
    random = np.random.default_rng(0)
    inputs, targets = random.integers(0, 256, (60, 8, 8, channels), dtype=np.uint8), np.arange(60) % 3
    source = {"name": "arrays", "root": "set.npz", "valid": 0.1, "test": 0.2, "seed": 1, "duplicates": "keep"}
    monkeypatch.chdir(project.make(tmp_path, {"source": source, "model": model, "train.steps": 2, "train.channels_last": channels_last}))
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    np.savez("set.npz", inputs=inputs, targets=targets)
    assert main(["prepare"]) == main(["train"]) == 0
    served, manifest = model_file.load(Path("models/model.safetensors"))
    assert manifest.spec.targets.output_names == ("0", "1", "2")
    example = torch.from_numpy(manifest.spec.inputs.random_samples(2))
    exported = torch.export.export(served, (example,), dynamic_shapes=({0: Dim.AUTO},)).module()
    for count in (1, 3, 7):
        images = torch.from_numpy(inputs[:count])
        assert torch.equal(exported(images), served(images))
