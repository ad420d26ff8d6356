"""The environment variables of a job. With them, it runs under any uid, even without a passwd entry, and on a read-only file system."""

import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.refusal import Refusal

SECRETS = ("PGPASSWORD", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")
"""Secrets that may be in a file: the variable NAME_FILE then has the path of the file, as is usual for Docker and Compose secrets."""


def variables(top: Path, given: Mapping[str, str], *, commit: str) -> dict[str, str]:
    """Return the environment variables of a job in the folder `top`. `given` are the environment variables with which the container was
    started.

    `commit` is the commit of the code if `top` is a copy without Git, else "". Raises Refusal if `secrets` cannot read a file.
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
    count = int(given.get("GIT_CONFIG_COUNT") or 0)
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
