"""The train stage itself, killed with SIGKILL again and again: equal bytes in every file that it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import files
from pipeline.__main__ import main
from tests import project
from tests.imports import TOP

KILLS = 10
RESULTS = ("models/model.safetensors", "metrics/train.json", "plots/history.csv")
STEPS = 1200
CHANGES = {
    "model": {"name": "mlp", "width": 32, "depth": 2, "dropout": 0.2},
    "train.steps": STEPS,
    "train.micro_batch_size": 24,
    "train.report_every_steps": 10,
    "train.validate_every_steps": 40,
    "augment.cutout": 2,
}
# forks from a process that has imported and run nothing: a fork of one that ran torch's threads would hang
DRIVER = """
import json, os, random, signal, sys, time
sys.path.insert(0, os.getcwd())
import pipeline.stages.train
from pipeline.__main__ import main

kills, seed = int(sys.argv[1]), int(sys.argv[2])
random.seed(seed)
killed = started = 0
while True:
    started += 1
    child = os.fork()
    if child == 0:
        os._exit(main(["train"]))
    deadline = time.monotonic() + (random.uniform(0.2, 1.6) if killed < kills else 120)
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
        continue
    print(json.dumps({"killed": killed, "started": started, "status": status}))
    sys.exit(0)
"""


@pytest.fixture(scope="module")
def prepared_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project.make(tmp_path_factory.mktemp("whole"), CHANGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PIPELINE_TRACKING", "false")
        assert main(["prepare"]) == 0
    return folder


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, *, kills: int) -> dict[str, int]:
    variables = {"PIPELINE_TRACKING": "false", "PIPELINE_CHECKPOINT_EVERY_STEPS": "9", "PIPELINE_DEVICE": "cpu"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(kills), "7"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_killed_at_any_moment_ends_in_the_same_bytes(prepared_project: Path, tmp_path: Path, monkeypatch) -> None:
    whole = train(prepared_project, monkeypatch, kills=0)
    assert whole == {"killed": 0, "started": 1, "status": 0}
    killed = project.make(tmp_path, CHANGES)
    (killed / "data/prepared").symlink_to(prepared_project / "data/prepared")
    story = train(killed, monkeypatch, kills=KILLS)
    assert story["status"] == 0
    assert story["killed"] == KILLS, "the training was over before all kills: raise STEPS"
    for name in RESULTS:
        assert files.digest(killed / name) == files.digest(prepared_project / name), name
    assert list((killed / ".pipeline/work").glob("*/step-*")) == []


def test_the_results_name_no_path(prepared_project: Path, monkeypatch) -> None:
    train(prepared_project, monkeypatch, kills=0)
    for name in RESULTS:
        content = (prepared_project / name).read_bytes()
        assert str(prepared_project).encode() not in content
        assert str(TOP).encode() not in content
