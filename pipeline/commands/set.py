"""`python -m pipeline set KEY=VALUE ...`: change parameters in params.yaml after validating them; comments and order stay."""

from collections.abc import Sequence

from pipeline.commands import preset
from pipeline.commands.check import refuse_misfits
from pipeline.params.editing import changes, edited
from pipeline.params.yaml_document import Document, read_text
from pipeline.paths import Paths


def run(assignments: Sequence[str]) -> None:
    """Write the values into params.yaml, and print what changed.

    Raises Refusal like `assigned`, and then writes nothing.
    """
    target = Paths().params
    before = read_text(target)
    after = assigned(before, assignments)
    if after == before:
        print(f"set: {target} has these values already")
        return
    preset.write(target, after)
    for line in differences(before, after):
        print(f"set: {line}")


def assigned(text: str, assignments: Sequence[str]) -> str:
    """Return `text`, the text of params.yaml, after the assignments.

    Raises Refusal if an assignment is wrong, or if the parameters would be invalid or would not fit each other. What only the data or the
    machine can tell is left to the command `check`.
    """
    after = edited(text, assignments)
    refuse_misfits(Document.of(after, Paths().params))
    return after


def differences(before: str, after: str) -> list[str]:
    """Return one line for each value that differs between two texts of params.yaml."""
    old, new = (Document.of(text, Paths().params).data for text in (before, after))
    return changes(old, new)
