"""The identity of a run: the dependencies in dvc.yaml with DVC's interpolation, and a key that every input changes. Seeds."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dvc.parsing.context import Context

from pipeline.core import identity, seeding
from pipeline.core.identity import RunIdentity
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from tests.imports import TOP

BASE = RunIdentity(
    data="d" * 64,
    code="c" * 64,
    lock="l" * 64,
    params={"seed": 1, "model": {"name": "mlp", "width": 16}},
    fingerprint={"device": "cpu", "threads": 2},
)


def test_placeholders_are_filled_as_dvc_fills_them() -> None:
    params = Document.read(TOP / "presets/digits.yaml").data
    for stage in ("prepare", "train"):
        theirs = [Context(params).resolve_str(path) for path in identity.read_stage(stage, TOP)["deps"]]
        assert identity.dependencies(stage, params, TOP) == theirs
        assert not any("$" in path for path in theirs)


def test_the_digest_of_code_covers_every_module_of_a_listed_folder(tmp_path: Path) -> None:
    for name in ("train/engine/fit.py", "train/engine/deep/er.py", "models/mlp.py", "train/engine/__pycache__/fit.pyc"):
        (tmp_path / "pipeline" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pipeline" / name).write_text(name)
    (tmp_path / "requirements.lock").write_text("")
    listed = ["data/prepared", "pipeline/train/engine", "pipeline/models/mlp.py", "requirements.lock"]
    digests = {identity.code_digest(listed, tmp_path)}
    for name in ("train/engine/deep/er.py", "models/mlp.py", "train/engine/fit.py"):
        (tmp_path / "pipeline" / name).write_text("edited")
        digests.add(identity.code_digest(listed, tmp_path))
    assert len(digests) == 4
    (tmp_path / "pipeline/train/engine/__pycache__/fit.pyc").write_text("edited")
    (tmp_path / "pipeline/models/other.py").write_text("unused")
    (tmp_path / "requirements.lock").write_text("edited")
    assert identity.code_digest(listed, tmp_path) in digests


def test_a_missing_or_changed_dvc_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"dvc\.yaml: is missing: run this command in the top folder of the project's checkout"):
        identity.read_stage("train", tmp_path)
    for text in ("stages: {}", "", "stages: [train]", "stages: {train: [", "stages: {train: {cmd: x}}", "\tstages"):
        (tmp_path / "dvc.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(Refusal, match=r"dvc\.yaml: does not describe the stage train: undo its changes with `git restore"):
            identity.read_stage("train", tmp_path)


def test_a_key_is_short_stable_and_blind_to_the_order_of_sections() -> None:
    assert BASE.key == "e01c02bdf97ba021"
    assert replace(BASE, params=dict(reversed(BASE.params.items()))).key == BASE.key
    assert re.fullmatch(r"[0-9a-f]{16}", BASE.key)


def test_every_input_changes_the_key() -> None:
    changed = [
        replace(BASE, data="x"),
        replace(BASE, code="x"),
        replace(BASE, lock="x"),
        replace(BASE, weights="x"),
        replace(BASE, params={**BASE.params, "seed": 2}),
        replace(BASE, params={**BASE.params, "model": {"name": "mlp", "width": 17}}),
        replace(BASE, fingerprint={"device": "cpu", "threads": 1}),
    ]
    assert len({BASE.key, *(other.key for other in changed)}) == 8


def test_what_differs_is_named_in_words_with_both_values() -> None:
    other = replace(
        BASE, code="x" * 64, weights="w" * 64, params={"seed": 1, "model": {"name": "mlp"}}, fingerprint={"device": "cpu", "threads": 4}
    )
    assert BASE.differences(other) == [
        ("code", ("c" * 64, "x" * 64)),
        ("model.width", (16, "missing")),
        ("machine.threads", (2, 4)),
        ("starting weights", ("missing", "w" * 64)),
    ]
    assert not BASE.differs_only_in_machine(other)
    assert BASE.differs_only_in_machine(replace(BASE, fingerprint={}))


CPU = torch.device("cpu")


def test_derived_seeds_are_the_recorded_numbers() -> None:
    """They decide every result: a change of `derive` changes all of them and needs a line in the CHANGELOG."""
    assert seeding.derive(1, "order", 0) == 7977229684334264838
    assert seeding.derive(1, "weights") == 6645201493885463367
    assert seeding.generator(1, "order", 0).permutation(8).tolist() == [2, 3, 5, 0, 1, 4, 6, 7]


def test_reseeding_gives_torch_the_state_of_a_purpose_whatever_was_drawn_before() -> None:
    seeding.reseed(CPU, 1, "step", 3)
    first = torch.rand(4)
    torch.rand(100)
    seeding.reseed(CPU, 1, "step", 3)
    assert torch.equal(torch.rand(4), first)
    seeding.reseed(CPU, 1, "step", 4)
    assert not torch.equal(torch.rand(4), first)


def test_splits_are_derived_without_torch() -> None:
    code = "import sys; from pipeline.core import seeding; seeding.generator(1, 'split').random(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=TOP, check=False).returncode == 0
