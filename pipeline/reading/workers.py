"""Work on many threads or processes whose results come in the order of the items."""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from pipeline.refusal import Refusal

PR_SET_PDEATHSIG = 1
"""As Linux's sys/prctl.h numbers it."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def threads(workers: int, prepare: Callable[[], None]) -> Executor:
    """Each calls `prepare()` first."""
    return ThreadPoolExecutor(workers, initializer=prepare)


def processes(workers: int, prepare: Callable[[], None]) -> Executor:
    """Each calls `prepare()` first, and ends with the thread that started it; a signal to the whole group is answered by that alone.

    They take half a second and some 60 MB each. What they do and are given must be picklable.
    """
    try:
        return ProcessPoolExecutor(workers, get_context("spawn"), initializer=begin, initargs=(os.getpid(), prepare))
    except OSError:  # no semaphores in this container
        return threads(workers, prepare)


def begin(parent: int, prepare: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)
    prepare()


def ordered(pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int) -> Iterator[tuple[Item, Result]]:
    """Each item and what `function` makes of it; at most `ahead` items are taken ahead, so that memory stays bounded. Closes the pool.

    Raises what `function` raises, and Refusal where a process was killed.
    """
    with pool:
        pending: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                pending.append((item, pool.submit(function, item)))
                if len(pending) >= ahead:
                    first, result = pending.popleft()
                    yield first, result.result()
            for first, result in pending:
                yield first, result.result()
        except BrokenProcessPool:
            raise Refusal(
                "PIPELINE_WORKERS: a process that decodes was killed, most likely because memory ran out: set it to a smaller number"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
