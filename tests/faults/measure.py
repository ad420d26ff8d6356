"""Run the whole corpus in one process: `python -m tests.faults.measure` prints the number of inputs, the slowest and the most memory-consuming ones."""

import os
import sys
import tempfile
from pathlib import Path

from tests.faults import hostile
from tests.faults.corpus import CASES

SHOWN = 5
MEGABYTE = 2**20


def main() -> int:
    os.environ |= {"PIPELINE_TRACKING": "false", "PIPELINE_THREADS": "2", "PIPELINE_DEVICE": "cpu"}
    found = []
    with tempfile.TemporaryDirectory() as top:
        template = hostile.make(Path(top) / "template")
        for number, (name, case) in enumerate(CASES.items()):
            answers = hostile.answers(case, hostile.copied(template, Path(top) / str(number)))
            found += [(name, verb, answer) for verb, answer in zip(case.verbs, answers, strict=True)]
    wrong = [name for name, _, answer in found if answer.code != 2 and not CASES[name].harmless]
    print(
        f"{len(CASES)} inputs, {len(found)} answers, {sum(answer.code == 2 for *_, answer in found)} of them refusals; wrong: {wrong or 'none'}"
    )
    for title, key, unit in (
        ("slowest", lambda answer: answer.processor_s, "s"),
        ("largest", lambda answer: answer.grown_bytes / MEGABYTE, "MB"),
    ):
        for name, verb, answer in sorted(found, key=lambda entry: -key(entry[2]))[:SHOWN]:
            print(f"{title}: {key(answer):.2f} {unit}: {verb}: {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
