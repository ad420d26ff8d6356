"""The commit of a checkout and how far it differs, as git tells it, or why it does not."""

import os
import re
import subprocess

from pipeline.io import files

GIT_TIMEOUT_S = 10
COMPLAINTS = {
    "dubious ownership": "this checkout belongs to another user (git: dubious ownership)",
    "not a git repository": "this folder is in no git repository",
    "'HEAD'": "this repository has no commit yet",
}
# what a run writes itself does not make its commit dirty
BUT_RESULTS = (".", ":(exclude)dvc.lock", ":(exclude)metrics", ":(exclude)plots")
CHANGES = ("status", "--porcelain", "--", *BUT_RESULTS)
COMMIT = re.compile(r"[0-9a-f]{40,64}")


class Unknown(Exception):
    """Why a fact cannot be found out, in plain words."""


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def git(*arguments: str) -> str:
    """Raises Unknown where git cannot say."""
    try:
        result = subprocess.run(
            ["git", *arguments],  # the git of the user's PATH
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
        raise Unknown(complaint(first_line(result.stderr)) or f"git ended with {result.returncode}")
    return result.stdout.rstrip()


def complaint(of_git: str) -> str:
    """Git's own words name paths, which belong into no store that others read."""
    return next((words for piece, words in COMPLAINTS.items() if piece in of_git), of_git.removeprefix("fatal: "))


def difference() -> str:
    """The files that differ from the commit, and the size and digest of the difference."""
    changed = git(*CHANGES)
    if not changed:
        return "none"
    text = git("diff", "--no-ext-diff", "HEAD", "--", *BUT_RESULTS)
    listed = changed.splitlines()
    more = [f"and {len(listed) - 50} more"] if len(listed) > 50 else []
    return "\n".join([f"{len(text.encode())} bytes, digest {files.digest_of(text)}", *listed[:50], *more])


def differ_in_results_only(one: str, other: str) -> bool:
    """Whether two commits are not the same, and all files but those that a run writes are; False where Git cannot tell."""
    if one == other or not (COMMIT.fullmatch(one) and COMMIT.fullmatch(other)):
        return False
    try:
        return not git("diff", "--name-only", "--no-ext-diff", one, other, "--", *BUT_RESULTS)
    except Unknown:
        return False
