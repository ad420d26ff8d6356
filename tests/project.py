"""A user's project in a temporary folder, with parameters that train in a second."""

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.core import files
from tests.conftest import MLP, plot_nothing, preset
from tests.imports import TOP

LENGTH = {"train.epochs": None, "train.steps": 24, "train.report_every_steps": 4, "train.validate_every_steps": 8}
TABLE = "data/raw/texts.tsv"
CODE = {
    "source.package": "sympy",
    "source.pattern": "sympy/strategies/*",
    "source.valid": 0.1,
    "source.test": 0.1,
    "source.max_length": 24,
    "train.batch_size": 48,
    "train.micro_batch_size": 20,
    "train.export_weights": "best",
    "evaluate.sample_tokens": 20,
}


class Setting(NamedTuple):
    """A preset, and changes of it that make the training short. `tests.laws.golden` records the results of some."""

    preset: str
    changes: dict[str, Any]
    removed: tuple[str, ...] = ()
    """Keys of `source` to leave out, because the changed source does not have them."""


SETTINGS = {
    "digits": Setting("digits", {"model": MLP, **LENGTH}),
    "texts": Setting(
        "trec-lstm",
        {
            **LENGTH,
            "source.root": TABLE,
            "source.test": 0.2,
            "source.max_length": 12,
            "model.embedding_width": 8,
            "model.width": 8,
            "train.batch_size": 16,
            "train.micro_batch_size": 10,
        },
    ),
    "code": Setting(
        "code-transformer",
        {
            **LENGTH,
            **CODE,
            "source.vocabulary": 300,
            "model.width": 16,
            "model.depth": 2,
            "model.heads": 2,
            "train.metric": "valid/perplexity",
        },
    ),
    "table": Setting("table", {**LENGTH, "model.width": 16}),
    "code-lstm": Setting(
        "shakespeare-lstm",
        {
            **LENGTH,
            **CODE,
            "source.name": "package_source",
            "source.root": "data/README.md",
            "model.embedding_width": 16,
            "model.width": 16,
            "model.depth": 1,
            "train.ema_decay": 0.9,
        },
        removed=("divide", "encoding"),
    ),
}
DIVIDED = {"valid": 0.2, "test": 0.2, "seed": 1, "folds": None, "fold": 0, "duplicates": "keep"}
DECODED = {"on_corrupt": "fail", "max_pixels": 10_000, "white": None}
IMAGE_FOLDER = {"name": "image_folder", "root": "images", "image_size": 8, "channels": 3, **DECODED, **DIVIDED}
"""The section `source` of images in the folder `images`, and its parts."""
RESULTS = ("models/model.safetensors", "metrics/train.json", "plots/train/history.csv")
"""The files that a training writes."""
COPIED = ("Makefile", "dvc.yaml", "requirements.lock", "data/README.md", "data/weights/None", "params.schema.json")


def make(folder: Path, changes: dict[str, Any] | None = None, *, copy: bool = False, setting: str | Setting = "digits") -> Path:
    """Write `params.yaml`, which is a setting, or one of `SETTINGS` by its name, with `changes`, and its data.

    Link the code, or copy it for a test that edits it.
    """
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, folder / name)
    if copy:
        shutil.copytree(TOP / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        (folder / "pipeline").symlink_to(TOP / "pipeline")
    if setting == "texts":
        write_table(folder / TABLE)
    write_params(folder, changes, setting=setting)
    return folder


def write_params(folder: Path, changes: dict[str, Any] | None = None, *, setting: str | Setting = "digits") -> None:
    name, quick, removed = SETTINGS[setting] if isinstance(setting, str) else setting
    params = preset({**quick, **(changes or {})}, name)
    for key in removed:
        del params["source"][key]
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(params, file, yaml.CSafeDumper, sort_keys=False)  # a tenth of the time of ruamel.yaml, which the pipeline uses


def run(folder: Path, *verbs: str, plotted: bool = False, **variables: str) -> Path:
    """Run verbs of a project in this process, without tracking. All must succeed. Figures are drawn if `plotted`."""
    with pytest.MonkeyPatch.context() as patch:
        if "evaluate" in verbs and not plotted:
            plot_nothing(patch)
        for name, value in {"PIPELINE_TRACKING": "false", **variables}.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        for verb in verbs:
            assert main(verb.split()) == 0, verb
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of what a training has written."""
    return {name: files.digest(folder / name) for name in RESULTS}


def write_table(path: Path) -> None:
    """Write 120 labelled texts of 1 to 12 words, whose words tell the label."""
    generator = random.Random(1)
    words = {"colour": ["red", "blue", "green"], "fruit": ["apple", "pear", "plum"], "metal": ["iron", "gold", "tin"]}
    lines = []
    for number in range(120):
        label = list(words)[number % len(words)]
        text = generator.choices(["the", "a", "of", "in", *words[label]], k=generator.randint(1, 11))
        lines.append(f"{label}\t{' '.join([*text, generator.choice(words[label])])}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
