"""`python -m pipeline preset NAME`: copy a preset to params.yaml without overwriting the user's uncommitted changes."""

import subprocess
from pathlib import Path

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal

FROM_PRESETS, FROM_TOP = "$schema=../params.schema.json", "$schema=params.schema.json"


def run(name: str) -> None:
    """Copy the preset. Raises Refusal if no preset has this name, or if params.yaml is neither committed nor equal to a preset."""
    target = Paths().params
    known = {path.stem: in_place(path) for path in sorted(Path("presets").glob("*.yaml"))}
    if name not in known:
        raise Refusal(f"there is no preset {name!r}: the presets are {', '.join(known)}")
    if target.exists() and target.read_bytes() not in [text.encode() for text in known.values()] and not committed(target):
        raise Refusal(
            f"{target} is neither committed nor equal to a preset: commit it, or undo its changes with `git restore {target}`, and try again"
        )
    files.write_text(target, known[name])
    print(f"preset: {target} is now {name}")


def in_place(preset: Path) -> str:
    """Return the text of a preset as written to params.yaml: the path of the schema is changed to be relative to the top of the checkout."""
    return preset.read_text(encoding="utf-8").replace(FROM_PRESETS, FROM_TOP)


def committed(path: Path) -> bool:
    """Return True if the file has no uncommitted changes; False if it has, or if git fails."""
    try:
        answer = subprocess.run(["git", "status", "--porcelain", "--", str(path)], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.stdout.strip() == ""
