"""The functions that run commands for other tests."""

from pathlib import Path

from tests.repository import call


def test_a_command_has_ended_when_its_process_has_even_if_another_process_holds_its_output(tmp_path: Path) -> None:
    assert call(tmp_path, "sh", "-c", "(sleep 10; touch ended) & echo begun") == "begun\n"
    assert not (tmp_path / "ended").exists()
