"""Maps a function over items on threads or worker processes, with results in the order of the items.

ProcessPoolExecutor is not used, because it can neither kill a busy worker nor report how a worker ended. The workers ignore SIGTERM. So
ProcessPoolExecutor would wait for busy workers to finish if one of them is killed, or if the caller stops early.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

from pipeline.core.raw_dataset import Cluster
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason

Item = TypeVar("Item")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


def on_threads(function: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterator[tuple[Item, Result]]:
    """Yield each item and `function(item)`, computed on `workers` threads, in the order of the items.

    At most two items per thread are computed ahead of the caller, which limits the memory for their results.
    """
    with ThreadPoolExecutor(workers) as pool:
        yield from in_order(lambda item: pool.submit(function, item), items, max_in_flight=2 * workers)


def on_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, prepare: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """Yield each item and `function(item)`, computed in `workers` processes, in the order of the items. Each process first calls `prepare()`.

    A process needs some 60 MB of memory. The functions, the items and the results must be picklable. An exception in `function` is raised
    again here. Raises Refusal if a process cannot start, is killed or ends early.
    """
    idle: SimpleQueue[Worker[Item, Result]] = SimpleQueue()

    def call(item: Item) -> Result:
        worker = idle.get()
        try:
            return worker.call(item)
        finally:
            idle.put(worker)

    # Order of cleanup: first kill the processes, so that no thread waits for one; then join the threads; then close the pipes they read.
    with ExitStack() as pipes, ThreadPoolExecutor(workers) as pool, ExitStack() as processes:
        for _ in range(workers):
            worker = Worker(function, prepare)
            pipes.callback(worker.close)
            processes.callback(worker.end)
            idle.put(worker)
        yield from in_order(lambda item: pool.submit(call, item), items, max_in_flight=2 * workers)


CLUSTER: ContextVar[Cluster | None] = ContextVar("CLUSTER", default=None)
"""The cluster whose workers tokenize texts."""


class Task(Protocol[Result_co]):
    """A result that is being computed: a Future of concurrent.futures or of dask."""

    def result(self) -> Result_co: ...

    def cancel(self) -> Any: ...


def in_order(submit: Callable[[Item], Task[Result]], items: Iterable[Item], *, max_in_flight: int) -> Iterator[tuple[Item, Result]]:
    """Yield each item and its result, in the order of `items`. `submit(item)` starts to compute a result.

    At most `max_in_flight` items are computed ahead of the caller. If it stops early, the others are cancelled.
    """
    pending: deque[tuple[Item, Task[Result]]] = deque()
    try:
        for item in items:
            pending.append((item, submit(item)))
            if len(pending) >= max_in_flight:
                first, result = pending.popleft()
                yield first, result.result()
        while pending:
            first, result = pending.popleft()
            yield first, result.result()
    finally:
        for _, result in pending:
            result.cancel()


class Worker(Generic[Item, Result]):
    """A worker process with a pipe of its own. If the process dies, reading from this pipe raises EOFError; other workers are not affected."""

    def __init__(self, function: Callable[[Item], Result], prepare: Callable[[], None]) -> None:
        context = get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process: SpawnProcess = context.Process(target=serve, args=(child_end, function, prepare), daemon=True)
        try:
            self.process.start()
        except OSError as error:
            problem = f"a decoding process cannot be started ({reason(error)})"
            raise Refusal(f"PIPELINE_WORKERS: {problem}: set this environment variable to a smaller number") from None
        child_end.close()

    def call(self, item: Item) -> Result:
        try:
            self.connection.send(item)
            result = self.connection.recv()
        except (EOFError, OSError):
            raise self.refusal() from None
        except BaseException:  # else the unread rest of this result would be taken for the next result
            self.end()
            raise
        if isinstance(result, BaseException):
            raise result
        return cast("Result", result)

    def refusal(self) -> Refusal:
        self.process.join()
        code = self.process.exitcode or 0
        ended, way = f"ended with exit code {code}", "1 to decode without extra processes"
        if code == -signal.SIGKILL:
            ended, way = "was killed, most likely by the OOM killer", "a smaller number"
        elif code < 0:
            ended = f"was ended by {signal.Signals(-code).name}"
        return Refusal(f"PIPELINE_WORKERS: a decoding process {ended}: set this environment variable to {way}")

    def end(self) -> None:
        """Kill the process. If another thread is waiting for a result in `call`, `call` raises Refusal in that thread."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Close the pipe. Call `close` after the process has ended, when no thread uses the pipe any more."""
        self.connection.close()
        self.process.close()


def serve(connection: Connection, function: Callable[[Item], Result], prepare: Callable[[], None]) -> None:
    """Run the loop of a worker process, until the parent closes its end of the pipe.

    SIGINT and SIGTERM are ignored in the worker. They reach the whole process group, and so the parent process, which then kills its workers.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    prepare()
    with suppress(EOFError, ConnectionError):
        while True:
            item: Item = connection.recv()
            try:
                result: Result | Exception = function(item)
            except Exception as error:  # raised again in the parent process by `Worker.call`
                result = error
            connection.send(result)
