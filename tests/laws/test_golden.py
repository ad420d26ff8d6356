"""The shipped default is accurate and trains to the recorded bytes: a change that is not meant to change a result changes none."""

import json
from pathlib import Path

import pytest

from pipeline.io import files
from tests.laws import golden


def test_the_default_reaches_98_percent_on_the_digits(default_run: Path) -> None:
    assert json.loads((default_run / "metrics/evaluate.json").read_text())["test"]["accuracy"] >= 0.98


def test_the_prepared_digits_are_the_recorded_ones_on_every_machine(default_run: Path) -> None:
    assert golden.data(default_run) == golden.recorded()["data"], f"if this was meant: {golden.COMMAND}"


def test_the_default_trains_to_the_recorded_bytes(default_run: Path) -> None:
    machine = golden.fingerprint(default_run)
    entry = next((entry for entry in golden.recorded()["results"] if entry["fingerprint"] == machine), None)
    if entry is None:
        pytest.skip(f"no digests are recorded for {files.canonical(machine)}: `{golden.COMMAND}` adds them")
    results = golden.results(default_run)
    different = [name for name, digest in entry["digests"].items() if results.get(name) != digest]
    assert different == [], f"these differ from tests/laws/golden.json; if this was meant: {golden.COMMAND}"


def test_renewing_keeps_what_other_machines_recorded(default_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "golden.json"
    monkeypatch.setattr(golden, "RECORDED", path)
    other = {"fingerprint": {"device": "cuda"}, "digests": {"weights": "w"}}
    earlier = {"fingerprint": golden.fingerprint(default_run), "digests": {"weights": "w"}}
    files.write_json(path, {"data": golden.data(default_run), "results": [earlier, other]})
    golden.renew(default_run)
    renewed = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert other in renewed
    assert {"fingerprint": golden.fingerprint(default_run), "digests": golden.results(default_run)} in renewed
    assert len(renewed) == 2


def test_other_data_forgets_the_results_of_every_machine(default_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "golden.json"
    monkeypatch.setattr(golden, "RECORDED", path)
    files.write_json(path, {"data": {}, "results": [{"fingerprint": {"device": "another"}, "digests": {}}]})
    golden.renew(default_run)
    renewed = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert renewed == [{"fingerprint": golden.fingerprint(default_run), "digests": golden.results(default_run)}]
