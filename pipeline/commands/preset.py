"""`python -m pipeline preset NAME`: copy a preset to params.yaml without overwriting the user's uncommitted changes."""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal

FROM_PRESETS, FROM_TOP = "$schema=../params.schema.json", "$schema=params.schema.json"
RECORD = Path(".pipeline/written-params")
"""The SHA-256 of each params.yaml that was written by this program alone, one in a line."""


def run(name: str, assignments: Sequence[str] = ()) -> None:
    """Copy the preset `name` to params.yaml, with the values of `assignments`, each `KEY=VALUE`, in place of its own.

    Raises Refusal if there is no such preset, if an assignment is wrong, or if params.yaml has uncommitted changes, which would be lost. A
    params.yaml that equals a preset is always replaced.
    """
    target = Paths().params
    original = text = text_of(name)
    changes: list[str] = []
    if assignments:
        from pipeline.commands.set import assigned, differences  # late: the validation imports torch

        text = assigned(original, assignments)
        changes = differences(original, text)
    refuse_loss(target, text)
    write(target, text)
    print(f"preset: {target} is now {name}{', except:' if changes else ''}")
    for line in changes:
        print(f"preset: {line}")


def text_of(name: str) -> str:
    """Return the text of params.yaml that is the preset `name`. Raises Refusal if there is no such preset."""
    known = texts()
    if name not in known:
        raise Refusal(f"there is no preset {name!r}: the presets are {', '.join(known)}")
    return known[name]


def texts() -> dict[str, str]:
    """Return the text of each preset by its name. The path of the JSON schema is changed, because params.yaml is in another folder."""
    presets = sorted(Path("presets").glob("*.yaml"))
    return {path.stem: path.read_text(encoding="utf-8").replace(FROM_PRESETS, FROM_TOP) for path in presets}


def refuse_loss(target: Path, text: str) -> None:
    """Raise Refusal if changes would be lost when `text` replaces the contents of the file `target`.

    Nothing is lost if the file equals a preset or is committed. Without Git, as in a container, nothing is lost if `write` wrote the file.
    """
    if not is_edited(target) or target.read_bytes() == text.encode():
        return
    changes = uncommitted(target)
    if changes or (changes is None and not is_written_here(target)):
        remedy = f"commit it, or undo the changes with `git restore {target}`" if changes else "move the file away"
        raise Refusal(f"{target} has changes that are not committed and would be lost: {remedy}, and try again")


def write(target: Path, text: str) -> None:
    """Write `text` to the file `target`. Record the SHA-256 of `text`, unless the file before contained changes that were made by hand."""
    if not is_edited(target) or is_written_here(target):
        digest = hashlib.sha256(text.encode()).hexdigest()
        # record first: after a kill, a file without a record would count as edited; a record without a file is harmless
        files.write_text(RECORD, "".join(f"{line}\n" for line in dict.fromkeys((*recorded(), digest))))
    files.write_text(target, text)


def is_edited(target: Path) -> bool:
    """Return True if the file exists and equals no preset."""
    return target.exists() and target.read_bytes() not in [text.encode() for text in texts().values()]


def is_written_here(target: Path) -> bool:
    return files.digest(target) in recorded()


def recorded() -> list[str]:
    """Return the SHA-256 of each file that `write` has recorded."""
    return RECORD.read_text(encoding="utf-8").split() if RECORD.exists() else []


def uncommitted(path: Path) -> str | None:
    """Return what git reports of uncommitted changes of the file: "" for none. Return None if git fails, as it does without a repository."""
    try:
        answer = subprocess.run(["git", "status", "--porcelain", "--", str(path)], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
