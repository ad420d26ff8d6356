"""Maps a function over items on the workers of a dask.distributed cluster, with results in the order of the items.

The cluster is trusted: its protocol unpickles what it receives.
"""

import logging
import os
import platform
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

import pipeline
from pipeline.core import files
from pipeline.core.raw_dataset import Cluster
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.untrusted import reason
from pipeline.prepare.reading.workers import Task, in_order

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item")
Result = TypeVar("Result")
CONNECT_S = 10.0
AHEAD = 64
CODE = Path(pipeline.__file__).parent


def installed(library: str) -> str:
    """Return the version of an installed package, or "none"."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


VERSIONS = {
    "code": files.digest_of({path.relative_to(CODE).as_posix(): files.digest(path) for path in CODE.rglob("*.py")}),
    "Python": platform.python_version(),
    **{library: installed(library) for library in ("distributed", "numpy", "pillow", "tokenizers")},
}
"""The versions that must be equal on all machines. They are computed at import, because later changes of the files do not change what runs."""


def on_cluster(
    function: Callable[[Item], Result], items: Iterable[Item], *, cluster: Cluster, prepare: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """Yield each item and `function(item)`, computed on the workers of `cluster`, in the order of the items.

    Each worker calls `prepare()` before each item. If a worker dies, the scheduler gives its items to another worker. So `function` may run
    more than once for an item, and must be idempotent. An exception in `function` is raised again in this process.

    Raises Refusal if the scheduler cannot be reached or ends, or if four workers die while they run the same item. Also raises Refusal if a
    worker has other VERSIONS, or cannot read and write the files in `cluster.shared`. Both are tested at the start and before each item,
    because workers may join later.
    """
    with connected(cluster) as client:
        # late: only those who set PIPELINE_CLUSTER have this package
        from distributed.client import ClosedClientError, FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        def submit(item: Item) -> Task[Result]:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph")  # items from a compressed tar contain the files
                return client.submit(call, item, pure=False)  # by default, calls with equal arguments would be one task

        call = partial(checked, function, prepare, cluster.shared, VERSIONS)
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
    """Raise Refusal if there is no worker, or if the scheduler or a worker has other VERSIONS or cannot use `cluster.shared`."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
        client.run_on_scheduler(refuse_other, VERSIONS)  # type: ignore[no-untyped-call]
        answers = client.run(refuse_other, VERSIONS, cluster.shared, on_error="return")
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
    function: Callable[[Item], Result], prepare: Callable[[], None], shared: Iterable[Path], versions: dict[str, str], item: Item
) -> Result:
    """Call `prepare()`, and return `function(item)`. Raises Refusal like `refuse_other`."""
    refuse_other(versions, shared)
    prepare()
    return function(item)


def refuse_other(versions: dict[str, str], shared: Iterable[Path] = ()) -> None:
    """Raise Refusal if this process has other VERSIONS than `versions`, or cannot read a path in `shared`, or cannot write a draft there."""
    machine = f"PIPELINE_CLUSTER: the machine {socket.gethostname()}"
    if other := [name for name in versions if VERSIONS[name] != versions[name]]:
        raise Refusal(f"{machine} has another version of: {', '.join(other)}: update its checkout and .venv, and start its workers again")
    for path in shared:
        if not os.access(path, os.R_OK | (os.W_OK if path.suffix == ".draft" else 0)):
            raise Refusal(f"{machine} cannot use {path}: share this folder with all machines under the same path, and the same user id")
