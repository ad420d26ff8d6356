"""Finds the folder in which a job runs: a mounted checkout, or a writable copy of it or of the code in the image."""

import json
import os
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime import checkout_lock

PARTS = (
    ".dvc/config",
    ".dvcignore",
    "data/README.md",
    "data/weights/None",
    "dvc.yaml",
    "params.yaml",
    "params.schema.json",
    "requirements.lock",
)
FOLDERS = {"pipeline": "*.py", "presets": "*.yaml"}  # without bytecode, which contains the path of its folder
HOME = Path("/home/pipeline")


@dataclass(frozen=True)
class Checkout:
    """The folder `top` in which a job runs. `copy_of` is the folder to copy the code from; None if `top` is a checkout already."""

    top: Path
    copy_of: Path | None = None


def find(start: Path, image: Path, homes: list[Path], *, lock: str, mounted: Iterable[Path] = ()) -> Checkout:
    """Return the checkout of a job that was started in the folder `start`: `start`, if that is a writable checkout, or else a copy.

    The copy is made in the first writable folder of `homes`. It is a copy of `start` if that is a checkout, or else of `image`, the image's
    own code.

    Raises Refusal in three cases. No folder is fit for a copy. A folder in `mounted` is a checkout, but the image's code would run. The
    SHA-256 of the code's lock file is not `lock`, that of the lock file from which the image was built.
    """
    source = start if is_checkout(start) else image
    ignored = sorted(filter(is_checkout, {*mounted} - {image, *homes})) if source == image else []
    if ignored:
        raise Refusal(
            f"{ignored[0]} is a checkout, but this job would run the image's own code: add `-w {ignored[0]}` to run in the checkout "
            "(with `-v $PWD:$PWD -w $PWD`, its paths are the same inside and outside the container), or mount only its data"
        )
    path = Paths(source).lock
    if not path.is_file() or files.digest(path) != lock:
        raise Refusal(
            f"{path} differs from the lock file that this image was built from, so the image has other package versions: run `make image` in that checkout"
        )
    if source != image and os.access(source, os.W_OK):
        return Checkout(source)
    return Checkout(first_writable(homes), copy_of=source)


def is_checkout(folder: Path) -> bool:
    return all(os.path.isfile(folder / part) for part in ("dvc.yaml", "pipeline/__main__.py"))  # noqa: PTH113  # False if access is denied


def first_writable(homes: list[Path]) -> Path:
    """Return the first writable folder of `homes`, after creating missing folders.

    Raises Refusal if no folder is writable, if an earlier folder of `homes` is a mount that is not writable, or if the writable folder has
    a Git repository.
    """
    for home in homes:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK | os.X_OK):
            if (home / ".git").exists():
                raise Refusal(f"{home} has a Git repository, so no code is copied there: add `-w {home}`, or mount a volume there")
            return home
        if os.path.ismount(home):
            owner = f"{home.stat().st_uid}:{home.stat().st_gid}"
            is_own = home.stat().st_uid == os.getuid()
            remedy = "mount it without `:ro`" if is_own else f"add `--user {owner}`, or change the owner of the folder"
            raise Refusal(f"{home} is mounted and belongs to {owner}; uid {os.getuid()} cannot write there: {remedy}")
    raise Refusal(f"no writable folder ({', '.join(map(str, homes))}): add `--tmpfs /tmp`, or mount a volume: `-v NAME:{homes[0]}`")


def copy(source: Path, home: Path) -> list[str]:
    """Copy the code from `source` to `home`, and delete files of an earlier copy that `source` no longer has.

    Files that the user edited in `home` are neither replaced nor deleted. Return their paths.
    """
    with files.locked(home / ".pipeline/copied.lock", wait=True):
        record = home / ".pipeline/copied.json"
        known: dict[str, list[str]] = json.loads(record.read_bytes()) if record.is_file() else {}
        wanted = digests(source)
        present = {path: files.digest(home / path) for path in {*known, *wanted} if (home / path).is_file()}
        edited = sorted(path for path, digest in present.items() if digest not in [*known.get(path, []), wanted.get(path)])
        outdated = [path for path, digest in wanted.items() if path not in edited and present.get(path) != digest]
        removed = present.keys() - wanted.keys() - set(edited)
        with checkout_lock.held(home) if outdated or removed else nullcontext():  # not while another container runs this code
            # Record the digests first: after a kill, the files of a partial copy are then not mistaken for the user's changes.
            files.write_json(record, known | {path: [*known.get(path, []), digest] for path, digest in wanted.items()})
            for path in outdated:
                with files.replacing(home / path) as draft:
                    draft.write_bytes((source / path).read_bytes())
            for path in removed:
                (home / path).unlink()
            if not (home / ".dvc/config.local").exists():
                files.write_text(home / ".dvc/config.local", "[core]\n    no_scm = true\n")  # DVC then works without Git
            files.write_json(record, {path: known.get(path, []) if path in edited else [digest] for path, digest in wanted.items()})
    return edited


def digests(source: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that a run reads from the checkout `source`, by relative path."""
    members = [path for folder, pattern in FOLDERS.items() for path in (source / folder).rglob(pattern)]
    paths = sorted(path.relative_to(source) for path in [*(source / part for part in PARTS), *members])
    return {str(path): files.digest(source / path) for path in paths}
