"""Writes what journals record to the event files of TensorBoard: scalars, parameters and provenance as text, and figures."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.section import flatten, formatted
from pipeline.runs.events import EVENTS, SYSTEM, Event
from pipeline.runs.journal import EXPORTED, SEARCH_TAG, short_name
from pipeline.runs.record import Record
from pipeline.runs.table import markdown

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVENT_FILES = "events.out.tfevents.*"
WRITTEN, LOCK = "written.json", "written.lock"
"""The file beside the event files with their names and the offset up to which each file of the journal was written to them, and its lock."""
UNUSUAL = re.compile(r"[^\w .,#=+\[\]-]", re.ASCII)
"""Characters of a name that are replaced in the name of a folder."""
LONGEST_NAME = 200


def folder_name(run: Record) -> str:
    """Return the name of the folder for the event files of a run, which TensorBoard shows as the name of the run.

    This is the name of the journal. A search and its trials have their names in MLflow, such as `digits #7 lr=3e-3 width=16`, and the last
    part of the journal's name, because two searches can have the same name.
    """
    start = run.first
    if SEARCH_TAG not in start.get("tags", {}):
        return run.name
    return f"{UNUSUAL.sub('_', start.get('name', ''))[:LONGEST_NAME]} {short_name(run.name)}"


def write(folder: Path, run: Record, top: Path) -> tuple[int, int]:
    """Add an event file to `folder` with what the run has recorded since the last call. `top` is the checkout, which may have its figures.
    Return the numbers of metric points and figures that were added.

    If the journal is shorter than what was written of it, it was restored from a backup: then its event files are written anew.
    """
    path = folder / WRITTEN
    with files.locked(folder / LOCK, wait=True), files.naming(folder):
        recorded = {EVENTS: run.events, SYSTEM: list(run.system)}
        ends = {name: lines[-1].end if lines else 0 for name, lines in recorded.items()}
        written = json.loads(path.read_bytes()) if path.is_file() else {}
        offsets, known = written.get("offsets", dict.fromkeys(recorded, 0)), written.get("files", [])
        if any(ends[name] < offset for name, offset in offsets.items()):
            offsets, known = dict.fromkeys(recorded, 0), []
        new = [pair for name, lines in recorded.items() for pair in with_steps(lines) if pair[1].end > offsets[name]]
        if not new:
            return 0, 0
        for event_file in folder.glob(EVENT_FILES):
            if event_file.name not in known:  # of an earlier version, or of a call that was killed
                event_file.unlink()
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder)) as writer:
            num_figures = sum(add(writer, event, step, run, top) for step, event in new)
        files.write_json(path, {"offsets": ends, "files": sorted(each.name for each in folder.glob(EVENT_FILES))})
    return sum(len(event.fields["values"]) for _, event in new if event.kind == "metrics"), num_figures


def with_steps(lines: Iterable[Event]) -> Iterator[tuple[int, Event]]:
    """Yield the events, each with the step of the last metrics so far, without the repeated metrics of the exported weights."""
    step = 0
    for event in lines:
        if event.kind == "metrics" and next(iter(event.fields["values"]), "").startswith(EXPORTED):
            continue
        step = event.fields["step"] if event.kind == "metrics" else step
        yield step, event


def add(writer: "SummaryWriter", event: Event, step: int, run: Record, top: Path) -> bool:
    """Add one event: its metrics, its figure, or its texts. The parameters with which the run began are in the tab HPARAMS, too. Return
    True if it has a figure.
    """
    fields, time_s = event.fields, event.time_ms / 1000
    match event.kind:
        case "metrics":
            for name, value in fields["values"].items():
                writer.add_scalar(name, float(value), step, time_s)
        case "artifact" if path := figure(fields, run.folder, top):
            import numpy as np
            from PIL import Image

            tag = Path(fields["folder"], path.stem).as_posix()
            writer.add_image(tag, np.asarray(Image.open(path).convert("RGB")), step, time_s, dataformats="HWC")
            return True
        case "description":
            writer.add_text("result", fields["text"], step, time_s)
        case "start" | "reopen":
            if event.kind == "start" and fields["params"]:
                from tensorboard.plugins.hparams.summary_v2 import hparams_pb

                known = {
                    name: value if isinstance(value, bool | int | float) else formatted(value) for name, value in fields["params"].items()
                }
                hparams = hparams_pb(known, trial_id=run.name, start_time_secs=time_s)
                writer._get_file_writer().add_summary(hparams, step, time_s)  # type: ignore[no-untyped-call]  # torch's
                writer.add_text("parameters", nested_table(fields["params"]), step, time_s)
            if origin := fields.get("provenance"):
                writer.add_text(f"provenance/{fields['stage']}", nested_table(origin), step, time_s)
    return False


def nested_table(values: Mapping[str, Any]) -> str:
    """Return nested values as a Markdown table."""
    return markdown(("", ""), [(name, formatted(value).replace("|", r"\|")) for name, value in flatten(values).items()])


def figure(fields: Mapping[str, Any], journal: Path, top: Path) -> Path | None:
    """Return a PNG file with the content that the `fields` of an event `artifact` name, in the journal or in the checkout `top`; None if
    there is none: the journal's copies are removed after MLflow has the whole run.

    The name of the folder of the journal's copy is the beginning of the file's SHA-256.
    """
    copy = Path(fields["file"])
    candidates = (journal / copy, top / fields["folder"] / copy.name) if copy.suffix == ".png" else ()
    return next((path for path in candidates if path.is_file() and files.digest(path).startswith(copy.parent.name)), None)
