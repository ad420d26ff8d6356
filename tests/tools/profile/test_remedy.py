"""The sentence that names the largest share and what to change, in each situation."""

import pytest
import torch

from pipeline.inference.machine import Machine
from pipeline.tools.profile import profile
from pipeline.tools.profile.profile import Situation
from pipeline.tools.profile.shares import Shares

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ONE = {"data": Shares(1, 0, 0, 0, 0), "copying": Shares(0, 1, 0, 0, 0), "computing": Shares(0, 0, 1, 0, 0), "host": Shares(0, 0, 0, 1, 0)}
PRECISION = {"train.precision": "fp32"}


@pytest.mark.parametrize(
    ("largest", "device", "resident", "changes", "expected"),
    [
        ("data", CPU, False, {}, "put data/prepared on a faster disk"),
        (
            "data",
            CPU,
            True,
            {"augment.brightness": 0.3, "augment.mixup": 0.2},
            "switch off costly augmentations (augment.brightness, augment.mixup)",
        ),
        ("data", CPU, True, {"augment": None}, "or set PIPELINE_THREADS=8, because it uses 2 of 8 CPUs"),
        ("data", GPU, True, {"augment": None}, "make samples smaller or augment them less."),
        ("copying", GPU, False, {}, "it is then held on the GPU"),
        ("copying", GPU, True, {}, "use a larger train.batch_size"),
        ("computing", GPU, True, PRECISION, "`train.precision: auto`, `train.channels_last: true`, `train.compile: default`"),
        (
            "computing",
            GPU,
            True,
            {"train.compile": "default", "train.channels_last": True},
            "computes, as it should (100%): use a faster GPU",
        ),
        ("computing", CPU, True, {"train.compile": "default"}, "use a GPU or a smaller model, or set PIPELINE_THREADS=8"),
        ("host", GPU, True, {}, "`train.compile: graphs`"),
        ("host", GPU, True, {"train.lanes": 2}, "`train.compile: default`"),
        ("host", CPU, True, {"train.micro_batch_size": 8}, "a larger train.micro_batch_size"),
        ("host", CPU, True, {"train.report_every_steps": 1}, "fewer reports"),
    ],
)
def test_the_remedy_fits_the_situation(train_params, monkeypatch, largest, device, resident, changes, expected) -> None:
    monkeypatch.setattr(profile.limits, "usable_cpus", lambda: 8)
    situation = Situation(train_params(changes), Machine(device, 2), is_resident=resident, has_images=True)
    sentence = profile.sentence(ONE[largest], situation)
    assert expected in sentence
    assert sentence.startswith("Most of the time, ")
    assert sentence.endswith(".")


def test_texts_have_no_memory_format(train_params) -> None:
    situation = Situation(train_params(PRECISION), Machine(GPU, 2), is_resident=True, has_images=False)
    assert "channels_last" not in profile.sentence(ONE["computing"], situation)
