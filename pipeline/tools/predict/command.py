"""`python -m pipeline predict`: predict images or texts, in files, tables, folders and archives, as a table or as JSON lines."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.refusal import Refusal, counted
from pipeline.core.untrusted import shown, storable
from pipeline.prepare.progress import Advance, progress
from pipeline.prepare.reading import streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipeline.tools.predict.model import LoadedModel
    from pipeline.tools.predict.protocols import Chunk, Prediction, Predictor

TABLE_ROWS = 64
"""Rows that are printed at once. A part has the widths of the parts before it, or wider columns, so that the parts form one table."""
WIDEST = 40
"""The width of the widest column, in characters. Columns of longer texts share the rest of the line."""
FILE_ROWS = 65_536
"""The rows of a file that are in memory at once, and those of a row group of Parquet."""
LONGEST_NOTE = 1000
SUFFIXES = (".csv", ".parquet")


def run(  # noqa: PLR0913, PLR0917  # the options of the command line
    model: str,
    inputs: list[str],
    batch_size: int | None,
    top_k: int,
    beam: int,
    column: str | None,
    encoding: str | None,
    output: str | None,
    keep: Sequence[str],
    others: Sequence[str],
) -> int:
    """Print one prediction for each sample of `inputs` to stdout: a table if stdout is a terminal, else one line of JSON per sample.

    With `output`, they are written to this CSV or Parquet file instead, beside the columns `keep` of tables. The probabilities of `others`, the names of further models, are averaged
    with those of `model`.

    Progress and problems go to stderr. `inputs` are paths, or `-` for standard input. `batch_size` is the number of samples per forward
    pass, `top_k` the number of most likely classes to name, and `beam` the width of the beam search of a model that writes texts. `column` is
    the column of the inputs in tables, and `encoding` that of files of text, by default UTF-8. Returns 1 if an input could not be read, else 0.
    """
    target = None if output is None else Path(output)
    refuse_invalid({"--batch-size": 1 if batch_size is None else batch_size, "--top-k": top_k}, encoding)
    if target:
        refuse_unusable(target, inputs)
    elif keep:
        raise Refusal("--keep: is for a file: add --output FILE")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # a large or damaged image is reported with its name
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read at import: a pool of its own would keep freed memory beside torch's
    from pipeline.tools.predict import raw_inputs
    from pipeline.tools.predict.protocols import RowReader  # late: torch takes seconds to import, and `--help` does not need it

    loaded = load([model, *others], beam, column, encoding)
    problems = Problems()
    with raw_inputs.opened(inputs, loaded.reader, loaded.column, workers=loaded.workers, keep=keep) as given:
        is_no_input = "no table" if isinstance(loaded.reader, RowReader) else "a table, and no input by itself"
        for name in given.unused:
            print(f"note: {shown(name)} is {is_no_input}", file=sys.stderr)
        # A bar on stderr would be drawn over a table on the same terminal. And while a bar is shown, rich redirects `sys.stdout` to it.
        is_table, stdout = sys.stdout.isatty() and not target, sys.stdout
        shows_progress = not is_table and given.num_units > 1
        with progress("predict", given.num_units, "files") if shows_progress else nullcontext(Advance(lambda _: None)) as advance:
            readings = given.read(advance)
            predictor = loaded.predictor(top_k)
            if target:
                count = write_file(target, loaded.scored(readings, batch_size=batch_size, on_problem=problems.add), predictor)
            else:
                predictions = loaded.predictions(readings, predictor, batch_size=batch_size, on_problem=problems.add)
                if is_table:
                    print_table(predictions)
                else:
                    print_lines(predictions, lambda line: print(line, file=stdout, flush=True))
    if target:
        print(f"predict: {shown(target)} ({counted(count, 'prediction', ',')})")
    if note := loaded.reader.note():
        print(f"note: {shown(note, LONGEST_NOTE)}", file=sys.stderr)
    return 1 if problems.count else 0


class Problems:
    """Prints the problems of inputs to stderr, and counts them."""

    count = 0

    def add(self, message: str) -> None:
        self.count += 1
        print(f"error: {message}", file=sys.stderr, flush=True)


def load(models: Sequence[str], beam: int, column: str | None, encoding: str | None) -> "LoadedModel":
    """Return the models as one that predicts on the device of the environment, with the options of the command line."""
    from pipeline.core.environment import Environment
    from pipeline.inference.machine import Machine, set_determinism
    from pipeline.tools.predict.model import load_ensemble
    from pipeline.tools.predict.protocols import parsed

    machine = Machine.set_up(Environment.read())
    loaded = load_ensemble(models, device=str(machine.device), column=None if column is None else parsed(column))
    loaded.use_beam(beam)
    if encoding is not None:
        loaded.use_encoding(encoding)
    set_determinism(loaded.manifest.inference.train.deterministic)
    return loaded


def refuse_invalid(counts: Mapping[str, int], encoding: str | None) -> None:
    """Raise Refusal if one of `counts`, by option, is below 1, or if there is no such encoding."""
    for option, number in counts.items():
        if number < 1:
            raise Refusal(f"{option}: is {number}: write 1 or more")
    if encoding is not None:
        try:
            streams.known_encoding(encoding)
        except ValueError as error:
            raise Refusal(f"--encoding: {shown(encoding, 60)} {error}") from None


def print_lines(predictions: "Iterable[Prediction]", write: Callable[[str], None]) -> None:
    for prediction in predictions:
        write(json.dumps(prediction.record()))  # ASCII only: names may contain control characters and invalid UTF-8


def print_table(predictions: "Iterable[Prediction]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, rows, widths = Console(), (prediction.cells() for prediction in predictions), dict[str, int]()
    while part := list(islice(rows, TABLE_ROWS)):
        is_first = not widths
        widths = {title: max(widths.get(title, len(title)), *(len(cells[title]) for cells in part)) for title in part[0]}
        table = Table(box=SIMPLE_HEAD if is_first else None, show_header=is_first, expand=True)
        for title, width in widths.items():
            shares = title == "input" or width > WIDEST
            table.add_column(title, width=None if shares else width, ratio=1 if shares else None, overflow="fold")
        for cells in part:
            table.add_row(*map(Text, cells.values()))  # `Text`: square brackets in a name are no markup
        console.print(table)


def refuse_unusable(path: Path, inputs: Sequence[str]) -> None:
    """Raise Refusal if the name of `path` does not say the format, or if writing it would replace one of the inputs."""
    if path.suffix not in SUFFIXES or path.is_dir():
        raise Refusal(f"--output: {shown(path)}: should be a file whose name ends in {' or '.join(SUFFIXES)}")
    if path.exists() and any(Path(name).exists() and path.samefile(name) for name in inputs):
        raise Refusal(f"--output: {shown(path)}: is one of the inputs, which it would replace: write another path")
    if path.exists() and any(Path(name).is_dir() and path.resolve().is_relative_to(Path(name).resolve()) for name in inputs):
        raise Refusal(f"--output: {shown(path)}: is in a folder that is read, and would be replaced: write another path")


def write_file(path: Path, scored: "Iterable[tuple[Chunk, NDArray[Any]]]", predictor: "Predictor") -> int:
    """Write a row for each input, as a whole file or not at all, and return their number. Raises Refusal if there are none.

    The columns are the name of the input, those of a table that are kept, and those of the prediction; one that is called like a kept one becomes
    `predicted NAME`.
    """
    from pyarrow import csv, parquet

    total, writer = 0, None
    with files.replacing(path) as draft, draft.open("wb") as file:
        try:
            for table in tables_of(scored, predictor):
                writer = writer or (csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter)(file, table.schema)
                writer.write_table(table)
                total += len(table)
        finally:
            if writer:
                writer.close()
        if not total:
            raise Refusal(f"--output: {shown(path)}: is not written, because there is no prediction")
    return total


def tables_of(scored: "Iterable[tuple[Chunk, NDArray[Any]]]", predictor: "Predictor") -> "Iterator[Any]":
    """Yield Arrow tables of at least FILE_ROWS rows, and the last ones, of inputs and their predictions."""
    import pyarrow as pa  # late: it takes 0.2 s

    held, schema = list[Any](), None
    for chunk, outputs in scored:
        predicted = predictor.columns(outputs)
        columns = {f"predicted {name}" if name in chunk.kept else name: column for name, column in predicted.items()}
        if taken := {"input", *columns} & {*chunk.kept}:
            raise Refusal(f"--keep: {shown(sorted(taken)[0], 60)} is the title of another column of the output: rename it in the table")
        try:
            held.append(pa.table({"input": [storable(name) for name in chunk.names], **chunk.kept, **columns}, schema=schema))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            problem = f"--keep: {shown(chunk.names[0])}: its columns are of another type than those before"
            raise Refusal(f"{problem}: predict these files apart") from None
        schema = held[0].schema
        if sum(map(len, held)) >= FILE_ROWS:
            yield pa.concat_tables(held)
            held.clear()
    if held:
        yield pa.concat_tables(held)
