"""`python -m pipeline preset NAME`: copy a preset to params.yaml without overwriting the user's uncommitted changes."""

import subprocess
from pathlib import Path

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal

FROM_PRESETS, FROM_TOP = "$schema=../params.schema.json", "$schema=params.schema.json"


def run(name: str) -> None:
    """Copy the preset `name` to params.yaml.

    Raises Refusal if there is no such preset, or if params.yaml has uncommitted changes, which would be lost. A params.yaml that equals a
    preset is always replaced.
    """
    target = Paths().params
    known = {path.stem: in_place(path) for path in sorted(Path("presets").glob("*.yaml"))}
    if name not in known:
        raise Refusal(f"there is no preset {name!r}: the presets are {', '.join(known)}")
    if target.exists() and target.read_bytes() not in [text.encode() for text in known.values()] and not committed(target):
        raise Refusal(
            f"{target} has changes that are not committed and would be lost: commit it, or undo the changes with `git restore {target}`, and try again"
        )
    files.write_text(target, known[name])
    print(f"preset: {target} is now {name}")


def in_place(preset: Path) -> str:
    """Return the text of the file `preset`, with the path of the JSON schema changed as params.yaml needs it.

    This path is relative to the folder of the file that contains it, and params.yaml is not in the folder of the presets.
    """
    return preset.read_text(encoding="utf-8").replace(FROM_PRESETS, FROM_TOP)


def committed(path: Path) -> bool:
    """Return True if git reports no uncommitted changes of the file; False if it reports some, or if git fails."""
    try:
        answer = subprocess.run(["git", "status", "--porcelain", "--", str(path)], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.stdout.strip() == ""
