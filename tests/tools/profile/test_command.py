"""The options of `profile`: the trace that it writes, and what it refuses."""

import gzip
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests import project


def test_a_trace_is_written_where_it_was_asked_for_and_wrong_numbers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    assert main(["prepare"]) == 0
    capsys.readouterr()
    assert main(["profile", "--steps", "5", "--trace", "traces/first.json.gz"]) == 0
    assert "trace: traces/first.json.gz: open it at https://ui.perfetto.dev" in capsys.readouterr().out
    assert gzip.decompress(Path("traces/first.json.gz").read_bytes()).startswith(b"{")
    assert main(["profile", "--trace", "traces"]) == 2
    assert "--trace: traces: is a folder: add the name of a file" in capsys.readouterr().err
    for mode in ([], ["--speedup"]):
        assert main(["profile", *mode, "--steps", "0"]) == 2
        assert "--steps: is 0: write 1 or more" in capsys.readouterr().err


def test_a_comparison_writes_no_trace(capsys) -> None:
    assert main(["profile", "--speedup", "--trace", "trace.json"]) == 2
    assert capsys.readouterr().err == "error: profile: --trace has no meaning with --speedup: leave it out\n"
