"""Some trainings give the recorded bytes: a change that is not meant to change a result changes none. The shipped default is accurate.

Short trainings of text models give the same bytes in another project, where their data is read from the disk, and are verified by training
again.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.inference.batches import loader
from tests import project
from tests.laws import golden

Train = Callable[[str], Path]


@pytest.fixture(scope="session")
def train(default_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Return a function from the name of a training to its project, which tests only read."""
    return cache(lambda name: default_run if name == "digits" else golden.train(tmp_path_factory.mktemp(name), name))


def test_the_default_reaches_98_percent_on_the_digits(default_run: Path) -> None:
    assert json.loads((default_run / "metrics/evaluate.json").read_text())["test"]["accuracy"] >= 0.98


@pytest.mark.parametrize("name", golden.RECORDED)
def test_the_prepared_data_is_the_recorded_one_on_every_machine(train: Train, name: str) -> None:
    assert golden.data(train(name)) == golden.recorded(name)["data"], f"if this was meant: {golden.COMMAND}"


@pytest.mark.parametrize("name", golden.RECORDED)
def test_it_trains_to_the_recorded_bytes(train: Train, name: str) -> None:
    folder = train(name)
    expected, results = digests(name, folder), golden.results(folder)
    different = [result for result, digest in expected.items() if results.get(result) != digest]
    assert different == [], f"these differ from {golden.RECORDED[name].name}; if this was meant: {golden.COMMAND}"


def digests(name: str, folder: Path) -> dict[str, str]:
    """Return the digests that a training must have. Skip the test on a machine that is not listed."""
    machine = golden.fingerprint(folder)
    expected = golden.listed(name, machine)
    if expected is None:
        pytest.skip(f"no digests are recorded for {files.canonical(machine)}: `{golden.COMMAND}` adds them")
    return expected


@pytest.mark.parametrize("name", ["texts", pytest.param("code", marks=pytest.mark.slow), pytest.param("code-lstm", marks=pytest.mark.slow)])
def test_text_gives_the_same_bytes_in_another_project_and_verify_repeats_them(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    resident = train(name)
    with monkeypatch.context() as patch:  # what `verify` trains is resident
        patch.setattr(loader, "RESIDENT_SHARE", 0.0)
        streamed = golden.train(tmp_path, name)
    assert "read from the disk" in capsys.readouterr().out
    assert golden.results(streamed) == golden.results(resident)
    assert golden.data(streamed) == golden.data(resident)
    assert (streamed / "models/model.safetensors").read_bytes() == (resident / "models/model.safetensors").read_bytes()
    project.run(streamed, "verify --retrain")
    assert capsys.readouterr().out.splitlines()[-1] == "identical"
