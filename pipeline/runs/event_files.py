"""Writes the event files of TensorBoard from journals: scalars, parameters as text, and figures."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.core.section import flatten, formatted
from pipeline.runs.events import Event
from pipeline.runs.journal import SEARCH_TAG, short_name
from pipeline.runs.record import Record
from pipeline.runs.table import markdown

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

PACKAGE = "tensorboard"
FIGURES, METRICS = "events.out.tfevents.1-figures", "events.out.tfevents.2-metrics"
"""TensorBoard reads the files of a folder in the order of their names, and follows only the last one while it grows."""
VERSION = "brain.Event:2"
UNUSUAL = re.compile(r"[^\w .,#=+\[\]-]", re.ASCII)
"""Characters of a name that are replaced in the name of a folder."""
LONGEST_NAME = 200
PNG_START, PNG_SIZE = b"\x89PNG\r\n\x1a\n", slice(16, 24)


class Written(NamedTuple):
    """The numbers of metric points and figures in the event files of a run."""

    points: int
    figures: int


class Item(NamedTuple):
    """A value for TensorBoard. Its tag names the chart, the text or the figure to which it belongs."""

    step: int
    time_ms: int
    value: "Summary.Value"


def refuse_unavailable() -> None:
    """Raise Refusal if TensorBoard is not installed."""
    if find_spec(PACKAGE) is None:
        raise Refusal("tensorboard is not installed: run `make setup-tensorboard` in the checkout")


def folder_name(run: Record) -> str:
    """Return the name of the folder for the event files of a run, which TensorBoard shows as the name of the run.

    This is the name of the journal. A search and its trials have their names in MLflow, such as `digits #7 lr=3e-3 width=16`, and the last
    part of the journal's name, because two searches can have the same name.
    """
    start = run.first
    if SEARCH_TAG not in start.get("tags", {}):
        return run.name
    return f"{UNUSUAL.sub('_', start.get('name', ''))[:LONGEST_NAME]} {short_name(run.name)}"


def write(folder: Path, run: Record, top: Path) -> Written:
    """Write the event files of the run to `folder`. `top` is the checkout, which may have the figures of the run.

    Equal journals give equal files. If an existing file is a prefix of the new one, because the run was continued, the rest is appended, so
    that a running TensorBoard shows it; otherwise the file is replaced. A file of figures stays if the run's figures no longer exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = newest(figures_of(run, top))
    if figures:
        update(folder / FIGURES, encoded(figures))
    points = newest(scalars_of(run))
    update(folder / METRICS, encoded(sorted([*texts_of(run), *points], key=lambda item: item.time_ms)))
    return Written(len(points), len(figures))


def update(path: Path, content: bytes) -> None:
    """Write `content` to the file. If the file is a prefix of `content`, only append the rest."""
    old = path.read_bytes() if path.is_file() else b""
    if old and content.startswith(old):
        with path.open("ab") as file:
            file.write(content[len(old) :])
    else:
        with files.replacing(path) as draft:
            draft.write_bytes(content)


def encoded(items: Iterable[Item]) -> bytes:
    """Return the content of an event file."""
    from tensorboard.compat.proto.event_pb2 import Event as FileEvent
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    writer.write(FileEvent(file_version=VERSION).SerializeToString())
    for item in items:
        record = FileEvent(wall_time=item.time_ms / 1000, step=item.step, summary=Summary(value=[item.value]))
        writer.write(record.SerializeToString(deterministic=True))
    return content.getvalue()


def newest(items: Iterable[Item]) -> list[Item]:
    """Return the items in order. Of items with equal tag and step, keep only the last: a repeated evaluation replaces its scores."""
    last = {(item.value.tag, item.step): item for item in items}
    return list(last.values())


def scalars_of(run: Record) -> Iterator[Item]:
    """Yield the metrics of the run and of the machine in the order of their times."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    for event in merge(run.events, run.system, key=lambda event: event.time_ms):
        if event.kind == "metrics":
            for name, number in event.fields["values"].items():
                yield Item(event.fields["step"], event.time_ms, Summary.Value(tag=name, simple_value=float(number)))


def texts_of(run: Record) -> Iterator[Item]:
    """Yield the parameters and the provenance of the run as tables, the parameters for the tab HPARAMS, and the result as a text."""
    shown: dict[str, str] = {}
    for event in run.events:
        texts = {"result": event.fields["text"]} if event.kind == "description" else {}
        if event.kind in ("start", "reopen"):
            params = event.fields["params"]
            texts = {
                "parameters": nested_table(params),
                f"provenance/{event.fields['stage']}": nested_table(event.fields.get("provenance", {})),
            }
            if params and "parameters" not in shown:
                yield hparams_item(params, run.name, event)
        for name, text in texts.items():
            if text and shown.get(name) != text:
                shown[name] = text
                yield text_item(name, text, event)


def hparams_item(params: Mapping[str, Any], run: str, event: Event) -> Item:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    known = {name: value if isinstance(value, bool | int | float) else formatted(value) for name, value in params.items()}
    value = hparams_pb(known, trial_id=run, start_time_secs=event.time_ms / 1000).value[0]
    data = value.metadata.plugin_data
    data.content = HParamsPluginData.FromString(data.content).SerializeToString(deterministic=True)  # else its order differs by process
    return Item(0, event.time_ms, value)


def nested_table(values: Mapping[str, Any]) -> str:
    """Return nested values as a Markdown table; "" if there are none."""
    rows = [(name, formatted(value).replace("|", r"\|")) for name, value in flatten(values).items()]
    return markdown(("", ""), rows) if rows else ""


def text_item(name: str, text: str, event: Event) -> Item:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    metadata = create_summary_metadata(display_name=name, description="")
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    return Item(0, event.time_ms, Summary.Value(tag=f"{name}/text_summary", metadata=metadata, tensor=tensor))


def figures_of(run: Record, top: Path) -> Iterator[Item]:
    """Yield the figures of the run that are still in its journal, or in the checkout `top` with the same content.

    The journal's own copies are removed after MLflow has the whole run.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary

    step = 0
    for event in run.events:
        if event.kind == "metrics":
            step = event.fields["step"]
        if event.kind == "artifact" and (content := figure(event.fields, run.folder, top)):
            width, height = (int.from_bytes(content[PNG_SIZE][start : start + 4], "big") for start in (0, 4))
            tag = Path(event.fields["folder"], Path(event.fields["file"]).stem).as_posix()
            image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
            yield Item(step, event.time_ms, Summary.Value(tag=tag, image=image))


def figure(fields: Mapping[str, Any], journal: Path, top: Path) -> bytes | None:
    """Return the content of the PNG file that the `fields` of an event `artifact` name; None if there is no PNG with this digest.

    The name of the folder of the journal's copy is the beginning of the file's SHA-256.
    """
    copy = Path(fields["file"])
    if copy.suffix != ".png":
        return None
    for path in (journal / copy, top / fields["folder"] / copy.name):
        if path.is_file() and files.digest(path).startswith(copy.parent.name):
            content = path.read_bytes()
            return content if content.startswith(PNG_START) else None
    return None
