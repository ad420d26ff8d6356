"""Reads the commit and the uncommitted changes of a checkout from git."""

import os
import re
import subprocess

from pipeline.io import files

GIT_TIMEOUT_S = 10
EXPLANATIONS = {
    "dubious ownership": "this checkout belongs to another user (git: dubious ownership)",
    "not a git repository": "this folder is not in a git repository",
    "'HEAD'": "this repository has no commit yet",
}
# Results that a run writes do not count as uncommitted changes.
WITHOUT_RESULTS = (".", ":(exclude)dvc.lock", ":(exclude)metrics", ":(exclude)plots")
CHANGES = ("status", "--porcelain", "--", *WITHOUT_RESULTS)
COMMIT = re.compile(r"[0-9a-f]{40,64}")


class Unknown(Exception):
    """Raised if a fact about the code or the machine, such as the commit, cannot be determined. The message contains the reason."""


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def git(*arguments: str) -> str:
    """Run git with these arguments and return its output. Raises Unknown if git is missing, fails, or exceeds `GIT_TIMEOUT_S`."""
    try:
        result = subprocess.run(
            ["git", *arguments],  # found on the user's PATH
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        raise Unknown("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unknown(f"git did not answer within {GIT_TIMEOUT_S} s") from None
    if result.returncode:
        raise Unknown(explain(first_line(result.stderr)) or f"git ended with {result.returncode}")
    return result.stdout.rstrip()


def explain(message: str) -> str:
    """Return a reason for a failure of git. `message` is the first line of git's error message.

    If `message` contains a key of `EXPLANATIONS`, the value of this key is returned, because git's own message may contain a path of this
    machine, which should not be sent to a shared MLflow server. Otherwise `message` is returned without its prefix "fatal: ".
    """
    return next((words for piece, words in EXPLANATIONS.items() if piece in message), message.removeprefix("fatal: "))


def difference() -> str:
    """Return a text that describes the uncommitted changes, or "none" if there are no changes.

    The first line has the size and the digest of `git diff HEAD`. The next lines are the changed files, one per line and at most 50.
    Changes of a run's results (`dvc.lock`, `metrics`, `plots`) do not count. Raises Unknown if git fails.
    """
    changed = git(*CHANGES)
    if not changed:
        return "none"
    text = git("diff", "--no-ext-diff", "HEAD", "--", *WITHOUT_RESULTS)
    listed = changed.splitlines()
    more = [f"and {len(listed) - 50} more"] if len(listed) > 50 else []
    return "\n".join([f"{len(text.encode())} bytes, digest {files.digest_of(text)}", *listed[:50], *more])


def differ_in_results_only(one: str, other: str) -> bool:
    """Return True if the commits `one` and `other` are not equal, but differ only in files that a run writes.

    Return False if they are equal, if one of them is not a full commit hash, or if git cannot compare them.
    """
    if one == other or not (COMMIT.fullmatch(one) and COMMIT.fullmatch(other)):
        return False
    try:
        return not git("diff", "--name-only", "--no-ext-diff", one, other, "--", *WITHOUT_RESULTS)
    except Unknown:
        return False
