"""PyTorch's CUDA code runs without a GPU: steady steps never wait, allocate nothing, and launch little more than a bare loop."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import project
from tests.gpu.fake import library
from tests.imports import TOP

FOLDER = Path(__file__).parent
TABLE = FOLDER / "launches.csv"
"""The operations that a steady step of each preset puts into streams, and those of a bare loop with the same network and optimizer."""
MOST_MORE = {"fp32": 0.05, "bf16": 0.05, "fp16": 0.15, "bf16, skip": 0.18}
"""The share by which a step of an image preset may exceed the bare loop; 12 operations are always allowed: four set and read the numbers of the step (see `Numbers`)."""


def variables(folder: Path) -> dict[str, str]:
    """Build the library of the GPU in `folder`, and return the environment of a process that finds it. Skip the test where it cannot be built."""
    if reason := library.obstacle():
        pytest.skip(reason)
    if torch.version.cuda is None:
        pytest.skip("this build of PyTorch has no CUDA code")
    found = {"LD_PRELOAD": str(library.build(folder)), "TRITON_LIBCUDA_PATH": str(folder), "LD_LIBRARY_PATH": str(folder)}
    unknown = {"CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}  # to this GPU
    inherited = {name: value for name, value in os.environ.items() if name not in unknown}
    return inherited | found | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}


def rehearse(folder: Path, marked: str, *, limit_s: float) -> str:
    """Run rehearsals.py in a process with the library of the GPU, and return what it printed. Its table of launches is in `folder`."""
    environment = variables(folder) | {"FAKE_GPU_TABLE": str(folder / TABLE.name)}
    arguments = ["-q", "-p", "no:cacheprovider", "-m", marked, str(FOLDER / "rehearsals.py")]
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    return done.stdout


def test_trainings_run_on_a_gpu_that_executes_nothing(tmp_path: Path) -> None:
    passed = re.search(r"(\d+) passed", rehearse(tmp_path, "not slow", limit_s=600))
    assert passed
    assert int(passed[1]) > 25, "most of them were not run"


def test_a_step_of_an_image_preset_launches_little_more_than_a_bare_loop() -> None:
    too_many = []
    for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()):
        more, bare = int(row["pipeline"]) - int(row["bare loop"]), int(row["bare loop"])
        allowed = max(12, MOST_MORE[row["precision"]] * bare)
        if row["preset"].startswith(("digits", "cifar10")) and more > allowed:
            too_many.append((row, allowed))
    assert too_many == []


def test_a_captured_step_launches_at_most_a_score_of_operations() -> None:
    too_many = []
    for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()):
        is_image = row["preset"].startswith(("digits", "cifar10"))
        most = 25 if not is_image else 12 if row["precision"] in ("fp32", "bf16") else 20
        if int(row["captured"]) > most:
            too_many.append((row, most))
    assert too_many == []


@pytest.mark.slow
def test_presets_compiled_trainings_and_torchvision_run_on_a_gpu_that_executes_nothing(tmp_path: Path) -> None:
    rehearse(tmp_path, "slow", limit_s=1500)
    found = tmp_path / TABLE.name
    assert found.read_text() == TABLE.read_text(), f"if the change of the launches is meant: cp {found} {TABLE.relative_to(TOP)}"


VERBS = """
import json, os, sys
from unittest.mock import patch
from pipeline.__main__ import main
from pipeline.tools.profile import profile

profile.ROUND_S = 0.02
for words, code, variables in json.loads(sys.argv[1]):
    with patch.dict(os.environ, variables):
        assert main(words.split()) == code, words
    print(end="\\f\\n", flush=True)
"""


@pytest.mark.slow
def test_the_tools_run_on_several_gpus_that_execute_nothing(tmp_path: Path) -> None:
    changes = {
        "train.steps": 20,
        "train.report_every_steps": 20,
        "train.validate_every_steps": 20,
        "source.valid": 0.0,
        "train.export_weights": "last",
    }
    folder = project.make(tmp_path / "project", changes)
    environment = variables(tmp_path) | {"FAKE_GPUS": "3", "PIPELINE_DEVICE": "cuda:2", "PIPELINE_TRACKING_MIRROR": "false"}
    environment["PYTHONPATH"] = str(TOP)
    verbs = [
        ("prepare", 0, {}),
        ("train", 0, {}),
        ("evaluate", 0, {}),
        ("profile", 0, {"PIPELINE_GRAPHS": "off"}),
        ("profile", 0, {}),
        ("profile --speedup", 0, {}),
        ("doctor --all", 0, {}),
        ("train", 2, {"PIPELINE_DEVICE": "cuda:5"}),
    ]
    command = [sys.executable, "-c", VERBS, json.dumps(verbs)]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    _, trained, evaluated, eager, captured, speedup, findings, refused, _ = done.stdout.split("\f\n")
    assert "on cuda:2 (NVIDIA H100 that executes nothing) in bf16" in trained
    assert "on 359 samples" in evaluated
    assert "Most of the time goes into launches (" in eager
    assert "in bf16, in captured steps" in captured
    assert "| deterministic: false " in speedup
    assert findings.count("NVIDIA H100 that executes nothing") == 3
    assert "this machine has 3 GPUs, numbered from 0" in refused
