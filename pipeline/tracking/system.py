"""Records system metrics, such as the use of CPU and GPUs, during a run."""

import threading
import time
from pathlib import Path

from pipeline.runtime import utilization
from pipeline.tracking import events

FIRST_INTERVAL_S = 0.1
FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 1.0, 30.0, 1.25


class Sampler(threading.Thread):
    """A thread that appends system metrics to `system.jsonl` at growing intervals. It begins early, so that short runs have some too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="system metrics", daemon=True)
        self._path = folder / events.SYSTEM
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Tell the thread to stop, and wait at most 5 s for it. The thread first finishes the sample that it is recording, so that the last
        line of `system.jsonl` is complete.
        """
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        lines = list(events.read(self._path))
        writer = events.Writer(self._path, end=lines[-1].end if lines else 0)
        devices = utilization.gpus()
        utilization.sample(devices)  # the use of the CPU is measured since the sample before, so the first sample has none
        time.sleep(FIRST_INTERVAL_S)
        step, pause_s = len(lines), FIRST_PAUSE_S
        while True:
            values = {f"system/{name}": events.number(value) for name, value in utilization.sample(devices).items()}
            writer.append({"kind": "metrics", "time_ms": time.time_ns() // 1_000_000, "step": step, "values": values})
            if self._stopped.wait(pause_s):
                return
            step, pause_s = step + 1, min(pause_s * GROWTH, LONGEST_PAUSE_S)
