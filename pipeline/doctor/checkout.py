"""Checks the owner and the permissions of the checkout, and its Git repository."""

import os
import shlex
from pathlib import Path

from pipeline.doctor import dvc_config
from pipeline.doctor.context import Context
from pipeline.doctor.finding import Finding
from pipeline.provenance import revision
from pipeline.provenance.revision import Unknown

WRITTEN = (".", ".dvc/cache", ".dvc/tmp", ".pipeline", ".pipeline/journal", ".pipeline/work", "data", "models", "metrics", "plots")
"""Folders of a checkout to which DVC and a training write, if they exist."""
MOST_NAMED = 4


def ownership(context: Context) -> Finding:
    """Check that this user can write to the folders that a training writes to.

    For root, also check that root owns the checkout: otherwise its owner could not change the files that the training writes.
    """
    folders = [path for name in WRITTEN if (path := context.top / name).is_dir()]
    uid, checkout = os.geteuid(), shlex.quote(str(context.top.resolve()))
    locked = [path for path in folders if not os.access(path, os.W_OK | os.X_OK, effective_ids=True)]
    foreign = [path for path in folders if path.stat().st_uid != uid]
    owner = (foreign or folders)[0].stat()
    remedy = f"`sudo chown -R {uid}:{os.getegid()} {checkout}`, or run as its owner (`docker run --user {owner.st_uid}:{owner.st_gid}`)"
    if locked and set(locked) <= set(foreign):
        return Finding("ownership", "problem", f"uid {uid} cannot write {named(locked)}, which belongs to uid {owner.st_uid}", remedy)
    if locked:
        return Finding(
            "ownership",
            "problem",
            f"uid {uid} cannot write {named(locked)}",
            f"`chmod -R u+w {checkout}`, or mount the folder without `:ro`",
        )
    if foreign and uid == 0:
        text = f"root runs in a checkout of uid {owner.st_uid} ({named(foreign)}), who cannot change what a training writes as root"
        return Finding("ownership", "warning", text, remedy)
    return Finding("ownership", "ok", f"uid {uid} can write the checkout")


def git(context: Context) -> Finding:
    """Check that Git can read the commit of the checkout. Without a repository, DVC refuses to run unless `core.no_scm` is set."""
    try:
        commit = revision.git("-C", str(context.top), "rev-parse", "HEAD")[:12]
    except Unknown as error:
        return without_commit(context, str(error))
    return Finding("git", "ok", f"commit {commit}")


def without_commit(context: Context, reason: str) -> Finding:
    """Return the finding for a checkout whose commit Git cannot read. `reason` is the text of Git's error."""
    no_scm = dvc_config.read(context.top).get("core", "no_scm", fallback="").lower() in ("true", "1", "yes", "on")
    if "dubious ownership" in reason:
        remedy = f"`git config --global --add safe.directory {shlex.quote(str(context.top.resolve()))}`"
        return Finding("git", "warning", f"{reason}, so runs are recorded without their commit", remedy)
    if no_scm:
        recorded = os.environ.get("PIPELINE_COMMIT", "not recorded, because PIPELINE_COMMIT is not set")
        return Finding("git", "ok", f"{reason}, and DVC works without one (core.no_scm); the commit is {recorded}")
    if "no commit yet" in reason:
        return Finding("git", "warning", f"{reason}, so runs are recorded without one", "`git add --all; git commit`")
    without_git = "`dvc config --local core.no_scm true`"
    remedy = f"install git, or {without_git}" if "not installed" in reason else f"`git init; git add --all; git commit`, or {without_git}"
    return Finding("git", "problem", f"{reason}: DVC does not run without Git", remedy)


def named(folders: list[Path]) -> str:
    more = len(folders) - MOST_NAMED
    return ", ".join(str(path.resolve()) for path in folders[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
