"""All checks together: none hides or delays the others, and no secret is shown."""

import threading
from collections.abc import Callable

from pipeline.tools.doctor import diagnosis
from pipeline.tools.doctor.finding import Context, Finding

MakeContext = Callable[..., Context]


def test_a_check_that_hangs_or_raises_is_a_warning_and_the_others_are_told(make_context: MakeContext, monkeypatch) -> None:
    released = threading.Event()

    def hang(_: Context) -> Finding:
        released.wait()
        raise AssertionError

    def fail(_: Context) -> Finding:
        raise KeyError("lost")

    def miss(_: Context) -> Finding:
        raise ModuleNotFoundError(name="pynvml")

    checks = {"slow": hang, "wrong": fail, "missing": miss, "fine": lambda _: Finding("ok", "well")}
    monkeypatch.setattr(diagnosis, "CHECKS", checks)
    findings = diagnosis.examine(make_context(), checks, limit_s=0.2)
    released.set()
    assert [(finding.name, finding.status) for finding in findings] == [
        *(("slow", "warning"), ("wrong", "warning"), ("missing", "warning"), ("fine", "ok"))
    ]
    assert "no answer within 0.2 s" in findings[0].text
    assert "KeyError: 'lost'" in findings[1].text
    assert "pynvml is not installed" in findings[2].text


def test_every_check_gives_a_finding_of_its_own_name(make_context: MakeContext) -> None:
    findings = diagnosis.examine(make_context(), limit_s=60)
    assert [finding.name for finding in findings] == list(diagnosis.CHECKS)
    assert not [finding for finding in findings if "could not be examined" in finding.text]
    assert set(diagnosis.FOR_TRAINING) <= set(diagnosis.CHECKS)
