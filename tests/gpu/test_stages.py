"""The stages, and the commands that measure, in a user's project on a machine with a GPU."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.inference import model_file
from pipeline.runs import events, journal
from tests import project
from tests.forking import campaign
from tests.laws.test_resuming import CONVNET

SETTINGS = ("digits", "texts", "code")
SPEED_KEYS = {"train.micro_batch_size": 32, "train.batch_size": 32}
KILLS = 10
TRAINED = pytest.mark.xdist_group("trained")
"""One process runs the tests of the trained project, which would otherwise be trained in each."""


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PIPELINE_DEVICE": "cuda", "PIPELINE_THREADS": "2", "PIPELINE_TRACKING_MIRROR": "false"} | variables
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def scores(folder: Path) -> dict[str, float]:
    return json.loads((folder / "metrics/evaluate.json").read_text())["test"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A project whose model was trained and evaluated on the GPU."""
    folder = project.make(tmp_path_factory.mktemp("project"), {"model": CONVNET, **SPEED_KEYS})
    for verb in ("prepare", "train", "evaluate"):
        run(folder, verb)
    return folder


@TRAINED
def test_the_model_file_names_the_gpu_and_its_kernels(trained: Path) -> None:
    _, manifest = model_file.load(trained / "models/model.safetensors")
    assert manifest.fingerprint["device"] == "cuda"
    assert manifest.fingerprint["name"] == torch.cuda.get_device_name(0)
    assert set(manifest.fingerprint["kernels"]) == {"cuda", "cudnn"}


@TRAINED
def test_the_run_has_the_memory_of_the_gpu(trained: Path) -> None:
    [folder] = journal.journals(trained)
    found = [event.fields["values"] for event in events.read(folder / events.EVENTS) if event.kind == "metrics"]
    of_training = [values for values in found if "train/objective" in values]
    assert of_training
    for values in of_training:
        assert values["memory/allocated_megabytes"] > 0
        assert values["memory/reserved_megabytes"] > 0


@TRAINED
def test_a_cpu_evaluates_the_model_of_a_gpu_to_nearly_the_same_loss(trained: Path) -> None:
    measured = scores(trained)
    run(trained, "evaluate", PIPELINE_DEVICE="cpu")
    assert scores(trained)["loss"] == pytest.approx(measured["loss"], rel=0.02)


@TRAINED
def test_speedup_measures_every_option_that_fits_the_parameters(trained: Path) -> None:
    """An option that crashes would be shown as not available, too."""
    done = run(trained, "profile", "--speedup")
    print(done.stdout)
    assert torch.cuda.get_device_name(0) in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row.startswith("| compile: graphs")]
    unavailable = [row for row in rows if "not available: " in row]
    assert len(unavailable) == 1
    assert re.match(r"\| precision: bf16-true .* not available: train\.ema_decay: ", unavailable[0])


@TRAINED
def test_the_trace_of_profile_has_kernels_and_copies(trained: Path) -> None:
    run(trained, "profile", "--trace", "trace.json.gz")
    document = json.loads(gzip.decompress((trained / "trace.json.gz").read_bytes()))
    assert {"kernel", "gpu_memcpy"} <= {event.get("cat") for event in document["traceEvents"]}


@pytest.mark.parametrize("setting", SETTINGS)
def test_trainings_killed_at_random_end_in_the_same_bytes(setting: str) -> None:
    """In a process of its own, which forks before it has used the GPU."""
    found = campaign("tests.faults.killing", str(KILLS), setting, TEST_DEVICE="cuda")
    print(found)
    assert found["kills"] == KILLS
    assert found["resumed"] >= KILLS // 4, f"too few kills came after the first checkpoint: {found}"
    assert found["other_digests"] == 0
