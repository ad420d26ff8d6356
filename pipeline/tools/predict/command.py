"""`python -m pipeline predict`: predict images or texts, in files, tables, folders and archives, as a table or as JSON lines.

How a prediction is written is in `tasks/KIND/predict.py`.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal, counted
from pipeline.core.untrusted import shown, storable
from pipeline.prepare.progress import progress
from pipeline.prepare.reading import streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipeline.tools.predict.protocols import Chunk, Prediction, Predictor

TABLE_ROWS = 64
"""Rows that are printed at once. A part has the widths of the parts before it, or wider columns, so that the parts form one table."""
WIDEST = 40
"""The width of the widest column, in characters. A longer cell is printed as it is."""
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

    Problems go to stderr. `inputs` are paths, or `-` for standard input. `batch_size` is the number of samples per forward
    pass, `top_k` the number of most likely classes to name, and `beam` the width of the beam search of a model that writes texts. `column` is
    the column of the inputs in tables, and `encoding` that of files of text, by default UTF-8. Returns 1 if an input could not be read, else 0.
    """
    target = None if output is None else Path(output)
    if target:
        refuse_unusable(target, inputs)
    elif keep:
        raise Refusal("--keep: is for a file: add --output FILE")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # a large or damaged image is reported with its name
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read at import: a pool of its own would keep freed memory beside torch's
    from pipeline.inference.machine import Machine, set_determinism
    from pipeline.tools.predict.model import load_ensemble  # late: torch takes seconds to import, and `--help` does not need it

    device = str(Machine.set_up(Environment.read()).device)
    number = int(column) if column and column.isascii() and column.isdigit() else column
    loaded = load_ensemble([model, *others], device=device, column=number, encoding=encoding or streams.UTF8)
    set_determinism(loaded.manifest.inference.train.deterministic)
    given, predictor, problems = replace(loaded.raw_inputs, keep=keep, on_unused=print_unused), loaded.predictor(top_k), Problems()
    scored = loaded.scored(given.read(inputs), batch_size=batch_size, beam=beam, on_problem=problems.add)
    if target:
        count = write_file(target, scored, predictor)
        print(f"predict: {shown(target)} ({counted(count, 'prediction', ',')})")
    else:
        (print_table if sys.stdout.isatty() else print_lines)(
            prediction for chunk, outputs in scored for prediction in predictor.predictions(chunk.names, outputs)
        )
    if note := loaded.reader.note():
        print(f"note: {shown(note, LONGEST_NOTE)}", file=sys.stderr)
    return 1 if problems.count else 0


class Problems:
    """Prints the problems of inputs to stderr, and counts them."""

    count = 0

    def add(self, message: str) -> None:
        self.count += 1
        print(f"error: {message}", file=sys.stderr, flush=True)


def print_unused(name: str) -> None:
    print(f"note: {shown(name)} is no input of this model, and was left out", file=sys.stderr)


def print_lines(predictions: "Iterable[Prediction]") -> None:
    for prediction in predictions:
        print(json.dumps(prediction.record()), flush=True)  # ASCII only: names may contain control characters and invalid UTF-8


def print_table(predictions: "Iterable[Prediction]") -> None:
    rows, widths = (prediction.cells() for prediction in predictions), dict[str, int]()
    while part := list(islice(rows, TABLE_ROWS)):
        titles = [] if widths else [{title: title for title in part[0]}]
        for cells in [*titles, *part]:
            widths |= {title: min(WIDEST, max(widths.get(title, 0), len(cell))) for title, cell in cells.items()}
        for cells in [*titles, *part]:
            print("  ".join(cell.ljust(widths[title]) for title, cell in cells.items()).rstrip(), flush=True)


def refuse_unusable(path: Path, inputs: Sequence[str]) -> None:
    """Raise Refusal if the name of `path` does not say the format, or if writing it would replace one of the inputs."""
    if path.suffix not in SUFFIXES or path.is_dir():
        raise Refusal(f"--output: {shown(path)}: should be a file whose name ends in {' or '.join(SUFFIXES)}")
    if path.exists() and any(path.resolve().is_relative_to(Path(name).resolve()) for name in inputs):
        raise Refusal(f"--output: {shown(path)}: is one of the inputs, or in a folder of them, and would be replaced: write another path")


def write_file(path: Path, scored: "Iterable[tuple[Chunk, NDArray[Any]]]", predictor: "Predictor") -> int:
    """Write a row for each input, as a whole file or not at all, and return their number. Raises Refusal if there are none.

    The columns are the name of the input, those of a table that are kept, and those of the prediction; one that is called like a kept one becomes
    `predicted NAME`.
    """
    from pyarrow import csv, parquet

    total, writer = 0, None
    with files.replacing(path) as draft, draft.open("wb") as file, progress("predict", 0, "inputs") as advance:
        try:
            for table in tables_of(advance.each(scored, lambda each: len(each[0].names)), predictor):
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
        made = {"input": [storable(name) for name in chunk.names], **predictor.columns(outputs)}
        columns = {f"predicted {title}" if title in chunk.kept else title: column for title, column in made.items()}
        if taken := columns.keys() & chunk.kept.keys():
            raise Refusal(f"--keep: {shown(min(taken), 60)} is the title of another column of the output: rename it in the table")
        try:
            held.append(pa.table({**columns, **chunk.kept}, schema=schema))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            problem = f"--keep: {shown(chunk.names[0])}: its columns are of another type than those before"
            raise Refusal(f"{problem}: predict these files apart") from None
        schema = held[0].schema
        if sum(map(len, held)) >= FILE_ROWS:
            yield pa.concat_tables(held)
            held.clear()
    if held:
        yield pa.concat_tables(held)
