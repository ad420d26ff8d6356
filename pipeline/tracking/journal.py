"""The journal of a run: a local, append-only record. Every event is on disk before it is sent to MLflow."""

import hashlib
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pipeline.io import files
from pipeline.tracking import events
from pipeline.tracking.run_info import RunInfo

Status = Literal["FINISHED", "KILLED", "FAILED"]
MODEL_DIGEST = "model.sha256"
WRITER_LOCK = "writer.lock"
COPIES, MODEL = "files", "model.safetensors"
NUMBERED = re.compile("run-([0-9]+)-")


def shelf(root: Path) -> Path:
    """Return the folder that holds the journal folders. Their names sort by creation."""
    return root / ".pipeline" / "journal"


def new_name(root: Path) -> str:
    """Return a name that sorts after all existing journals.

    It starts with a counter, because a clock can be set back. Names from earlier versions start with the time, a digit, and sort first.
    """
    numbers = (int(found[1]) for path in shelf(root).glob("*") if (found := NUMBERED.match(path.name)))
    return f"run-{max(numbers, default=0) + 1:06}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def mark(name: str) -> str:
    """Return the last part of a journal's name, which distinguishes its run from others of the same model and data."""
    return name.rpartition("-")[2]


def journals(root: Path) -> list[Path]:
    """Return the folders of all journals, oldest first."""
    return sorted(path.parent for path in shelf(root).glob(f"*/{events.EVENTS}"))


def find(root: Path, model_digest: str) -> Path | None:
    """Return the newest journal whose model file has this SHA-256, or None."""
    for folder in reversed(journals(root)):
        try:
            if (folder / MODEL_DIGEST).read_text(encoding="utf-8").strip() == model_digest:
                return folder
        except OSError:
            continue
    return None


def is_written(folder: Path) -> bool:
    """Return True while a process has the journal open for writing. The kernel releases its lock when it exits."""
    with files.locked(folder / WRITER_LOCK, wait=False) as taken:
        return not taken


