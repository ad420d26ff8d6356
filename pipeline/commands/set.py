"""`python -m pipeline set KEY=VALUE ...`: change parameters in params.yaml after validating them; comments and order stay.

`python -m pipeline set --upgrade [FILE ...]` adds the keys that files of earlier versions lack.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.commands import preset
from pipeline.commands.check import refuse_misfits
from pipeline.io import files
from pipeline.params.commented_yaml import on_one_line
from pipeline.params.editing import changes, edited, problems, upgraded_text
from pipeline.params.load import dotted
from pipeline.params.stages import STAGE_PARAMS
from pipeline.params.yaml_document import Document, Location, read_text
from pipeline.paths import Paths
from pipeline.refusal import Refusal


def run(assignments: Sequence[str], upgrade: Sequence[str] | None = None) -> None:
    """Write the values into params.yaml, and print what changed.

    With `upgrade`, instead add the keys that were added since the files `upgrade` (params.yaml if it is empty) were written, with the values
    that keep the result. Raises Refusal like `assigned` and `upgraded_text`, or for both or none of the two. Then nothing is written.
    """
    if bool(assignments) == (upgrade is not None):
        raise Refusal("set: write either values, such as train.epochs=3, or --upgrade")
    target = Paths().params
    if upgrade is not None:
        add_keys([Path(name) for name in upgrade] or [target])
        return
    before = read_text(target)
    after = assigned(before, assignments)
    if after == before:
        print(f"set: {target} has these values already")
        return
    preset.write(target, after)
    for line in differences(before, after):
        print(f"set: {line}")


def add_keys(paths: Sequence[Path]) -> None:
    """Upgrade all files, or none if one cannot be upgraded, and print the keys that were added."""
    results = {path: upgraded(path) for path in paths}
    for path, (text, added) in results.items():
        if not added:
            print(f"set: {path} has all keys already")
            continue
        preset.write(path, text) if path == Paths().params else files.write_text(path, text)
        for location, value in added.items():
            print(f"set: {path}: added {dotted(location)}: {on_one_line(value)}")


def upgraded(path: Path) -> tuple[str, dict[Location, Any]]:
    """Return the text of the parameter file or search file `path` with the keys that it lacks, and the added values by location."""
    text = read_text(path)
    if "space" not in Document.of(text, path).data:
        return upgraded_text(text, path, STAGE_PARAMS.values(), problems)
    from pipeline.search.settings import SearchSettings, checked  # late: most files are parameter files

    return upgraded_text(text, path, [SearchSettings], lambda data: checked(data, SearchSettings)[1])


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
