"""The mirror: a process that delivers the journal of a running stage to MLflow, so that the training loop never waits for MLflow."""

import contextlib
import io
import sys
import time
import traceback
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from pipeline.io import files
from pipeline.runtime.environment import Environment
from pipeline.tracking import journal
from pipeline.tracking.address import Address
from pipeline.tracking.cursor import Cursor, is_pending
from pipeline.tracking.delivery import Delivery
from pipeline.tracking.logged_model import Build
from pipeline.tracking.store import Store
from pipeline.tracking.system import Sampler

POLL_S, DELIVER_EVERY_S = 0.2, 1.0  # each delivery fsyncs files, so once a second is often enough
LAST_ATTEMPTS = 3
HANGING_S = 5.0
LONGEST_PAUSE_S = 15.0
LEFTOVERS, LEFTOVERS_S = 10, 30.0
MIRROR_LOCK = "mirror.lock"


def mirror(folder: Path, environment: Environment, build: Build) -> int:
    """Deliver a journal until its writer has exited and all is delivered. Return 0, or 1 when events are left."""
    store = Store(environment)
    with secretive(store.address), files.locked(folder / MIRROR_LOCK, wait=True):
        sampler = Sampler(folder)
        sampler.start()  # before importing MLflow, which takes longer than a short training
        try:
            return Mirror(folder, store, build, sampler).follow()
        except Exception:  # printed here, where secrets are redacted
            traceback.print_exc()
            return 1


class Mirror:
    """The loop of the mirror process for one journal."""

    def __init__(self, folder: Path, store: Store, build: Build, sampler: Sampler) -> None:
        self._delivery = Delivery(folder, store, build)
        self._leftovers = leftovers(store, build, but=folder)
        self._sampler = sampler

    def follow(self) -> int:
        """Deliver until the writer has exited and all is delivered. Return 0, or 1 when events are left.

        When MLflow is unreachable after the writer has exited, make `LAST_ATTEMPTS` attempts, and none after one that hung.
        """
        attempts = failures = 0
        while True:
            begin = time.monotonic()
            # Check before reading: otherwise events written in between would be missed.
            is_written = journal.is_written(self._delivery.folder)
            if not is_written:
                self._sampler.stop()
                attempts += 1
            try:
                self._delivery.catch_up()
                failures = 0
                if not is_written:
                    return self._finish()
            except Exception as error:  # whatever MLflow raises, the cursor stays and the delivery is tried again
                failures += 1
                self._complain(error, failures)
                hung = time.monotonic() - begin > HANGING_S
                if attempts >= LAST_ATTEMPTS or (hung and not journal.is_written(self._delivery.folder)):
                    return 1
                self._pause(min(0.5 * 2**failures, LONGEST_PAUSE_S), until_gone=is_written)
                continue
            next(self._leftovers, None)
            self._pause(DELIVER_EVERY_S, until_gone=is_written)

    def _finish(self) -> int:
        self._delivery.close()
        for _ in self._leftovers:
            pass
        return 0 if self._delivery.is_complete else 1

    def _complain(self, error: Exception, failures: int) -> None:
        """Print the 1st, 2nd, 4th, 8th, ... failure in a row only: a server that is down for days must not fill the disk with log lines."""
        if failures & (failures - 1) == 0:
            print(f"tracking: attempt {failures}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def _pause(self, seconds: float, *, until_gone: bool) -> None:
        """Sleep; with `until_gone`, only until the writer exits, so that the end of a stage does not wait for a long pause."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until_gone and not journal.is_written(self._delivery.folder)):
            time.sleep(POLL_S)


class Outcome(StrEnum):
    """The outcome of one delivery, as the verb `sync` prints it."""

    DELIVERED = "delivered"
    WRITTEN = "delivered so far, its writer lives"
    SET_ASIDE = "delivered but for what MLflow fails to take: the run's tag `pipeline.delayed` says why"
    BUSY = "another mirror is at it"


def deliver(folder: Path, store: Store, build: Build) -> Outcome:
    """Deliver the current events of a journal. Raises MLflow's exception when it is unreachable."""
    with files.locked(folder / MIRROR_LOCK, wait=False) as taken:
        if not taken:
            return Outcome.BUSY
        is_written = journal.is_written(folder)
        delivery = Delivery(folder, store, build)
        delivery.catch_up()
        if is_written:
            return Outcome.WRITTEN
        delivery.close()
        return Outcome.DELIVERED if delivery.is_complete else Outcome.SET_ASIDE


def leftovers(store: Store, build: Build, *, but: Path) -> Iterator[Path]:
    """Deliver the undelivered journals of earlier runs, oldest first, one per iteration.

    Stops after `LEFTOVERS` journals or `LEFTOVERS_S` seconds, and when MLflow is unreachable.
    """
    found = [
        folder for folder in journal.journals(store.address.root) if folder != but and is_pending(folder) and not journal.is_written(folder)
    ]
    # Journals with failed events come last: runs that MLflow never accepts must not block all others.
    found.sort(key=lambda folder: Cursor.load(folder, store.address.key).redo is not None)
    spent_s = 0.0
    for folder in found[:LEFTOVERS]:
        begin = time.monotonic()
        try:
            deliver(folder, store, build)
        except Exception as error:  # the next stage or `sync` tries again
            print(f"tracking: {folder.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if not store.answers():
                return
        yield folder
        spent_s += time.monotonic() - begin
        if spent_s > LEFTOVERS_S:
            return


class Redacted(io.TextIOBase):
    """A text stream that redacts the secrets of the address."""

    def __init__(self, stream: TextIO, address: Address) -> None:
        self._stream = stream
        self._address = address

    def write(self, text: str) -> int:
        self._stream.write(self._address.redacted(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def secretive(address: Address) -> Iterator[None]:
    """Redact secrets in everything that is printed inside the block, also by MLflow and its libraries."""
    with contextlib.redirect_stdout(Redacted(sys.stdout, address)), contextlib.redirect_stderr(Redacted(sys.stderr, address)):
        yield
