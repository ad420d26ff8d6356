"""Detects whether other processes used the CPUs during a measurement."""

from pathlib import Path

SCHEDULER_STATISTICS = Path("/proc/self/schedstat")
"""The main thread's nanoseconds on a CPU, its nanoseconds of waiting for a CPU, and the number of its time slices (the kernel's
sched-stats.rst)."""
CROWDED = 0.1
"""If the main thread waits for a CPU for a larger share of the time, the measurement gets a warning."""


def cpu_wait_s() -> float:
    """Return how long the main thread of this process has waited for a CPU since its start; 0 if the kernel does not report it."""
    try:
        return int(SCHEDULER_STATISTICS.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def note(share: float) -> str | None:
    """Return a warning if `share`, the share of the time in which the main thread waited for a CPU, exceeds CROWDED. Else return None."""
    if share <= CROWDED:
        return None
    return (
        f"Other processes use the CPUs: for {share:.0%} of the time, this process had to wait for one. Measure again when they have ended."
    )
