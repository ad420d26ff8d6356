"""Find the folder in which the job runs: the mounted checkout, or a writable copy of it or of the image's code."""

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
FOLDERS = {"pipeline": "*.py", "presets": "*.yaml"}
HOME = Path("/home/pipeline")
WITHOUT_GIT = "[core]\n    no_scm = true\n"
RECORD, LOCK = ".pipeline/copied.json", ".pipeline/copied.lock"


@dataclass(frozen=True)
class Checkout:
    """The writable checkout of a job, in the folder `top`.

    `copy_of` is the folder to copy the files from, or None if `top` already is a checkout.
    """

    top: Path
    copy_of: Path | None = None


def find(start: Path, image: Path, homes: list[Path], *, lock: str, mounted: Iterable[Path] = ()) -> Checkout:
    """Return the checkout of a job that was started in the folder `start`.

    If `start` is a writable checkout, the job runs there. Otherwise it runs in a copy, in the first writable folder of `homes`. The code is
    copied from `start`, or from `image`, the folder of the image's code, if `start` is no checkout.

    Raises Refusal if the job needs a copy and no folder is fit for it (see `first_writable`). Raises Refusal if the image's code would run
    although one of the `mounted` folders is a checkout. Raises Refusal if the SHA-256 of the checkout's lock file is not `lock`, that of
    the lock file from which the image's packages were installed.
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
            f"{path} differs from the lock file that this image was built from, so other package versions are installed: "
            "run `make image` in that checkout"
        )
    if source != image and os.access(source, os.W_OK):
        return Checkout(source)
    return Checkout(first_writable(homes), copy_of=source)


def is_checkout(folder: Path) -> bool:
    return all(os.path.isfile(folder / part) for part in ("dvc.yaml", "pipeline/__main__.py"))  # noqa: PTH113  # False if access is denied


def first_writable(homes: list[Path]) -> Path:
    """Return the first writable folder of `homes`. Create the folders that do not exist.

    Raises Refusal if no folder is writable. Raises Refusal if a folder before the first writable one is a mount point: an unwritable mount
    is never skipped. Raises Refusal if the first writable folder has a Git repository.
    """
    for home in homes:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK | os.X_OK):
            if (home / ".git").exists():
                raise Refusal(
                    f"{home} has a Git repository, over which this job does not copy its code: add `-w {home}` if it is a checkout "
                    "of this pipeline, or mount a volume there instead"
                )
            return home
        if os.path.ismount(home):
            owner = f"{home.stat().st_uid}:{home.stat().st_gid}"
            is_own = home.stat().st_uid == os.getuid()
            remedy = "mount it without `:ro`" if is_own else f"add `--user {owner}`, or change the owner of the folder"
            raise Refusal(f"{home} is mounted and belongs to {owner}; uid {os.getuid()} cannot write there: {remedy}")
    raise Refusal(f"no writable folder ({', '.join(map(str, homes))}): add `--tmpfs /tmp`, or mount a volume: `-v NAME:{homes[0]}`")


def copy(source: Path, home: Path) -> list[str]:
    """Copy the code from `source` to `home`, without Git, and delete files of an earlier copy that `source` no longer has.

    Files in `home` that the user changed are neither replaced nor deleted; return their paths.
    """
    with files.locked(home / LOCK, wait=True):
        record = home / RECORD
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
                files.write_text(home / ".dvc/config.local", WITHOUT_GIT)
            files.write_json(record, {path: known.get(path, []) if path in edited else [digest] for path, digest in wanted.items()})
    return edited


def digests(source: Path) -> dict[str, str]:
    """Return a dict from relative path to SHA-256 of the files that a run reads from the checkout `source`.

    Bytecode is left out, because it contains the path of the folder.
    """
    members = [path for folder, pattern in FOLDERS.items() for path in (source / folder).rglob(pattern)]
    paths = sorted(path.relative_to(source) for path in [*(source / part for part in PARTS), *members])
    return {str(path): files.digest(source / path) for path in paths}
