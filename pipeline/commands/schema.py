"""Write what describes the parameters: params.schema.json for editors, and the table in README.md for people."""

import json
from pathlib import Path

from pipeline.io import files
from pipeline.params import reference
from pipeline.refusal import Refusal

SCHEMA, README = Path("params.schema.json"), Path("README.md")
BEGIN, END = "<!-- parameters: written by `make schema` -->", "<!-- end of parameters -->"


def run() -> None:
    for path, text in generated().items():
        files.write_text(path, text)


def generated() -> dict[Path, str]:
    """The files as they should be."""
    before, begin, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Refusal(f"{README}: needs the lines {BEGIN} and {END} around the table")
    return {
        SCHEMA: json.dumps(reference.schema(), indent=2, ensure_ascii=False) + "\n",
        README: f"{before}{BEGIN}\n\n{reference.table()}\n{END}{after}",
    }
