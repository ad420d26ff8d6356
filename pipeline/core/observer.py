"""Defines what a stage tells those who watch it, such as tracking and the terminal. A stage imports none of them, and none of them changes a result."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, cast


class Observer:
    """Watches a stage. Its methods are called in this order, and return None. This class ignores what it is told.

    `pipeline/runs/observer.py` has the observer that records runs and prints progress.
    """

    def training_begins(self, training: Any, inputs: Mapping[str, Any]) -> None:
        """Before the first step of this process. `training` is the Training, and `inputs` has the digests of what decides its result."""

    def step_ends(self, step: int, metrics: Mapping[str, float]) -> None:
        """After each step, with the metrics that are reported at this step, if there are any."""

    def validation_continues(self) -> None:
        """After each batch of a validation."""

    def steps_end(self) -> None:
        """After the last step of this process, also if an exception ends the steps."""

    def results_are_written(self) -> None:
        """After the model file and the metrics of a training were written."""

    def training_ends(self, error: BaseException | None) -> None:
        """At the end of a training. `error` is the exception that ended it, such as Interrupted."""

    def evaluation_ends(self, manifest: Any, scores: Mapping[str, Any]) -> None:
        """After the scores of the model file, of which `manifest` is the metadata, were written."""


class Net(AbstractContextManager[None]):
    """Suppresses the exceptions of the blocks that it guards: who watches must never stop a stage. `report` is called with the first one."""

    def __init__(self, report: Callable[[Exception], None]) -> None:
        self._report, self._has_failed = report, False

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._has_failed:
            self._has_failed = True
            self._report(error)
        return True


class _Unfailing:
    """Calls the methods of an observer, which `make` returns at the first call. Nothing that they raise or return reaches the stage."""

    def __init__(self, make: Callable[[], Observer]) -> None:
        self._make, self._net = make, Net(warn)
        self._observer: Observer | None = None

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            with self._net:
                self._observer = self._observer or self._make()
                getattr(self._observer, method)(*arguments)

        setattr(self, method, call)  # the next call finds it without this function
        return call


def warn(error: Exception) -> None:
    print(f"warning: the stage continues, but what it reports may be incomplete: {error!r}", file=sys.stderr, flush=True)


def unfailing(make: Callable[[], Observer]) -> Observer:
    """Return an observer that passes each call on to the observer that `make` returns. It prints their first exception, and raises none."""
    return cast("Observer", _Unfailing(make))


@contextmanager
def ending(observer: Observer) -> Iterator[None]:
    """Tell the observer how the training within the block has ended."""
    try:
        yield
    except BaseException as error:
        observer.training_ends(error)
        raise
    observer.training_ends(None)
