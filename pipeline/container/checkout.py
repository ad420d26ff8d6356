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
    """The folder in which a job runs.

    `top` is this folder. If it is a checkout of the user, `copy_of` is None. Otherwise the code is to be copied there from `copy_of`.
    """

    top: Path
    copy_of: Path | None = None


def find(start: Path, image: Path, homes: list[Path], *, lock: str, mounted: Iterable[Path] = ()) -> Checkout:
    """Return the folder in which a job runs, and from where to copy the code. Nothing is copied yet.

    If `start`, the folder in which the job was started, is a writable checkout, the job runs there. Otherwise it runs in the first writable
    folder of `homes`, in a copy of `start` if that is a checkout, or else of `image`, the image's own code. `lock` is the SHA-256 of the
    requirements.lock from which the image was built, and `mounted` are the container's mount points.

    Raises Refusal if no folder is fit for a copy, if the image's code would run although a folder in `mounted` is a checkout, or if the
    code has another requirements.lock than the image was built from.
    """
    source = start if is_checkout(start) else image
    ignored = sorted(filter(is_checkout, {*mounted} - {image, *homes})) if source == image else []
    if ignored:
        raise Refusal(
            f"{ignored[0]} is a checkout, but this job would run the image's own code: add `-w {ignored[0]}` to run in the checkout, or mount only its data "
            "(mounted with `-v $PWD:$PWD -w $PWD`, the checkout has the same path inside and outside the container)"
        )
    path = Paths(source).lock
    if not path.is_file() or files.digest(path) != lock:
        raise Refusal(
            f"{path} differs from the lock file that this image was built from, so the image has other package versions than this code needs: run `make image` in the checkout of this code"
        )
    if source != image and os.access(source, os.W_OK):
        return Checkout(source)
    return Checkout(first_writable(homes), copy_of=source)


def is_checkout(folder: Path) -> bool:
    return all(os.path.isfile(folder / part) for part in ("dvc.yaml", "pipeline/__main__.py"))  # noqa: PTH113  # False if access is denied


def first_writable(homes: list[Path]) -> Path:
    """Return the first writable folder of `homes`, after creating missing folders.

    Raises Refusal if no folder is writable, if a mounted folder that is not writable comes first, or if the writable folder has a Git
    repository.
    """
    for home in homes:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK | os.X_OK):
            if (home / ".git").exists():
                raise Refusal(
                    f"{home} has a Git repository, so no code is copied there: add `-w {home}` to run in this folder, or mount a volume without a repository at this path"
                )
            return home
        if os.path.ismount(home):
            if is_read_only(home):
                raise Refusal(f"{home} is mounted read-only, and a job writes there: mount it without `:ro`")
            owner = f"{home.stat().st_uid}:{home.stat().st_gid}"
            raise Refusal(
                f"{home} is mounted and belongs to {owner}; uid {os.getuid()} cannot write there: add `--user {owner}`, or change the owner of the folder"
            )
    raise Refusal(f"no writable folder ({', '.join(map(str, homes))}): add `--tmpfs /tmp`, or mount a volume: `-v NAME:{homes[0]}`")


def is_read_only(folder: Path) -> bool:
    """Return True if the file system of `folder` is mounted read-only, so that no user can write there."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


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
