"""Work on many threads or processes whose results come in the order of the items."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Generic, TypeVar, cast

from pipeline.foreign import reason
from pipeline.refusal import Refusal

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(function: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterator[tuple[Item, Result]]:
    """Each item and what `function` makes of it; so few are taken ahead that memory stays bounded by two a worker."""
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                pending.append((item, pool.submit(function, item)))
                if len(pending) >= 2 * workers:
                    first, result = pending.popleft()
                    yield first, result.result()
            for first, result in pending:
                yield first, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def on_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, prepare: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """The same, by processes of some 60 MB that call `prepare()` first; one item a worker is under way. All of it must be picklable.

    Raises what `function` raises, and Refusal where a process was killed or could not begin.
    """
    started: list[Worker[Item, Result]] = []
    try:
        started.extend(Worker(function, prepare) for _ in range(workers))
        pending: deque[tuple[Item, Worker[Item, Result]]] = deque()
        for number, item in enumerate(items):
            worker = started[number % workers]
            done = [(pending.popleft()[0], worker.receive())] if number >= workers else []
            worker.send(item)  # which it does while the result of the one before is looked at
            pending.append((item, worker))
            yield from done
        for first, worker in pending:
            yield first, worker.receive()
    finally:
        for worker in started:
            worker.end()


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

    def send(self, item: Item) -> None:
        try:
            self.connection.send(item)
        except OSError:
            raise self.refusal() from None

    def receive(self) -> Result:
        try:
            result = self.connection.recv()
        except (EOFError, OSError):
            raise self.refusal() from None
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
        self.connection.close()
        self.process.kill()
        self.process.join()


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
            connection.send(result)
