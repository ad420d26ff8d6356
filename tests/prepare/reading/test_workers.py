"""Threads and processes: results in the order of the items, a bounded number of items in flight, and no process left over."""

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psutil
import pytest

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import workers
from tests.imports import TOP

PREPARED = "PREPARED_FOR_TEST"
PARENT = """
import os
from functools import partial
from pipeline.prepare.reading import workers
from tests.prepare.reading.test_workers import slept
if __name__ == "__main__":
    for _ in workers.on_processes(slept, [1.0] * 400, workers=2, prepare=partial(os.write, 1, b"ready\\n")):
        pass
"""


def prepare(value: str) -> None:
    os.environ[PREPARED] = value


def prepared(number: int) -> tuple[int, str]:
    time.sleep(0.02 * (3 - number % 3))
    return number, os.environ.get(PREPARED, "")


def refused(number: int) -> int:
    if number == 2:
        raise Refusal("two: write three")
    return number


def killed(number: int) -> bytes:
    """The first two return more than the buffer of a pipe holds."""
    time.sleep(0.2 * number)
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return bytes(10**6)


def crashed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def unpicklable(_: int) -> object:
    return lambda: None


class TooLarge:
    """Runs out of memory when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return exhausted, ()


def exhausted() -> None:
    raise MemoryError


def too_large(number: int) -> object:
    return TooLarge() if number else None


@pytest.fixture
def collect_nothing():
    gc.disable()
    yield
    gc.enable()


def slept(seconds: float) -> None:
    time.sleep(seconds)


def working(parent: int | None = None) -> set[psutil.Process]:
    """Return the processes of pools, without multiprocessing's resource tracker, and without those that have ended."""
    running = (child for child in psutil.Process(parent).children() if child.status() != psutil.STATUS_ZOMBIE)
    return {child for child in running if "spawn_main" in " ".join(child.cmdline())}


@contextmanager
def killing(process: subprocess.Popen) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


@pytest.fixture(params=["threads", "processes"])
def ordered(request):
    """Two workers, which are prepared where they are processes."""
    if request.param == "threads":
        prepare("yes")
        return partial(workers.on_threads, workers=2)
    return partial(workers.on_processes, workers=2, prepare=partial(prepare, "yes"))


@pytest.fixture(autouse=True)
def nobody_is_left(monkeypatch):
    monkeypatch.setenv(PREPARED, "")
    yield
    assert working() == set()


def test_results_come_in_the_order_of_the_items_from_workers_that_are_prepared(ordered) -> None:
    assert list(ordered(prepared, range(10))) == [(number, (number, "yes")) for number in range(10)]


@pytest.mark.parametrize("items", [[], [1]], ids=["none", "one"])
def test_there_may_be_fewer_items_than_workers(ordered, items: list[int]) -> None:
    assert list(ordered(refused, items)) == [(number, number) for number in items]


def test_few_items_are_taken_ahead(ordered) -> None:
    taken = []
    results = ordered(prepared, (taken.append(number) or number for number in range(20)))
    for number in range(5):
        next(results)
        assert len(taken) <= number + 4
    results.close()
    assert len(taken) <= 9


def test_what_is_raised_reaches_whoever_reads(ordered) -> None:
    results = ordered(refused, range(20))
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(Refusal, match=r"^two: write three$"):
        next(results)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (killed, "a decoding process was killed, most likely by the OOM killer: set this environment variable to a smaller number"),
        (crashed, "a decoding process was ended by SIGSEGV: set this environment variable to 1 to decode without extra processes"),
        (unpicklable, "a decoding process ended with exit code 1: set this environment variable to 1 to decode without extra processes"),
    ],
)
def test_a_process_that_ended_before_its_time_is_said_in_words(function, said: str) -> None:
    begin_s = time.monotonic()
    with pytest.raises(Refusal, match=f"^PIPELINE_WORKERS: {said}$"):
        list(workers.on_processes(function, range(6), workers=2, prepare=partial(prepare, "")))
    assert time.monotonic() - begin_s < 60


def test_a_process_that_cannot_begin_is_said_in_words_and_those_before_it_end(monkeypatch) -> None:
    """As where a container allows no more of them."""
    start, begun = workers.SpawnProcess.start, []

    def limited(process) -> None:
        if begun:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        begun.append(process)
        start(process)

    monkeypatch.setattr(workers.SpawnProcess, "start", limited)
    with pytest.raises(
        Refusal,
        match=r"PIPELINE_WORKERS: a decoding process cannot be started \(.*unavailable\): set this environment variable to a smaller number",
    ):
        list(workers.on_processes(refused, range(3), workers=2, prepare=partial(prepare, "")))
    assert begun


def test_a_process_whose_result_was_not_read_to_its_end_is_not_used_again() -> None:
    """Or the rest of a result, which untrusted images can shape, would be read as the beginning of the next."""
    worker = workers.Worker(too_large, partial(prepare, ""))
    try:
        assert worker.call(0) is None
        with pytest.raises(MemoryError):
            worker.call(1)
        with pytest.raises(Refusal, match=r"^PIPELINE_WORKERS: a decoding process was killed"):
            worker.call(0)
    finally:
        worker.end()
        worker.close()


def test_no_pipe_stays_open(collect_nothing) -> None:
    open_ones = []
    for _ in range(2):  # what multiprocessing itself keeps open is there after the first time
        with pytest.raises(Refusal):
            list(workers.on_processes(refused, range(3), workers=2, prepare=partial(prepare, "")))
        open_ones.append(psutil.Process().num_fds())
    assert open_ones[0] == open_ones[1]


def test_leaving_early_waits_for_no_process() -> None:
    results = workers.on_processes(slept, [0.0, 600.0, 600.0], workers=2, prepare=partial(prepare, ""))
    next(results)
    results.close()


def test_processes_end_with_their_parent_and_ignore_what_is_meant_for_it(tmp_path) -> None:
    """They look for it between two items."""
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "parent.py"], env=os.environ | {"PYTHONPATH": str(TOP)}, stdout=subprocess.PIPE, text=True
    )
    with parent, killing(parent):
        assert [parent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        children = working(parent.pid)
        assert len(children) == 2
        for child in children:
            child.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert all(child.is_running() for child in children)
    assert psutil.wait_procs(children, timeout=300)[1] == []
