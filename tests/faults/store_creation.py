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
from pipeline.tracking.store import Store
from tests.faults.fork_server import ONE_THREAD
from tests.faults.killing import ended
from tests.forking import fork

LIMIT_S = 120.0


def open_store(root: Path) -> None:
    Store(Environment.model_validate({"DVC_ROOT": root})).run_for("a journal", {}, None)


def in_silence(do: Callable[[], None]) -> int:
    """Fork a child that runs `do` and prints nothing."""

    def silent() -> None:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        do()

    return fork(silent)


def opened(root: Path, within_s: float = LIMIT_S) -> int | None:
    """Open the store in a child and return its status, or None if it was killed after `within_s` seconds."""
    return ended(in_silence(lambda: open_store(root)), time.monotonic() + within_s)


def run(kills: int, seed: int = 7) -> dict[str, object]:
    for heavy in ("mlflow", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking._tracking_service.utils", "alembic.command"):
        import_module(heavy)
    os.environ.update(ONE_THREAD)
    random.seed(seed)
    seen: Counter[str] = Counter()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        assert opened(Path(top) / "whole") == 0
        took_s = time.monotonic() - begin
        while seen["kills"] < kills:
            root = Path(top) / "killed"
            root.mkdir()
            if opened(root, random.uniform(0.0, 1.0) * took_s) is None:
                seen["kills"] += 1
                seen["in the draft"] += any(root.glob(".*.draft"))
                seen["lost"] += opened(root) != 0
                seen["left over"] += any(root.glob(".mlflow*"))
            shutil.rmtree(root)
    return {**seen, "seconds": round(time.monotonic() - begin)}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
