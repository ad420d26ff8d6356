"""`make schema`: write the reference of the parameters, params.schema.json for editors and docs/parameters.md for users."""

import json
from pathlib import Path

from pipeline.io import files
from pipeline.params import reference

SCHEMA, TABLE = Path("params.schema.json"), Path("docs/parameters.md")
HEADER = """\
# Parameters

Everything that decides a result is in `params.yaml`; where and how a run happens is in the environment ([training.md](training.md)).
This page is written by `make schema`.

"""


def run() -> None:
    for path, text in generated().items():
        files.write_text(path, text)


def generated() -> dict[Path, str]:
    """Return the contents of the two files that `make schema` writes, by the path of each file."""
    schema = json.dumps(reference.schema(), indent=2, ensure_ascii=False) + "\n"
    return {SCHEMA: schema, TABLE: HEADER + reference.table()}
