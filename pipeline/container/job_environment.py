"""Environment variables of a job, for a uid that is unknown to the image and a file system that may be read-only."""

import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.refusal import Refusal

SECRETS = ("PGPASSWORD", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")
"""Each may be given as the path of a file, in NAME_FILE, as is usual for Docker and Compose secrets."""


def variables(top: Path, given: Mapping[str, str], *, commit: str) -> dict[str, str]:
    """Return the environment of a job in `top`; `commit` is the commit of its code where there is no Git, else "".

    Raises Refusal for a secret file that cannot be read.
    """
    home = top / ".pipeline/home"
    home.mkdir(parents=True, exist_ok=True)
    defaults = {
        "DVC_SITE_CACHE_DIR": str(top / ".pipeline/dvc"),  # DVC's database of file digests, stored in the checkout
        "TORCHINDUCTOR_CACHE_DIR": str(home / ".cache/torchinductor"),
        "TRITON_CACHE_DIR": str(home / ".cache/triton"),
    }
    inherited = {name: value for name, value in given.items() if name != "PYTHONPATH"}  # run the code in `top`, not the image's
    user = given.get("USER") or f"uid-{os.getuid()}"  # many libraries need a name, and any uid may have no passwd entry
    job = {"HOME": str(home), "USER": user, "LOGNAME": user, "TMPDIR": temporary_folder(top, given), "PIPELINE_COMMIT": commit}
    count = int(given.get("GIT_CONFIG_COUNT") or 0)
    # Git refuses a checkout of another owner unless it is named here
    git = {"GIT_CONFIG_COUNT": str(count + 1), f"GIT_CONFIG_KEY_{count}": "safe.directory", f"GIT_CONFIG_VALUE_{count}": str(top)}
    return defaults | inherited | job | git | secrets(given)


def temporary_folder(top: Path, given: Mapping[str, str]) -> str:
    """Return TMPDIR or `/tmp` if writable, else a new folder below `top`."""
    usual = Path(given.get("TMPDIR") or "/tmp")  # noqa: S108  # /tmp is private to this container
    if os.access(usual, os.W_OK):
        return str(usual)
    folder = top / ".pipeline/tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def secrets(given: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that are given as files. Raises Refusal for a file that cannot be read."""
    found = {}
    for name in SECRETS:
        if path := given.get(f"{name}_FILE"):
            try:
                found[name] = Path(path).read_text(encoding="utf-8").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise Refusal(
                    f"{name}_FILE: {path} cannot be read ({type(error).__name__}): mount the secret there, readable for uid {os.getuid()}"
                ) from None
    return found
