"""Where the job runs: in the checkout that is mounted, or in a copy of it, or of the image's own code, that can be written."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal

PARTS = (".dvc/config", ".dvcignore", "data/README.md", "dvc.yaml", "params.yaml", "params.schema.json", "requirements.lock")
FOLDERS = ("pipeline", "presets")
WITHOUT_GIT = "[core]\n    analytics = false\n    no_scm = true\n"
RECORD = ".pipeline/copied.json"


@dataclass(frozen=True)
class Place:
    """A checkout that can be written; `copy_of` names where its files were taken from."""

    top: Path
    copy_of: Path | None = None


def find(here: Path, image: Path, homes: list[Path]) -> Place:
    """Raises Refusal where nothing can be written, or a checkout's lock is not the one that the image was built from."""
    source = here if is_checkout(here) else image
    if source != image:
        refuse_other_lock(source, image)
        if os.access(source, os.W_OK):
            return Place(source)
    home = writable(homes)
    for kept in copy(source, home):
        print(f"container: {home / kept} was changed by hand: it stays as it is", flush=True)
    return Place(home, copy_of=source)


def is_checkout(folder: Path) -> bool:
    return (folder / "dvc.yaml").is_file() and (folder / "pipeline/__main__.py").is_file()


def refuse_other_lock(checkout: Path, image: Path) -> None:
    lock = Paths(checkout).lock
    if not lock.is_file() or lock.read_bytes() != Paths(image).lock.read_bytes():
        raise Refusal(
            f"{lock} is not the lock that this image was built from, and its versions are not the installed ones: run `make image` there"
        )


def writable(homes: list[Path]) -> Path:
    for home in homes:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK):
            return home
    named = " nor ".join(map(str, homes))
    raise Refusal(f"neither {named} can be written: add `--tmpfs /tmp`, or mount a volume: `-v NAME:{homes[0]}`")


def copy(source: Path, home: Path) -> list[Path]:
    """Put the code in place, without Git. A file that was put there or changed by hand stays; those are returned."""
    before = json.loads((home / RECORD).read_bytes()) if (home / RECORD).is_file() else {}
    digests = {str(path): files.digest(source / path) for path in code(source)}
    there = {path: files.digest(home / path) for path in digests if (home / path).exists()}
    kept = {path for path, digest in there.items() if digest not in (digests[path], before.get(path))}
    for path in digests.keys() - kept:
        if there.get(path) != digests[path]:
            with files.replacing(home / path) as draft:
                shutil.copyfile(source / path, draft)
    files.write_text(home / ".dvc/config.local", WITHOUT_GIT)
    files.write_json(home / RECORD, digests | {path: before.get(path, "") for path in kept})
    return sorted(map(Path, kept))


def code(source: Path) -> list[Path]:
    """What a run reads of a checkout, relative to it; bytecode belongs to the place where it was compiled."""
    found = [path for folder in FOLDERS for path in (source / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path.relative_to(source) for path in [*(source / part for part in PARTS), *found])
