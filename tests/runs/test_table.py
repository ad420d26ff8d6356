"""Tables are as wide as the terminal, or as wide as the caller says."""

import pytest

from pipeline.runs import table


def test_a_table_in_a_log_has_its_own_width_also_where_colours_are_forced(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes a pipe for a terminal of 80 columns
    table.show([("a", "word " * 25)], width=160)
    assert len(capsys.readouterr().out.splitlines()) == 1
