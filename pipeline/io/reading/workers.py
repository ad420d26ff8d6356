"""Work on many threads or processes whose results come in the order of the items."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

from pipeline.io.reading import handover
from pipeline.io.untrusted import reason
from pipeline.refusal import Refusal

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(function: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterator[tuple[Item, Result]]:
    """Each item and what `function` makes of it; so few are taken ahead that memory stays bounded by two a worker."""
    with ThreadPoolExecutor(workers) as pool:
        yield from in_order(pool, function, items, most=2 * workers)


def on_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, prepare: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """The same, by processes of some 60 MB that call `prepare()` first, asked by as many threads. All of it must be picklable.

    Raises what `function` raises, and Refusal where a process was killed or could not begin.
    """
    idle: SimpleQueue[Worker[Item, Result]] = SimpleQueue()

    def ask(item: Item) -> Result:
        worker = idle.get()
        try:
            return worker.ask(item)
        finally:
            idle.put(worker)

    # processes end first, so that no thread waits for one; then the threads, so that none reads from a pipe that is closed
    with ExitStack() as pipes, ThreadPoolExecutor(workers) as pool, ExitStack() as processes:
        for _ in range(workers):
            worker = Worker(function, prepare)
            pipes.callback(worker.close)
            processes.callback(worker.end)
            idle.put(worker)
        yield from in_order(pool, ask, items, most=2 * workers)


def in_order(pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], *, most: int) -> Iterator[tuple[Item, Result]]:
    """At most `most` items are taken whose results have not been handed on."""
    pending: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            pending.append((item, pool.submit(function, item)))
            if len(pending) >= most:
                first, result = pending.popleft()
                yield first, result.result()
        while pending:
            first, result = pending.popleft()
            yield first, result.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Worker(Generic[Item, Result]):
    """A process and a pipe of its own: one that ends spoils nobody else's, and is known by the end of the pipe."""

    def __init__(self, function: Callable[[Item], Result], prepare: Callable[[], None]) -> None:
        context = get_context("spawn")
        self.connection, there = context.Pipe()
        self.process: SpawnProcess = context.Process(target=serve, args=(there, function, prepare), daemon=True)
        try:
            self.process.start()
        except OSError as error:
            raise Refusal(f"PIPELINE_WORKERS: a process that decodes cannot begin ({reason(error)}): set it to a smaller number") from None
        there.close()

    def ask(self, item: Item) -> Result:
        try:
            self.connection.send(item)
            result = handover.receive(self.connection)
        except (EOFError, OSError):
            raise self.refusal() from None
        except BaseException:  # the rest of the answer would be taken for the next one
            self.end()
            raise
        if isinstance(result, BaseException):
            raise result
        return cast("Result", result)

    def refusal(self) -> Refusal:
        self.process.join()
        code = self.process.exitcode or 0
        if code == -signal.SIGKILL:
            return Refusal(
                "PIPELINE_WORKERS: a process that decodes was killed, most likely for want of memory: set it to a smaller number"
            )
        said = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Refusal(f"PIPELINE_WORKERS: a process that decodes {said}: set it to 1 to decode in the stage itself")

    def end(self) -> None:
        """Whoever waits for its answer meets the end of the pipe."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Once it has ended and nobody asks."""
        self.connection.close()
        self.process.close()


def serve(connection: Connection, function: Callable[[Item], Result], prepare: Callable[[], None]) -> None:
    """Until the other end of the pipe is closed. A signal to the whole group is answered by the stage alone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    prepare()
    with suppress(EOFError, ConnectionError):
        while True:
            item: Item = connection.recv()
            try:
                result: Result | Exception = function(item)
            except Exception as error:  # whatever it is belongs to whoever asked
                result = error
            handover.send(connection, result)
