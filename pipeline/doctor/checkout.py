"""Checks of who owns the checkout, and of its Git repository."""

import os
import shlex
from pathlib import Path

from pipeline.doctor import dvc_config
from pipeline.doctor.finding import Finding
from pipeline.doctor.job import Job
from pipeline.provenance import revision
from pipeline.provenance.revision import Unknown

WRITTEN = (
    ".",
    ".dvc",
    ".dvc/cache",
    ".dvc/tmp",
    ".pipeline",
    ".pipeline/journal",
    ".pipeline/work",
    ".git",
    "data",
    "models",
    "metrics",
    "plots",
)
"""Folders of a checkout to which DVC and a training write, if they exist."""
MOST_NAMED = 4


def ownership(job: Job) -> Finding:
    """Check that this user can write the folders that a training writes, and owns them. Otherwise the status is `problem` or `warning`."""
    folders = [path for name in WRITTEN if (path := job.top / name).is_dir()]
    uid, gid, here = os.geteuid(), os.getegid(), shlex.quote(str(job.top.resolve()))
    read_only = [path for path in folders if not os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)]
    foreign = [path for path in folders if path.stat().st_uid != uid]
    chown = f"`sudo chown -R {uid}:{gid} {here}`"
    if read_only and not set(read_only) & set(foreign):
        text = f"uid {uid} cannot write {named(read_only)}: {'read-only file system' if is_mounted_read_only(read_only[0]) else 'no permission'}"
        return Finding("ownership", "problem", text, f"`chmod -R u+w {here}`, or mount the folder without `:ro`")
    if foreign:
        owner = foreign[0].stat()
        text = f"{named(foreign)} belong{'s' if len(foreign) == 1 else ''} to uid {owner.st_uid}, and this is uid {uid}"
        if read_only:
            return Finding(
                "ownership",
                "problem",
                f"{text}, which cannot write there",
                f"{chown}, or run as its owner (`docker run --user {owner.st_uid}:{owner.st_gid}`)",
            )
        return Finding(
            "ownership",
            "warning",
            f"{text}: its owner may be unable to change what a training writes",
            f"{chown}, or `docker run --user {owner.st_uid}:{owner.st_gid}`",
        )
    return Finding("ownership", "ok", f"uid {uid} owns the checkout and can write it")


def git(job: Job) -> Finding:
    """Check that Git tells the commit of the checkout. Without a repository DVC refuses to run, unless `core.no_scm` is set."""
    try:
        commit = revision.git("-C", str(job.top), "rev-parse", "HEAD")[:12]
    except Unknown as error:
        return without_commit(job, str(error))
    return Finding("git", "ok", f"commit {commit}")


def without_commit(job: Job, reason: str) -> Finding:
    no_scm = dvc_config.read(job.top).get("core", "no_scm", fallback="").lower() in ("true", "1", "yes", "on")
    if "dubious ownership" in reason:
        remedy = f"`git config --global --add safe.directory {shlex.quote(str(job.top.resolve()))}`"
        return Finding("git", "warning", f"{reason}, so runs are recorded without their commit", remedy)
    if no_scm:
        recorded = os.environ.get("PIPELINE_COMMIT", "not recorded, because PIPELINE_COMMIT is not set")
        return Finding("git", "ok", f"{reason}, and DVC works without one (core.no_scm); the commit is {recorded}")
    if "no commit yet" in reason:
        return Finding("git", "warning", f"{reason}, so runs are recorded without one", "`git add --all; git commit`")
    without_git = "`dvc config --local core.no_scm true`"
    remedy = f"install git, or {without_git}" if "not installed" in reason else f"`git init; git add --all; git commit`, or {without_git}"
    return Finding("git", "problem", f"{reason}: DVC does not run without Git", remedy)


def is_mounted_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def named(folders: list[Path]) -> str:
    more = len(folders) - MOST_NAMED
    shown = ["the checkout" if path.name == "" or path == folders[0].parent else str(path) for path in folders[:MOST_NAMED]]
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
