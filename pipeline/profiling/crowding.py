"""Tells whether other processes took the CPUs during a measurement."""

from pathlib import Path

SCHEDULER_STATISTICS = Path("/proc/self/schedstat")
"""Of the main thread: nanoseconds on a CPU, nanoseconds of waiting for one, and how often it ran (sched-stats.rst of the kernel)."""
CROWDED = 0.1
"""If a process waits for a CPU for a larger share of the time, the measurement is not trusted."""


def queued_s() -> float:
    """Return how long the main thread of this process has waited for a CPU since its start; 0 if the kernel does not tell."""
    try:
        return int(SCHEDULER_STATISTICS.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def note(share: float) -> str | None:
    """Return a warning if the main thread waited for a CPU for more than CROWDED of the time, given this share. Else return None."""
    if share <= CROWDED:
        return None
    return (
        f"Other processes use the CPUs: for {share:.0%} of the time, this process had to wait for one. Measure again when they have ended."
    )