class Journal:
    """The only writer of a journal. Open one by `create` or `reopen`.

    Files are copied into the journal, because the originals may change before they are delivered.
    """

    def __init__(self, folder: Path, *, stage: str, amends: bool) -> None:
        """Lock the journal and read its state. Raises BlockingIOError while another process writes it."""
        self.folder = folder
        self._stage = stage
        self._amends = amends
        self._points: dict[str, tuple[int, float | str]] = {}
        self._copies: dict[tuple[str, str], str] = {}
        self._num_copies = 0
        self._step = 0
        self._time_ms = 0
        self._closing = ExitStack()
        with ExitStack() as on_failure:
            on_failure.enter_context(self._closing)
            self._closing.enter_context(exclusive(folder))
            self._recall(events.read(folder / events.EVENTS))
            self._writer = events.Writer(folder / events.EVENTS)
            self._closing.callback(self._writer.close)
            on_failure.pop_all()

    @classmethod
    def create(cls, root: Path, *, stage: str, info: RunInfo, name: str | None = None, **more: str | None) -> "Journal":
        """Create a journal. `more` is added to its first event: the MLflow `experiment` and, where the user set one, the `run_id`."""
        folder = shelf(root) / (name or new_name(root))
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls(folder, stage=stage, amends=False)
        journal._append("start", stage=stage, **info.as_fields(), **more)
        journal._writer.sync()
        for parent in (folder, *folder.parents[:3]):  # a folder lost in a power cut would become a second run when the training resumes
            files.sync(parent)
        return journal

    @classmethod
    def reopen(cls, folder: Path, *, stage: str, info: RunInfo, amends: bool = False) -> "Journal":
        """Reopen a journal. With `amends`, the last step of a metric can be written again with another value.

        Raises FileNotFoundError where the folder holds no journal.
        """
        if not (folder / events.EVENTS).is_file():
            raise FileNotFoundError(f"{folder} holds no journal")
        journal = cls(folder, stage=stage, amends=amends)
        journal._append("reopen", stage=stage, **info.as_fields())
        return journal

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metric points that the journal does not hold yet: a resumed training repeats steps."""
        fresh = {}
        for name, value in values.items():
            point = (step, events.number(value))
            if self._is_beyond(point, self._points.get(name)):
                self._points[name] = point
                fresh[name] = point[1]
        if fresh:
            self._append("metrics", step=step, values=fresh)
            self._step = step

    def tags(self, tags: Mapping[str, str]) -> None:
        self._append("tags", tags=dict(tags))

    def describe(self, text: str) -> None:
        self._append("description", text=text)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file into the journal. The same bytes under the same name are stored once."""
        self.text(path.name, path.read_bytes(), folder)

    def text(self, name: str, content: bytes, folder: str = "") -> None:
        """Store content as a file in the journal. The same content under the same name is stored once."""
        digest = hashlib.sha256(content).hexdigest()
        if self._copies.get((folder, name)) == digest:
            return
        self._num_copies += 1
        copy = self.folder / COPIES / str(self._num_copies) / name
        with files.replacing(copy) as draft:  # on disk before the event that refers to it
            draft.write_bytes(content)
        self._append("artifact", file=copy.relative_to(self.folder).as_posix(), folder=folder, sha256=digest)
        self._copies[(folder, name)] = digest

    def model(self, path: Path) -> None:
        """Copy the model file into the journal, where it stays until the mirror has logged it.

        It is logged at the last step of the journal. From then on, `find` returns this journal for the model's digest.
        """
        copy = self.folder / MODEL
        with files.replacing(copy) as draft:
            shutil.copyfile(path, draft)
        digest = files.digest(copy)
        self._append("model", file=copy.name, sha256=digest, step=self._step)
        files.write_text(self.folder / MODEL_DIGEST, digest + "\n")

    def end(self, status: Status) -> None:
        self._append("end", status=status)
        self._writer.sync()

    def close(self) -> None:
        """Release the lock and close the files. A run that was not ended by `end` counts as killed."""
        self._closing.close()

    def _append(self, kind: str, **fields: Any) -> None:
        # Timestamps never decrease, even if the clock is set back: of two points at a step MLflow shows the later one.
        now_ms = time.time_ns() // 1_000_000
        self._time_ms = now_ms if now_ms >= self._time_ms else self._time_ms + 1
        self._writer.append({"kind": kind, "time_ms": self._time_ms, **fields})

    def _is_beyond(self, point: tuple[int, float | str], held: tuple[int, float | str] | None) -> bool:
        """Return True if a metric point is new: at a later step than the held one or, with `amends`, another value at the same step."""
        if held is None or point[0] > held[0]:
            return True
        return self._amends and point[0] == held[0] and point[1] != held[1]

    def _recall(self, lines: Iterable[events.Event]) -> None:
        """Restore the last time and step, the metric points of this stage, and the stored files, to detect repetitions."""
        stage = ""
        for line in lines:
            self._time_ms = max(self._time_ms, line.time_ms)
            if line.kind in {"start", "reopen"}:
                stage = line.fields["stage"]
            elif line.kind == "metrics":
                self._step = line.fields["step"]
                if stage == self._stage:
                    self._points.update({name: (self._step, value) for name, value in line.fields["values"].items()})
            elif line.kind == "artifact":
                self._copies[(line.fields["folder"], Path(line.fields["file"]).name)] = line.fields["sha256"]
                self._num_copies = int(Path(line.fields["file"]).parent.name)


def exclusive(folder: Path, attempts: int = 40) -> ExitStack:
    """Take the writer's lock, and hold it until the returned stack is closed. Raises BlockingIOError while another process holds it.

    It is tried repeatedly, because `is_written`, which mirrors call, holds the lock for an instant.
    """
    for attempt in range(attempts):
        with ExitStack() as stack:
            if stack.enter_context(files.locked(folder / WRITER_LOCK, wait=False)):
                return stack.pop_all()
        time.sleep(0.025 if attempt else 0)
    raise BlockingIOError(f"{folder.name} is being written by another process")
