"""Find the folder in which the job runs: the mounted checkout, or a writable copy of it or of the image's code."""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime import checkout_lock

PARTS = (".dvc/config", ".dvcignore", "data/README.md", "dvc.yaml", "params.yaml", "params.schema.json", "requirements.lock")
FOLDERS = {"pipeline": "*.py", "presets": "*.yaml"}
HOME = Path("/home/pipeline")
WITHOUT_GIT = "[core]\n    no_scm = true\n"
RECORD, LOCK = ".pipeline/copied.json", ".pipeline/copied.lock"


@dataclass(frozen=True)
class Place:
    """A writable checkout at `top`. `copy_of` is the folder to copy its files from; None if it is used in place."""

    top: Path
    copy_of: Path | None = None


def find(here: Path, image: Path, homes: list[Path], *, lock: str, mounted: Iterable[Path] = ()) -> Place:
    """Return where a job that was started in `here` runs: in `here`, or in the first writable one of `homes`.

    Raises Refusal where nothing is writable, where the digest of the lock file is not `lock` (that of the installed packages), and where
    one of the `mounted` folders is a checkout that the job would ignore.
    """
    source = here if is_checkout(here) else image
    if source == image:
        refuse_checkout_elsewhere({*mounted} - {image, *homes})
    refuse_other_lock(source, lock)
    if source != image and os.access(source, os.W_OK):
        return Place(source)
    return Place(writable(homes), copy_of=source)


def is_checkout(folder: Path) -> bool:
    return all(os.path.isfile(folder / part) for part in ("dvc.yaml", "pipeline/__main__.py"))  # noqa: PTH113  # False if access is denied


def refuse_checkout_elsewhere(mounted: set[Path]) -> None:
    for folder in filter(is_checkout, sorted(mounted)):
        raise Refusal(
            f"{folder} is a checkout, but the job would run the image's code: add `-w {folder}` to run there "
            "(`-v $PWD:$PWD -w $PWD` keeps paths valid outside), or mount only its data"
        )


def refuse_other_lock(source: Path, lock: str) -> None:
    path = Paths(source).lock
    if not path.is_file() or files.digest(path) != lock:
        raise Refusal(
            f"{path} is not the lock that this image was built from, and its versions are not the installed ones: run `make image` there"
        )


def writable(homes: list[Path]) -> Path:
    """Return the first writable folder. Raises Refusal if there is none, or if a mounted one is not writable: it is never skipped."""
    for home in homes:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if not os.access(home, os.W_OK | os.X_OK):
            if os.path.ismount(home):
                owner = f"{home.stat().st_uid}:{home.stat().st_gid}"
                remedy = f"add `--user {owner}`, or change its owner"
                raise Refusal(f"{home} is mounted and belongs to {owner}; uid {os.getuid()} cannot write there: {remedy}")
        elif (home / ".git").exists():
            raise Refusal(f"{home} is a checkout of its own: mount it at its own path and start in it (-v {home}:{home} -w {home})")
        else:
            return home
    named = " and ".join(map(str, homes))
    raise Refusal(f"there is no place to write ({named} cannot be): add `--tmpfs /tmp`, or mount a volume: `-v NAME:{homes[0]}`")


def copy(source: Path, home: Path) -> tuple[str, ...]:
    """Copy the code to `home`, without Git, and delete files of an earlier copy that the source no longer has.

    Files that the user changed are kept; their paths are returned.
    """
    with files.locked(home / LOCK, wait=True):
        record = home / RECORD
        known: dict[str, list[str]] = json.loads(record.read_bytes()) if record.is_file() else {}
        wanted = digests(source)
        there = {path: files.digest(home / path) for path in {*known, *wanted} if (home / path).is_file()}
        kept = sorted(path for path, digest in there.items() if digest not in [*known.get(path, []), wanted.get(path)])
        changed = {path: digest for path, digest in wanted.items() if path not in kept and there.get(path) != digest}
        gone = there.keys() - wanted.keys() - set(kept)
        with checkout_lock.held(home) if changed or gone else nullcontext():  # another container may be running this code
            # record the digests first: after a kill, a partial copy is then recognised as ours and not as the user's changes
            files.write_json(record, known | {path: [*known.get(path, []), digest] for path, digest in wanted.items()})
            replace(changed, source, home)
            for path in gone:
                (home / path).unlink()
            if not (home / ".dvc/config.local").exists():
                files.write_text(home / ".dvc/config.local", WITHOUT_GIT)
            files.write_json(record, {path: known.get(path, []) if path in kept else [digest] for path, digest in wanted.items()})
    return tuple(kept)


def replace(digests: Mapping[str, str], source: Path, home: Path) -> None:
    for path in digests:
        with files.replacing(home / path) as draft:
            draft.write_bytes((source / path).read_bytes())


def digests(source: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that `code` lists."""
    return {str(path): files.digest(source / path) for path in code(source)}


def code(source: Path) -> list[Path]:
    """Return the files of a checkout that a run reads, as relative paths, without bytecode (it is specific to the folder)."""
    found = [path for folder, pattern in FOLDERS.items() for path in (source / folder).rglob(pattern)]
    return sorted(path.relative_to(source) for path in [*(source / part for part in PARTS), *found])
