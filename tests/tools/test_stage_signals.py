"""A signal that arrives while the module of a stage is imported."""

import os
import signal
from contextlib import suppress
from importlib import import_module
from types import ModuleType

import pytest

from pipeline.core.interruption import Interrupted
from pipeline.tools import stages


@pytest.mark.usefixtures("parameters")
def test_a_signal_during_an_import_that_discards_exceptions_still_stops_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    completed = []

    def discard_exceptions(name: str) -> ModuleType:
        if name == "pipeline.prepare.stage":
            with suppress(BaseException):  # as torch's C code does where it imports numpy
                os.kill(os.getpid(), signal.SIGTERM)
                completed.append(name)
        return import_module(name)

    monkeypatch.setattr(stages, "import_module", discard_exceptions)
    monkeypatch.setattr("pipeline.prepare.stage.prepare", lambda *_, **__: None)
    with pytest.raises(Interrupted, match="SIGTERM"):
        stages.run("prepare")
    assert completed, "an import that a signal interrupts leaves half a module"
