"""Locale, time zone, folder, user and the like change no byte of a result; what does change bytes is in the fingerprint."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.core import files
from tests import project
from tests.imports import TOP
from tests.laws.variations import Row, covering, locales, users

AT_START = ("LC_ALL", "PYTHONHASHSEED")
"""Variables that the interpreter reads when it starts. The other factors can change in a fork."""
FACTORS = {
    "LC_ALL": locales(),
    "PYTHONHASHSEED": ["0", "4242"],
    "folder": ["plain", "Straße mit 数 and spaces"],
    "TZ": ["UTC", "Asia/Kathmandu"],
    "umask": ["000", "077"],
    "listing": ["as it is", "backwards"],
    "uid": users(),
    "PIPELINE_WORKERS": ["1", "4"],
    "PIPELINE_TRACKING": ["false", "true"],
    "PIPELINE_CHECKPOINT_EVERY_STEPS": ["0", "1"],
}
RESULTS = ("models", "metrics", "plots", "predictions", "data/prepared")
CHANGES = {
    "source": project.IMAGE_FOLDER,
    "model": {"name": "convnet", "weights": None, "width": 4, "dropout": 0.2},
    "augment": {
        "crop_padding": 0,
        "resized_crop": 0.3,
        "flip": "random",
        "cutout": 2,
        "brightness": 0.2,
        "contrast": 0.2,
        "saturation": 0.2,
        "mixup": 0.4,
        "cutmix": 1.0,
        "transforms": [],
    },
    "evaluate.top_k": 1,
    "train.steps": 8,
    "train.batch_size": 32,
    "train.micro_batch_size": 12,
    "train.ema_decay": 0.9,
    "train.export_weights": "best",
    "train.validate_every_steps": 4,
}
THREADS = {"PIPELINE_THREADS": "2"}  # which finish in varying order
NUM_IMAGES = 150  # in each class: together more than one thread decodes at once
# The forked process has only imported modules: a fork after torch has started threads would hang.
DRIVER = """
import json, os, sys, time
import pipeline.models.convnet, pipeline.sources.image_folder
import pipeline.evaluate.stage, pipeline.prepare.stage, pipeline.train.stage
import importlib.readers, scipy.stats, torch._inductor.config  # imported late by the registry, the interval of the accuracy, and optimizers
from pipeline.__main__ import main
from pipeline.evaluate.reports.figures import curves, mistakes

class Backwards:
    def __init__(self, entries): self.entries = list(entries)
    def __iter__(self): return self
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def __next__(self):
        if not self.entries:
            raise StopIteration
        return self.entries.pop()

def run(folder, row):
    os.chdir(folder)
    if row["listing"] == "backwards":
        scandir, listdir = os.scandir, os.listdir
        os.scandir = lambda *place: Backwards(scandir(*place))
        os.listdir = lambda *place: listdir(*place)[::-1]
    os.environ.update(row, HOME=folder)
    time.tzset()
    os.umask(int(row["umask"], 8))
    if int(row["uid"]) != os.getuid():
        os.setgroups([])
        os.setgid(int(row["uid"]))
        os.setuid(int(row["uid"]))
    return all(main([stage]) == 0 for stage in ("prepare", "train", "evaluate"))

for folder, row in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os._exit(0 if run(folder, row) else 1)
    assert os.waitpid(child, 0)[1] == 0, row
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a temporary folder that other users can enter, which pytest's folders do not allow."""
    with tempfile.TemporaryDirectory(prefix="determinism-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def pictures(folder: Path) -> None:
    random = np.random.default_rng(0)
    for kind, dimmed in (("Äpfel", 1), ("apples", 2)):
        (folder / kind).mkdir(parents=True)
        for number in range(NUM_IMAGES):
            pixels = random.integers(0, 256, size=(9, 8, 3), dtype=np.uint8) // dimmed
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")


def make(place: Path, number: int, row: Row) -> Path:
    folder = project.make(place / str(number) / row["folder"], CHANGES)
    pictures(folder / "images")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, int(row["uid"]), -1, follow_symlinks=False)
    return folder


def run(rows: list[tuple[Path, Row]]) -> None:
    """Run the stages for rows with equal values of AT_START in one interpreter."""
    given = {name: rows[0][1][name] for name in AT_START}
    variables = {**os.environ, "PIPELINE_DEVICE": "cpu", "PIPELINE_TRACKING_WAIT_S": "0", "PYTHONPATH": str(TOP), **THREADS, **given}
    table = json.dumps([(str(folder), row) for folder, row in rows])
    done = subprocess.run([sys.executable, "-c", DRIVER, table], capture_output=True, text=True, timeout=500, check=False, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr


def results(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): files.digest(path) for name in RESULTS for path in files.members(folder / name)}


@pytest.mark.parametrize("strength", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["every value", "every pair of values"])
def test_no_byte_depends_on_the_surroundings_of_a_run(open_folder: Path, strength: int) -> None:
    rows = [(make(open_folder, number, row), row) for number, row in enumerate(covering(FACTORS, strength))]
    groups: dict[tuple[str, ...], list[tuple[Path, Row]]] = {}
    if strength == 1:  # the first one in this process and its surroundings, because an interpreter that starts imports all again
        project.run(rows[0][0], "prepare", "train", "evaluate", plotted=True, **THREADS)
    for folder, row in rows[strength == 1 :]:
        groups.setdefault(tuple(row[name] for name in AT_START), []).append((folder, row))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, groups.values()))
    expected = results(rows[0][0])
    assert {
        "models/model.safetensors",
        "metrics/evaluate.json",
        "plots/evaluate/mistakes.png",
        "data/prepared/spec.json",
    } <= expected.keys()
    for folder, row in rows:
        found = results(folder)
        assert {name for name in {*expected, *found} if expected.get(name) != found.get(name)} == set(), row
        assert (folder / ".pipeline/journal").exists() == (row["PIPELINE_TRACKING"] == "true")
    assert [name for name in expected if str(TOP).encode() in (rows[0][0] / name).read_bytes()] == [], "the path of the code"
