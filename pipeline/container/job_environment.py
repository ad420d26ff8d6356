"""What programs expect of a user's login, for a user whom the image does not know and a file system that may be read-only."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from pipeline.refusal import Refusal

SECRETS = ("PGPASSWORD", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")
"""Each may be given as a file: NAME_FILE, as Docker and Compose hand secrets over."""


def variables(top: Path, given: Mapping[str, str], *, commit: str) -> dict[str, str]:
    """The environment for a job in `top`, whose code is of `commit` where no Git can say it. Raises Refusal for a secret's file that cannot be read."""
    home = top / ".pipeline/home"
    home.mkdir(parents=True, exist_ok=True)
    defaults = {
        "DVC_SITE_CACHE_DIR": str(top / ".pipeline/dvc"),  # its database of digests, kept with the checkout
        "TORCHINDUCTOR_CACHE_DIR": str(home / ".cache/torchinductor"),
        "TRITON_CACHE_DIR": str(home / ".cache/triton"),
    }
    kept = {name: value for name, value in given.items() if name != "PYTHONPATH"}  # the code of `top` runs, not the image's
    own = {"HOME": str(home), "TMPDIR": temporary(top, given), "PIPELINE_COMMIT": commit}
    return defaults | kept | own | login(given) | trusted(top, given) | secrets(given)


def temporary(top: Path, given: Mapping[str, str]) -> str:
    """Where nobody named a folder and there is no `/tmp` that can be written, one beside the rest."""
    usual = Path(given.get("TMPDIR") or "/tmp")  # noqa: S108  # it is this container's own
    if os.access(usual, os.W_OK):
        return str(usual)
    folder = top / ".pipeline/tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def login(given: Mapping[str, str]) -> dict[str, str]:
    """A name for a uid that has none: many libraries ask for one."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = given.get("USER") or f"uid-{os.getuid()}"
    return {"USER": name, "LOGNAME": name}


def trusted(top: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Git reads this checkout, and no other, whoever owns it."""
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
