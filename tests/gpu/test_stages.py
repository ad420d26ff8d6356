"""The stages, and the commands that measure, in a user's project on a machine with a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.engine import model_file
from pipeline.tracking import events, journal
from tests import project
from tests.imports import TOP
from tests.laws.test_resuming import CONVNET

SETTINGS = ("digits", "texts", "code")
SPEED_KEYS = {"train.micro_batch_size": 32, "train.batch_size": 32}


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


def test_the_model_file_names_the_gpu_and_its_kernels(trained: Path) -> None:
    _, manifest = model_file.load(trained / "models/model.safetensors")
    assert manifest.fingerprint["device"] == "cuda"
    assert manifest.fingerprint["name"] == torch.cuda.get_device_name(0)
    assert set(manifest.fingerprint["kernels"]) == {"cuda", "cudnn"}


def test_the_run_has_the_memory_of_the_gpu(trained: Path) -> None:
    [folder] = journal.journals(trained)
    found = [event.fields["values"] for event in events.read(folder / events.EVENTS) if event.kind == "metrics"]
    assert all(values["memory/allocated_megabytes"] > 0 for values in found if "train/objective" in values)
    assert all(values["memory/reserved_megabytes"] > 0 for values in found if "train/objective" in values)


def test_a_cpu_evaluates_the_model_of_a_gpu_to_nearly_the_same_loss(trained: Path, tmp_path: Path) -> None:
    measured = scores(trained)
    run(trained, "evaluate", PIPELINE_DEVICE="cpu")
    assert scores(trained)["loss"] == pytest.approx(measured["loss"], rel=0.02)


@pytest.mark.parametrize("verb", ["profile", "speedup", "fit-batch"])
def test_a_command_that_measures_names_the_gpu(trained: Path, verb: str) -> None:
    done = run(trained, verb)
    print(done.stdout)  # pytest -rP shows it
    assert torch.cuda.get_device_name(0) in done.stdout


def test_profile_names_kernels(trained: Path) -> None:
    assert "copying to the device" in run(trained, "profile", "--trace", "trace.json.gz").stdout
    assert (trained / "trace.json.gz").stat().st_size > 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_trainings_killed_at_random_end_in_the_same_bytes(setting: str) -> None:
    """In a process of its own, which forks before it has used the GPU."""
    command = [sys.executable, "-m", "tests.faults.killing", "10", setting]
    done = subprocess.run(command, cwd=TOP, env=os.environ | {"TEST_DEVICE": "cuda"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["kills"] == 10
    assert found["other_digests"] == 0
