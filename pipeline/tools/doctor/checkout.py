"""Checks the owner and the permissions of the checkout, its Git repository, and DVC's files."""

import os
import shlex
from configparser import ConfigParser, Error
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pipeline.core.refusal import Refusal, listed
from pipeline.core.yaml_document import Document
from pipeline.runs import provenance
from pipeline.runs.provenance import Unknown
from pipeline.tools.doctor.finding import Context, Finding, ok, problem, warning


def dvc_setting(top: Path, section: str, name: str) -> str:
    """Return a setting of DVC, "" if it is not set. The files of the checkout `top` come before those of the user and of the system.

    They are read without DVC, because its import takes longer on a busy machine than a check may take. A file with an error is skipped: DVC
    reports it.
    """
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    settings = ConfigParser(interpolation=None, strict=False, inline_comment_prefixes="#")
    for path in (Path("/etc/xdg/dvc/config"), home / "dvc/config", top / ".dvc/config", top / ".dvc/config.local"):
        with suppress(Error, OSError, UnicodeDecodeError):
            settings.read(path, encoding="utf-8")
    return settings.get(section, name, fallback="").strip("\"'")


RESULT_FOLDERS = ("data", "models", "metrics", "plots", "predictions")
WRITTEN = (".", ".dvc/cache", ".dvc/tmp", ".pipeline", ".pipeline/journal", ".pipeline/work", *RESULT_FOLDERS)
"""Folders of a checkout to which DVC and a training write, if they exist."""
MOST_NAMED = 4
OF_REPOSITORY = {
    "not installed": "install git",
    "no commit yet": "`git add --all; git commit`",
    "did not answer": "`git status`, and see why it is slow here",
}
"""Errors of Git beside which DVC runs if there is a repository, which it reads without Git, with their remedies."""


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
        return problem(
            f"uid {uid} cannot write {listed([str(path.resolve()) for path in locked], MOST_NAMED)}, which belongs to uid {owner.st_uid}",
            remedy,
        )
    if locked:
        return problem(
            f"uid {uid} cannot write {listed([str(path.resolve()) for path in locked], MOST_NAMED)}",
            f"`chmod -R u+w {checkout}`, or mount the folder without `:ro`",
        )
    if foreign and uid == 0:
        text = f"root runs in a checkout of uid {owner.st_uid} ({listed([str(path.resolve()) for path in foreign], MOST_NAMED)}), who cannot change what a training writes as root"
        return warning(text, remedy)
    return ok(f"uid {uid} can write the checkout")


def git(context: Context) -> Finding:
    """Check that Git can read the commit of the checkout. Without a repository, DVC refuses to run unless `core.no_scm` is set."""
    try:
        return ok(f"commit {provenance.git('-C', str(context.top), 'rev-parse', 'HEAD')[:12]}")
    except Unknown as error:
        reason = str(error)
    without_commit = f"{reason}, so runs are recorded without their commit"
    if "dubious ownership" in reason:
        return warning(without_commit, f"`git config --global --add safe.directory {shlex.quote(str(context.top.resolve()))}`")
    if dvc_setting(context.top, "core", "no_scm").lower() == "true":
        recorded = os.environ.get("PIPELINE_COMMIT", "not recorded, because PIPELINE_COMMIT is not set")
        return ok(f"{reason}, and DVC works without one (core.no_scm); the commit is {recorded}")
    remedy = next((remedy for piece, remedy in OF_REPOSITORY.items() if piece in reason), "")
    if remedy and any((folder / ".git").exists() for folder in (context.top, *context.top.resolve().parents)):
        return warning(without_commit, remedy)
    first = "install git, and " if "not installed" in reason else ""
    remedy = f"{first}`git init; git add --all; git commit`, or `dvc config --local core.no_scm true`"
    return problem(f"{reason}: DVC does not run without Git", remedy)


def dvc_files(context: Context) -> Finding:
    """Check that `dvc.yaml` and `dvc.lock` are valid YAML: a merge that Git could not complete leaves both versions in them."""
    for name in ("dvc.yaml", "dvc.lock"):
        try:
            if (path := context.top / name).exists():
                Document.of(path.read_text(encoding="utf-8"), Path(name))
        except (Refusal, OSError, UnicodeDecodeError) as error:
            reason = str(replace(error.problems[0], remedy="")) if isinstance(error, Refusal) else str(error)
            remedy = f"`git checkout HEAD -- {name}`, then `python -m pipeline repro` (docs/changing-parameters.md#after-a-merge)"
            return problem(f"{reason}, so DVC does not run", remedy)
    return ok("dvc.yaml and dvc.lock can be read")
