"""Environment variables of a job, for a uid that is unknown to the image and a file system that may be read-only."""

import os
import pwd
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
        "DVC_SITE_CACHE_DIR": str(top / ".pipeline/dvc"),  # DVC's database of file digests, kept with the checkout
        "TORCHINDUCTOR_CACHE_DIR": str(home / ".cache/torchinductor"),
        "TRITON_CACHE_DIR": str(home / ".cache/triton"),
    }
    kept = {name: value for name, value in given.items() if name != "PYTHONPATH"}  # run the code in `top`, not the image's
    own = {"HOME": str(home), "TMPDIR": temporary(top, given), "PIPELINE_COMMIT": commit}
    return defaults | kept | own | login(given) | trusted(top, given) | secrets(given)


def temporary(top: Path, given: Mapping[str, str]) -> str:
    """Return TMPDIR or `/tmp` if writable, else a new folder below `top`."""
    usual = Path(given.get("TMPDIR") or "/tmp")  # noqa: S108  # /tmp is private to this container
    if os.access(usual, os.W_OK):
        return str(usual)
    folder = top / ".pipeline/tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def login(given: Mapping[str, str]) -> dict[str, str]:
    """Return USER and LOGNAME, also for a uid without a passwd entry: many libraries need a user name."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = given.get("USER") or f"uid-{os.getuid()}"
    return {"USER": name, "LOGNAME": name}


def trusted(top: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make Git accept this checkout, and no other, even if another user owns it."""
    count = int(given.get("GIT_CONFIG_COUNT") or 0)
    return {"GIT_CONFIG_COUNT": str(count + 1), f"GIT_CONFIG_KEY_{count}": "safe.directory", f"GIT_CONFIG_VALUE_{count}": str(top)}


def secrets(given: Mapping[str, str]) -> dict[str, str]:
    return {name: secret(f"{name}_FILE", Path(given[f"{name}_FILE"])) for name in SECRETS if given.get(f"{name}_FILE")}


def secret(variable: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(
            f"{variable}: {path} cannot be read ({type(error).__name__}): mount the secret there, readable for uid {os.getuid()}"
        ) from None
