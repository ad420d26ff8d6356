"""Where the job runs: in the checkout that is mounted, or in a copy of it, or of the image's own code, that can be written."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal

PARTS = (".dvc/config", ".dvcignore", "data/README.md", "dvc.yaml", "params.yaml", "params.schema.json", "requirements.lock")
FOLDERS = {"pipeline": "*.py", "presets": "*.yaml"}
HOME = Path("/home/pipeline")
WITHOUT_GIT = "[core]\n    no_scm = true\n"
RECORD, LOCK = ".pipeline/copied.json", ".pipeline/copied.lock"


@dataclass(frozen=True)
class Place:
    """A checkout that can be written. `copy_of` names where its files were taken from, `kept` those that a user changed."""

    top: Path
    copy_of: Path | None = None
    kept: tuple[str, ...] = ()


def find(here: Path, image: Path, homes: list[Path]) -> Place:
    """Raises Refusal where nothing can be written, or a checkout's lock is not the one that the image was built from."""
    source = here if is_checkout(here) else image
    if source != image:
        refuse_other_lock(source, image)
        if os.access(source, os.W_OK):
            return Place(source)
    home = writable(homes)
    return Place(home, copy_of=source, kept=copy(source, home))


def is_checkout(folder: Path) -> bool:
    return (folder / "dvc.yaml").is_file() and (folder / "pipeline/__main__.py").is_file()


def refuse_other_lock(checkout: Path, image: Path) -> None:
    lock = Paths(checkout).lock
    if not lock.is_file() or lock.read_bytes() != Paths(image).lock.read_bytes():
        raise Refusal(
            f"{lock} is not the lock that this image was built from, and its versions are not the installed ones: run `make image` there"
        )


def writable(homes: list[Path]) -> Path:
    """The first that can be written; one that was mounted is meant, and is never passed over."""
    for home in homes:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if not os.access(home, os.W_OK | os.X_OK):
            if os.path.ismount(home):
                remedy = "add `--user $(id -u):$(id -g)`, or change its owner"
                raise Refusal(f"{home} is mounted and uid {os.getuid()} cannot write there: {remedy}")
        elif (home / ".git").exists():
            raise Refusal(f"{home} is a checkout of its own: mount it at its own path and start in it (-v {home}:{home} -w {home})")
        else:
            return home
    named = " and ".join(map(str, homes))
    raise Refusal(f"there is no place to write ({named} cannot be): add `--tmpfs /tmp`, or mount a volume: `-v NAME:{homes[0]}`")


def copy(source: Path, home: Path) -> tuple[str, ...]:
    """Put the code in place, without Git, and take away what an earlier copy brought and the source has no more. What a user changed stays; it is returned."""
    with files.locked(home / LOCK, wait=True):
        record = home / RECORD
        known: dict[str, list[str]] = json.loads(record.read_bytes()) if record.is_file() else {}
        wanted = {str(path): files.digest(source / path) for path in code(source)}
        there = {path: files.digest(home / path) for path in {*known, *wanted} if (home / path).is_file()}
        kept = sorted(path for path, digest in there.items() if digest not in [*known.get(path, []), wanted.get(path)])
        # whatever of it a kill leaves undone is recognised as ours
        files.write_json(record, known | {path: [*known.get(path, []), digest] for path, digest in wanted.items()})
        replace({path: digest for path, digest in wanted.items() if path not in kept and there.get(path) != digest}, source, home)
        for path in there.keys() - wanted.keys() - set(kept):
            (home / path).unlink()
        if not (home / ".dvc/config.local").exists():
            files.write_text(home / ".dvc/config.local", WITHOUT_GIT)
        files.write_json(record, {path: known.get(path, []) if path in kept else [digest] for path, digest in wanted.items()})
    return tuple(kept)


def replace(digests: Mapping[str, str], source: Path, home: Path) -> None:
    for path in digests:
        with files.replacing(home / path) as draft:
            shutil.copyfile(source / path, draft)


def code(source: Path) -> list[Path]:
    """What a run reads of a checkout, relative to it; bytecode belongs to the place where it was compiled."""
    found = [path for folder, pattern in FOLDERS.items() for path in (source / folder).rglob(pattern)]
    return sorted(path.relative_to(source) for path in [*(source / part for part in PARTS), *found])
