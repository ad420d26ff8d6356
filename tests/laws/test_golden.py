"""Some trainings give the recorded bytes: a change that is not meant to change a result changes none. The shipped default is accurate.

Short trainings of text models give the same bytes in another project, where their data is read from the disk, and are verified by training
again.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.inference.batches import loader
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


# the first is the fingerprint that two CPUs with different bits had in earlier versions
@pytest.mark.parametrize("cpu", [{}, {"cpu": "GenuineIntel family 6 model 106"}, {"cpu": "unknown"}], ids=["unnamed", "Intel", "unknown"])
def test_a_machine_that_is_not_listed_is_skipped_and_named(
    default_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: dict[str, str]
) -> None:
    machine = {name: value for name, value in golden.fingerprint(default_run).items() if name != "cpu"} | cpu
    listed = machine | {"cpu": "AuthenticAMD family 25 model 17"}
    unknown = machine | {"cpu": "unknown"}
    entries = [{"fingerprint": each, "digests": {"weights": "of another machine"}} for each in (listed, unknown)]
    files.write_json(tmp_path / "golden.json", {"data": golden.data(default_run), "results": entries})
    monkeypatch.setitem(golden.RECORDED, "digits", tmp_path / "golden.json")
    monkeypatch.setattr(golden, "fingerprint", lambda _: machine)
    with pytest.raises(pytest.skip.Exception, match=cpu.get("cpu", "no digests are recorded for")):
        digests("digits", default_run)
    monkeypatch.setattr(golden, "fingerprint", lambda _: listed)
    assert digests("digits", default_run) == {"weights": "of another machine"}


@pytest.mark.parametrize("name", ["texts", "code", "code-lstm"])
def test_text_gives_the_same_bytes_in_another_project_and_verify_repeats_them(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    resident = train(name)
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 0.0)
    streamed = golden.train(tmp_path, name)
    assert "read from the disk" in capsys.readouterr().out
    monkeypatch.undo()  # what `verify` trains is resident
    assert golden.results(streamed) == golden.results(resident)
    assert golden.data(streamed) == golden.data(resident)
    assert (streamed / "models/model.safetensors").read_bytes() == (resident / "models/model.safetensors").read_bytes()
    monkeypatch.setenv("PIPELINE_DEVICE", "cpu")
    monkeypatch.chdir(streamed)
    assert main(["verify", "--retrain"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "identical"


def test_renewing_keeps_what_other_machines_recorded(default_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "golden.json"
    monkeypatch.setitem(golden.RECORDED, "digits", path)
    other = {"fingerprint": {"device": "cuda"}, "digests": {"weights": "w"}}
    earlier = {"fingerprint": golden.fingerprint(default_run), "digests": {"weights": "w"}}
    files.write_json(path, {"data": golden.data(default_run), "results": [earlier, other]})
    golden.renew(default_run, "digits")
    renewed = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert other in renewed
    assert {"fingerprint": golden.fingerprint(default_run), "digests": golden.results(default_run)} in renewed
    assert len(renewed) == 2


def test_other_data_forgets_the_results_of_every_machine(default_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "golden.json"
    monkeypatch.setitem(golden.RECORDED, "digits", path)
    files.write_json(path, {"data": {}, "results": [{"fingerprint": {"device": "another"}, "digests": {}}]})
    golden.renew(default_run, "digits")
    renewed = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert renewed == [{"fingerprint": golden.fingerprint(default_run), "digests": golden.results(default_run)}]
