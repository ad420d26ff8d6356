"""A lock on a checkout, held by one PID namespace at a time.

DVC records who uses a file by process number, which means nothing in another container or on the host: two DVCs in one checkout would take each
other for dead. The lock is an flock: all containers on one volume share it with the host, and the kernel drops it with its process.
"""

import fcntl
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pipeline.refusal import Refusal

LOCK = ".pipeline/checkout.lock"
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Tells hosts apart, whose first PID namespaces all have one number; a host name can change during a job."""
CLAIM_WITHIN_S, RETRY_S = 1.0, 0.05
"""Others hold the file for an instant to read who works here."""


@contextmanager
def held(top: Path, *, place: str = "") -> Iterator[None]:
    """Hold the checkout at `top` for this PID namespace, whose processes share it, until the block ends.

    `place` says to others where the job runs: "on" this host unless given. Raises Refusal with the other's while another namespace holds it.
    """
    path = top / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    namespace = f"{BOOT.read_text(encoding='ascii').strip()} {Path('/proc/self/ns/pid').readlink()}"
    with path.open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + CLAIM_WITHIN_S
        while (holder := claim(file, namespace, place or f"on {socket.gethostname()}")) is not None:
            if time.monotonic() > deadline:
                raise Refusal(
                    f"{top.absolute()}: a job {holder or 'in another container'} is at work here: wait until it has ended, or stop it"
                )
            time.sleep(RETRY_S)
        yield


def claim(file: TextIO, namespace: str, place: str) -> str | None:
    """Take a shared lock for `namespace`; returns None, or the place of the namespace that holds it."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(f"{namespace}\n{place}")
        file.flush()
    # turns an exclusive lock into a shared one, but not in one step: another namespace may have written meanwhile
    fcntl.flock(file, fcntl.LOCK_SH)
    file.seek(0)
    holder, _, its_place = file.read().partition("\n")
    if holder == namespace:
        return None
    fcntl.flock(file, fcntl.LOCK_UN)
    return its_place
