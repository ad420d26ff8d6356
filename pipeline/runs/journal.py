"""The journal of a run: the local record of its metadata, metrics and files, in lines that are only appended. MLflow receives its events from here."""

import fcntl
import hashlib
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pipeline.core import files
from pipeline.core.refusal import counted
from pipeline.core.section import Scalar
from pipeline.runs import events

SECTIONS = ("seed", "model", "loss", "optimizer", "train", "schedule", "augment", "evaluate", "source")
"""The order of parameters in the names of runs and in their comparison: those that people vary most come first."""


@dataclass(frozen=True)
class Dataset:
    """One split of the data, for MLflow. `context` says what the split is used for, in MLflow's terms, such as "training". `profile` has
    facts about the split.
    """

    name: str
    digest: str
    context: str
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunInfo:
    """The metadata of a run.

    In MLflow, tags can change later, but params cannot. `provenance` is stored as a JSON file. `name` and `description` are used only if
    the run is new in MLflow.
    """

    params: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    datasets: Sequence[Dataset] = ()
    subject: str = ""
    """Model and dataset, as "ARCHITECTURE on DATASET", for the descriptions of the run."""
    description: str = ""
    name: str = ""
    experiment: str = ""
    """The MLflow experiment if the user chooses none, such as "digits"."""


def architecture(params: Mapping[str, Any]) -> str:
    """Return the name of the architecture, such as "lstm", from the parameters of a run by dotted key; "" if there is none.

    It is `ModelSettings.title`, but needs neither valid parameters nor torch.
    """
    return str(next((value for key in ("architecture", "cell", "name") if (value := params.get(f"model.{key}"))), ""))


Status = Literal["FINISHED", "KILLED", "FAILED"]
MODEL_DIGEST = "model.sha256"
WRITER_LOCK, MIRROR_LOCK = "writer.lock", "mirror.lock"
SEARCH_TAG = "pipeline.search"
"""A tag of the run of a search and of the runs of its trials: the unique id of the search."""
SHARED_TAG = "pipeline.samples_in_two_splits"
"""A tag of the run of a model: how many samples of its data have inputs that stand in another split too."""
DIRECTION_TAG = "pipeline.metric_direction"
"""A tag of the run of a training: "min" if smaller values of `train.metric` are better, else "max"."""
EXPORTED = "exported/"
"""The beginning of the names of the exported weights' metrics, such as "exported/valid/accuracy". Only a finished training has them."""
COPIES, MODEL = "files", "model.safetensors"
NUMBERED = re.compile("run-([0-9]+)-")
LOCK_ATTEMPTS, LOCK_PAUSE_S = 40, 0.025


def journals_folder(root: Path) -> Path:
    """Return the folder of all journals. Each journal is a folder in it, and the names sort in the order of creation."""
    return root / ".pipeline" / "journal"


def new_name(root: Path) -> str:
    """Return a name for a new journal. It begins with a counter, so that it sorts after all others even if the clock was set back."""
    numbers = (int(found[1]) for path in journals_folder(root).glob("*") if (found := NUMBERED.match(path.name)))
    return f"run-{max(numbers, default=0) + 1:06}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def journals(root: Path) -> list[Path]:
    """Return the folders of all journals that have an event, oldest first."""
    return sorted(filter(has_begun, journals_folder(root).glob("*")))


def has_begun(folder: Path) -> bool:
    """Return True if the journal has an event. It has none if a process was killed while it created the journal."""
    return events.has_more(folder / events.EVENTS, 0)


def is_written(folder: Path) -> bool:
    """Return True if a process, usually the stage, has the journal open for writing. This process holds a lock until it closes the journal,
    ends or is killed.
    """
    return is_locked(folder / WRITER_LOCK)


def is_mirrored(folder: Path) -> bool:
    """Return True if a process is sending the journal to MLflow, or is ready to send what is added to it."""
    return is_locked(folder / MIRROR_LOCK)


def is_locked(path: Path) -> bool:
    with files.naming(path), path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two processes that check at the same time both succeed
        except BlockingIOError:
            return True
    return False


