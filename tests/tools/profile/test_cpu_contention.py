"""The warning that other processes took the CPUs."""

from pipeline.tools.profile import trial


def test_a_kernel_that_does_not_tell_gives_no_wait_for_a_cpu(monkeypatch, tmp_path) -> None:
    assert trial.cpu_wait_s() >= 0
    for text in (None, "", "not numbers at all"):
        path = tmp_path / "schedstat"
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(trial, "SCHEDULER_STATISTICS", path)
        assert trial.cpu_wait_s() == 0


def test_a_warning_is_given_where_the_process_waited_for_a_cpu() -> None:
    assert trial.note(0.05) is None
    assert trial.note(0.5).startswith("Other processes use the CPUs: for 50% of the time")
