"""Kill mirrors at random moments while they create the SQLite store: `python -m tests.faults.store_creation 50` prints a line of JSON.

The children are forked from this process, which has imported MLflow and opened no store.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.runs.mlflow.store import Store
from tests.faults.fork_server import ONE_THREAD
from tests.faults.killing import ended
from tests.forking import fork

LIMIT_S = 120.0
LATEST_S = 1.0


def open_store(root: Path) -> None:
    Store(Environment.model_validate({"DVC_ROOT": root})).run_for("a journal", {}, None)


def in_silence(do: Callable[[], None]) -> int:
    """Fork a child that runs `do` and prints nothing."""

    def silent() -> None:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        do()

    return fork(silent)


def killed_in_the_draft(root: Path, after_s: float) -> bool:
    """Open the store in a child, and kill it `after_s` seconds after the draft of the store is there. Return False if it ended before."""
    child, deadline = in_silence(lambda: open_store(root)), time.monotonic() + LIMIT_S
    while not any(root.glob(".*.draft")) and time.monotonic() < deadline:
        time.sleep(0.001)
    return ended(child, time.monotonic() + after_s) is None


def run(kills: int, seed: int = 7) -> dict[str, object]:
    for heavy in ("mlflow", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking._tracking_service.utils", "alembic.command"):
        import_module(heavy)
    os.environ.update(ONE_THREAD)
    random.seed(seed)
    seen: Counter[str] = Counter()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        while seen["kills"] < kills:
            root = Path(top) / "killed"
            root.mkdir()
            if killed_in_the_draft(root, random.uniform(0.0, LATEST_S)):
                seen["kills"] += 1
                seen["in the draft"] += any(root.glob(".*.draft"))
                seen["lost"] += ended(in_silence(lambda root=root: open_store(root)), time.monotonic() + LIMIT_S) != 0  # type: ignore[misc]
                seen["left over"] += any(root.glob(".mlflow*"))
            shutil.rmtree(root)
    return {**seen, "seconds": round(time.monotonic() - begin)}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
