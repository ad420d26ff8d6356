"""Maps a function over items on threads, worker processes or a dask.distributed cluster, with results in the order of the items.

ProcessPoolExecutor is not used, because it can neither kill a busy worker nor report how a worker ended. The workers ignore SIGTERM. So
ProcessPoolExecutor would wait for busy workers to finish if one of them is killed, or if the caller stops early. A cluster is trusted: its
protocol unpickles what it receives.
"""

import logging
import os
import platform
import signal
import socket
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import pipeline
from pipeline.core import files
from pipeline.core.raw_dataset import Cluster
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.untrusted import reason

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item")
Result = TypeVar("Result")
CONNECT_S = 10.0
AHEAD = 64


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


def in_order(submit: Callable[[Item], Future[Result]], items: Iterable[Item], *, max_in_flight: int) -> Iterator[tuple[Item, Result]]:
    """Yield each item and its result, in the order of `items`. `submit(item)` starts to compute a result: a Future of concurrent.futures or of dask.

    At most `max_in_flight` items are computed ahead of the caller. If it stops early, the others are cancelled.
    """
    pending: deque[tuple[Item, Future[Result]]] = deque()
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


def installed(library: str) -> str:
    """Return the version of an installed package, or "none"."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


@cache
def versions() -> dict[str, str]:
    """Return the versions that must be equal on all machines, as they are at the first call: later changes of the files do not change what runs."""
    code = Path(pipeline.__file__).parent
    return {
        "code": files.digest_of({path.relative_to(code).as_posix(): files.digest(path) for path in code.rglob("*.py")}),
        "Python": platform.python_version(),
        **{library: installed(library) for library in ("distributed", "numpy", "pillow", "tokenizers")},
    }


def on_cluster(
    function: Callable[[Item], Result], items: Iterable[Item], *, cluster: Cluster, prepare: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """Yield each item and `function(item)`, computed on the workers of `cluster`, in the order of the items.

    Each worker calls `prepare()` before each item. If a worker dies, the scheduler gives its items to another worker. So `function` may run
    more than once for an item, and must be idempotent. An exception in `function` is raised again in this process.

    Raises Refusal if the scheduler cannot be reached or ends, or if four workers die while they run the same item. Also raises Refusal if a
    worker has other `versions`, or cannot read and write the files in `cluster.shared`. Both are tested at the start and before each item,
    because workers may join later.
    """
    with connected(cluster) as client:
        # late: only those who set PIPELINE_CLUSTER have this package
        from distributed.client import ClosedClientError, FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        def submit(item: Item) -> Future[Result]:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph")  # items from a compressed tar contain the files
                return cast(
                    "Future[Result]", client.submit(call, item, pure=False)
                )  # by default, calls with equal arguments would be one task

        call = partial(checked, function, prepare, cluster.shared, versions())
        threads = sum(client.nthreads().values())  # type: ignore[no-untyped-call]  # distributed has few types
        try:
            yield from in_order(submit, items, max_in_flight=AHEAD + 2 * threads)
        except KilledWorker as error:
            remedy = f"if they ran out of memory, give each more memory: {error}"
            raise Refusal(f"PIPELINE_CLUSTER: several workers have died at the same task: {remedy}") from None
        except (FutureCancelledError, ClosedClientError, CommClosedError):
            problem = f"the scheduler at {cluster.address} has ended"
            raise Unavailable(f"PIPELINE_CLUSTER: {problem}: start it and its workers, and run again") from None


@contextmanager
def connected(cluster: Cluster) -> "Iterator[Client]":
    """Connect to the scheduler of `cluster`, and test the scheduler and its workers. Raises Refusal like `on_cluster`."""
    try:
        import distributed  # noqa: F401  # tested here, used by `connect`
    except ImportError:
        raise Refusal("PIPELINE_CLUSTER: needs the package distributed: run `make setup-cluster`, also on the cluster's machines") from None
    try:
        client = connect(cluster.address)
    except Exception as error:  # whatever listens at this address may answer anything
        problem = f"no scheduler has answered at {cluster.address} within {CONNECT_S:g} seconds ({reason(error)})"
        raise Unavailable(f"PIPELINE_CLUSTER: {problem}: start `python -m dask scheduler` there") from None
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it would print a traceback for what `on_cluster` says in a line
    with client:
        refuse_unfit(client, cluster)
        yield client


def connect(address: str) -> "Client":
    """Connect to the scheduler at `address`. Raises an exception of any kind if none answers within CONNECT_S seconds.

    A thread connects, because `Client` has no timeout for the first message of a server that is not a scheduler, such as a web server.
    """
    from distributed import Client

    answer: Future[Client] = Future()

    def attempt() -> None:
        try:
            answer.set_result(Client(address, timeout=CONNECT_S, set_as_default=False))  # type: ignore[no-untyped-call]
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=attempt, daemon=True).start()
    return answer.result(timeout=CONNECT_S + 1)


def refuse_unfit(client: "Client", cluster: Cluster) -> None:
    """Raise Refusal if there is no worker, or if the scheduler or a worker has other `versions` or cannot use `cluster.shared`."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
        client.run_on_scheduler(refuse_other, versions())  # type: ignore[no-untyped-call]
        answers = client.run(refuse_other, versions(), cluster.shared, on_error="return")
    except TimeoutError:
        remedy = f"start `python -m dask worker {cluster.address}`"
        raise Refusal(f"PIPELINE_CLUSTER: no worker has joined {cluster.address}: {remedy}") from None
    except ImportError as error:
        answers = {"of the scheduler": error}
    for address, answer in answers.items():
        if isinstance(answer, Refusal):
            raise answer
        if answer is not None:
            remedy = "start it with `python -m dask` in a checkout of the same commit"
            raise Refusal(f"PIPELINE_CLUSTER: the process {address} cannot run this code ({reason(answer)}): {remedy}")


def checked(
    function: Callable[[Item], Result], prepare: Callable[[], None], shared: Iterable[Path], expected: dict[str, str], item: Item
) -> Result:
    """Call `prepare()`, and return `function(item)`. Raises Refusal like `refuse_other`."""
    refuse_other(expected, shared)
    prepare()
    return function(item)


def refuse_other(expected: dict[str, str], shared: Iterable[Path] = ()) -> None:
    """Raise Refusal if this process has other `versions` than `expected`, or cannot read a path in `shared`, or cannot write a draft there."""
    machine = f"PIPELINE_CLUSTER: the machine {socket.gethostname()}"
    if other := [name for name in expected if versions()[name] != expected[name]]:
        raise Refusal(f"{machine} has another version of: {', '.join(other)}: update its checkout and .venv, and start its workers again")
    for path in shared:
        if not os.access(path, os.R_OK | (os.W_OK if path.suffix == ".draft" else 0)):
            raise Refusal(f"{machine} cannot use {path}: share this folder with all machines under the same path, and the same user id")
