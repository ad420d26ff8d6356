"""Finds the folder in which a job runs, a mounted checkout or a writable copy, and the environment variables with which it runs under any uid.

The Dockerfile imports this module with a Python that has no packages, so it imports only the standard library and modules that do the same.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.tools import checkout_lock

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
    path = source / "requirements.lock"
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


SECRETS = ("PGPASSWORD", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")
"""Secrets that may be in a file: the variable NAME_FILE then has the path of the file, as is usual for Docker and Compose secrets."""


def variables(top: Path, given: Mapping[str, str], *, commit: str) -> dict[str, str]:
    """Return the environment variables of a job in the folder `top`. `given` are the environment variables with which the container was
    started.

    `commit` is the commit of the code if `top` is a copy without Git, else "". Raises Refusal if `secrets` cannot read a file, or if
    GIT_CONFIG_COUNT is no number.
    """
    home = top / ".pipeline/home"
    home.mkdir(parents=True, exist_ok=True)
    defaults = {
        "DVC_SITE_CACHE_DIR": str(top / ".pipeline/dvc"),  # DVC's database of file digests, stored in the checkout
        "TORCHINDUCTOR_CACHE_DIR": str(home / ".cache/torchinductor"),
        "TRITON_CACHE_DIR": str(home / ".cache/triton"),
    }
    # PYTHONPATH would make Python run the image's code instead of the code in `top`
    inherited = {name: value for name, value in given.items() if name != "PYTHONPATH"}
    temporary = Path(given.get("TMPDIR") or "/tmp")  # noqa: S108  # /tmp is private to this container
    if not os.access(temporary, os.W_OK):
        temporary = top / ".pipeline/tmp"
        temporary.mkdir(parents=True, exist_ok=True)
    user = given.get("USER") or f"uid-{os.getuid()}"  # many libraries need a user name, and the uid may have no passwd entry
    job = {"HOME": str(home), "USER": user, "LOGNAME": user, "TMPDIR": str(temporary), "PIPELINE_COMMIT": commit}
    if not (number := given.get("GIT_CONFIG_COUNT") or "0").isdecimal():
        raise Refusal(
            f"GIT_CONFIG_COUNT: is {number!r}: write how many variables GIT_CONFIG_KEY_0, GIT_CONFIG_KEY_1, ... there are, or leave it out"
        )
    count = int(number)
    # Git refuses a checkout that belongs to another user unless `safe.directory` names it.
    git = {"GIT_CONFIG_COUNT": str(count + 1), f"GIT_CONFIG_KEY_{count}": "safe.directory", f"GIT_CONFIG_VALUE_{count}": str(top)}
    return defaults | inherited | job | git | secrets(given)


def secrets(given: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the secrets in files, by variable name: if `given` has NAME_FILE, the path of a file, its content becomes NAME.

    This is done for the names in SECRETS. Raises Refusal if a file cannot be read.
    """
    found = {}
    for name in SECRETS:
        if path := given.get(f"{name}_FILE"):
            try:
                found[name] = Path(path).read_text(encoding="utf-8").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise Refusal(
                    f"{name}_FILE: {path} cannot be read ({type(error).__name__}): mount the secret at this path, readable for uid {os.getuid()}"
                ) from None
    return found