@contextmanager
def exclusive(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the journal's lock in the block, so that no other process can write the journal or remove its files.

    If `shared` is True, `is_written` stays False meanwhile: whoever cleans up after a stage is not taken for a stage. If the lock is taken,
    wait up to a second, because another process that calls `is_written` holds it for a moment. Raises BlockingIOError if it is still taken
    then.
    """
    for _ in range(LOCK_ATTEMPTS):
        with files.locked(folder / WRITER_LOCK, wait=False, shared=shared) as taken:
            if taken:
                yield
                return
        time.sleep(LOCK_PAUSE_S)
    raise BlockingIOError(f"{folder.name} is being written by another process")


class Journal:
    """The journal of a run, open for writing in this process only. Open it by `create` or `reopen`.

    A journal is a folder that records a run: its events, and copies of its files. The files are copied because the originals may change
    before they are sent to MLflow.
    """

    def __init__(self, folder: Path, *, stage: str, amends: bool) -> None:
        """Open the journal in `folder` for the stage called `stage`. `create` and `reopen` call this method; others call those.

        With `amends`, `metrics` also accepts changed values. Raises BlockingIOError if another process has the journal open for writing.
        """
        self.folder = folder
        self._amends = amends
        self._step = 0
        self._time_ms = 0
        self._points: dict[str, tuple[int, float | str]] = {}
        self._missing: list[str | int] = []
        self._closing = ExitStack()
        self._closing.enter_context(exclusive(folder))
        self._writer = events.Writer(folder / events.EVENTS, end=self._recall(stage))
        self._closing.callback(self._writer.close)

    @classmethod
    def create(cls, root: Path, *, stage: str, info: RunInfo, name: str | None = None, **more: str | None) -> "Journal":
        """Create a journal called `name` (default: a new name) for the stage called `stage`, and append the event `start` with the metadata
        `info`.

        `more` has further fields of this event: `experiment` is the name of the MLflow experiment. If the journal does not record a training
        but adds to the run of a model, such as an evaluation, `model_sha256` is the digest of the model file. Raises BlockingIOError if
        another process has this journal open for writing.
        """
        folder = journals_folder(root) / (name or new_name(root))
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls(folder, stage=stage, amends=False)
        journal._append("start", stage=stage, **asdict(info) | more)
        journal._writer.sync()
        for parent in (folder, *folder.parents[:3]):  # if a power cut lost the folder, the resumed training would create a second run
            files.sync(parent)
        return journal

    @classmethod
    def reopen(cls, folder: Path, *, stage: str, info: RunInfo, amends: bool = False) -> "Journal":
        """Reopen a journal for the stage called `stage`, and append the event `reopen` with the metadata `info`.

        With `amends`, a stage that runs again can replace its metrics: `metrics` accepts a changed value at the last recorded step of a
        metric. Raises FileNotFoundError if the folder has no journal with an event, and BlockingIOError if another process has it open for
        writing.
        """
        if not has_begun(folder):
            raise FileNotFoundError(f"{folder} has no journal with an event")
        journal = cls(folder, stage=stage, amends=amends)
        journal._append("reopen", stage=stage, **asdict(info))
        return journal

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append the values of metrics, by name, at a step.

        A resumed training repeats steps. So a metric is left out if this stage has already recorded it at this step or at a later one.
        There is one exception: if the journal was opened with `amends`, a changed value at the last recorded step of the metric is
        appended.
        """
        fresh = {}
        for name, value in values.items():
            number = events.number(value)
            last_step, last_number = self._points.get(name, (-1, None))
            if step > last_step or (self._amends and step == last_step and number != last_number):
                fresh[name] = number
        if fresh:
            with self._noting(step):
                self._append("metrics", step=step, values=fresh)
            self._points.update({name: (step, number) for name, number in fresh.items()})
            self._step = step

    def describe(self, text: str) -> None:
        with self._noting("description"):
            self._append("description", text=text)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Copy a file into the journal. In MLflow, the file belongs to the artifact folder `folder` ("" is the top)."""
        self.text(path.name, path.read_bytes(), folder)

    def text(self, name: str, content: bytes, folder: str = "") -> None:
        """Store `content` as a file called `name` in the journal. In MLflow, the file belongs to the artifact folder `folder` ("" is the top)."""
        copy = self.folder / COPIES / hashlib.sha256(content).hexdigest()[:16] / name
        with self._noting(f"file {name}"):
            if not copy.exists():
                with files.replacing(copy) as draft:  # the copy must be on disk before the event that refers to it
                    draft.write_bytes(content)
            self._append("artifact", file=copy.relative_to(self.folder).as_posix(), folder=folder)

    def model(self, path: Path) -> None:
        """Copy the model file into the journal, where it stays until MLflow has the whole run.

        In MLflow, the model belongs to the step of the last recorded metrics. `record.run_of_model` finds this journal by the digest of the file.
        """
        with self._noting("model"):
            with files.replacing(self.folder / MODEL) as draft:
                shutil.copyfile(path, draft)
            digest = files.digest(self.folder / MODEL)
            self._append("model", file=MODEL, sha256=digest, step=self._step)
        files.write_text(self.folder / MODEL_DIGEST, digest + "\n")

    def end(self, status: Status, reason: str = "") -> None:
        """Append the status. `reason` says why the run failed; "" if it did not fail."""
        self._append("end", status=status, **({"reason": reason} if reason else {}))
        self._writer.sync()

    def close(self) -> None:
        """Close the journal, so that other processes can open it. If `end` was not called, MLflow shows the run as KILLED."""
        self._closing.close()

    @contextmanager
    def _noting(self, what: str | int) -> Iterator[None]:
        """Note `what`, or the step of metrics, as missing if the block cannot write it, such as on a full disk. Raises the same OSError."""
        try:
            yield
        except OSError:
            self._missing.append(what)
            raise

    def _append(self, kind: str, **fields: Any) -> None:
        """Append an event. If others could not be written before, an event `gap` comes first and says which. Raises OSError if it fails."""
        if self._missing and kind != "gap":
            steps = [what for what in self._missing if isinstance(what, int)]
            metrics = [f"metrics of {counted(len(steps), 'step')} from {min(steps)} to {max(steps)}"] if steps else []
            others = [what for what in dict.fromkeys(self._missing) if isinstance(what, str)]
            self._append("gap", missing=f"{', '.join(metrics + others)}: the journal could not be written, such as on a full disk")
            self._missing.clear()
        # Timestamps never decrease, even if the clock is set back: of two points at one step, MLflow shows the later one.
        now_ms = time.time_ns() // 1_000_000
        self._time_ms = now_ms if now_ms >= self._time_ms else self._time_ms + 1
        self._writer.append({"kind": kind, "time_ms": self._time_ms, **fields})

    def _recall(self, stage: str) -> int:
        """Read `events.jsonl`, and set the attributes of this object that continue from it: the last timestamp, the last step, and the last
        value of each metric that the stage called `stage` recorded.

        Return the byte offset after the last whole line of the file.
        """
        end = 0
        stage_of_line = ""
        for line in events.read(self.folder / events.EVENTS):
            end = line.end
            self._time_ms = max(self._time_ms, line.time_ms)
            stage_of_line = line.fields.get("stage", stage_of_line)
            if line.kind == "metrics":
                self._step = line.fields["step"]
                if stage_of_line == stage:
                    self._points.update({name: (self._step, number) for name, number in line.fields["values"].items()})
        return end
