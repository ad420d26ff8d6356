"""Threads and processes: results in the order of the items, no more items than allowed, and nobody who lives on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psutil
import pytest

from pipeline.reading import workers
from pipeline.refusal import Refusal
from tests.imports import TOP

PREPARED = "PREPARED_FOR_TEST"
PARENT = """
import os
from functools import partial
from pipeline.reading import workers
from tests.reading.test_workers import slept
if __name__ == "__main__":
    pool = workers.processes(2, partial(os.write, 1, b"ready\\n"))
    for _ in workers.ordered(pool, slept, [60.0] * 4, ahead=4):
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


def killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def slept(seconds: float) -> None:
    time.sleep(seconds)


def working(parent: int | None = None) -> set[psutil.Process]:
    """The processes of pools, without the one that multiprocessing keeps to clean up after them."""
    return {child for child in psutil.Process(parent).children() if "spawn_main" in " ".join(child.cmdline())}


@contextmanager
def killing(process: subprocess.Popen) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


@pytest.fixture(params=[workers.threads, workers.processes], ids=["threads", "processes"])
def pool(request):
    return partial(request.param, 2)


@pytest.fixture(autouse=True)
def nobody_is_left(monkeypatch):
    monkeypatch.setenv(PREPARED, "")
    yield
    assert working() == set()


def test_results_come_in_the_order_of_the_items_from_workers_that_are_prepared(pool) -> None:
    found = workers.ordered(pool(partial(prepare, "yes")), prepared, range(10), ahead=4)
    assert list(found) == [(number, (number, "yes")) for number in range(10)]


def test_no_more_items_are_taken_than_allowed(pool) -> None:
    taken = []
    items = (taken.append(number) or number for number in range(20))
    results = workers.ordered(pool(partial(prepare, "")), prepared, items, ahead=3)
    for number in range(5):
        next(results)
        assert len(taken) == number + 3
    results.close()
    assert len(taken) == 7


def test_what_is_raised_reaches_whoever_reads(pool) -> None:
    results = workers.ordered(pool(partial(prepare, "")), refused, range(20), ahead=4)
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(Refusal, match=r"^two: write three$"):
        next(results)


def test_a_process_that_was_killed_is_said_in_words() -> None:
    with pytest.raises(Refusal, match=r"PIPELINE_WORKERS: a process that decodes was killed, .* smaller number"):
        list(workers.ordered(workers.processes(2, partial(prepare, "")), killed, range(4), ahead=4))


def test_where_processes_cannot_be_had_threads_work(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no semaphores")

    monkeypatch.setattr(workers, "ProcessPoolExecutor", refuse)
    found = workers.ordered(workers.processes(2, partial(prepare, "here")), prepared, range(3), ahead=4)
    assert [result for _, result in found] == [(number, "here") for number in range(3)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_their_parent_and_ignore_what_is_meant_for_it(tmp_path, number: signal.Signals) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "parent.py"], env=os.environ | {"PYTHONPATH": str(TOP)}, stdout=subprocess.PIPE, text=True
    )
    with parent, killing(parent):
        assert [parent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        children = working(parent.pid)
        assert len(children) == 2
        if number != signal.SIGKILL:
            for child in children:
                child.send_signal(number)
            time.sleep(0.3)
            assert all(child.is_running() for child in children)
    assert psutil.wait_procs(children, timeout=10)[1] == []
