"""A process that runs verbs in forks, each of which says what it has imported: `python -m tests.importing`, with `torch` once that is imported."""

import json
import os
import sys
from typing import Any

import pipeline.__main__


def answer(folder: str, words: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """Run a verb, whose output goes to stderr. Return its exit code and the names of all modules that are imported afterwards."""
    os.chdir(folder)
    os.environ |= variables
    try:
        code = pipeline.__main__.main(words)
    except SystemExit as end:
        code = end.code
    return {"code": code or 0, "modules": sorted(sys.modules)}


def main() -> None:
    if sys.argv[1:]:
        import torch  # noqa: F401
    output = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            with os.fdopen(output, "w") as pipe:
                print(json.dumps(answer(**json.loads(line))), file=pipe, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, line


if __name__ == "__main__":
    main()
