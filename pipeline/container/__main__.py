"""The container's entry point, run by `tini -g`: `python -m pipeline.container [WORD ...]`."""

import json
import os
import re
import socket
import sys
from contextlib import nullcontext
from pathlib import Path

import psutil

from pipeline.__main__ import BAD_INPUT, VERBS, print_error, print_os_error
from pipeline.container import checkout, job_environment, supervision
from pipeline.container.checkout import Checkout
from pipeline.refusal import Refusal
from pipeline.runtime import cgroup, checkout_lock
from pipeline.runtime.environment import SUMMARY_FOLLOWS

IMAGE_CODE, IMAGE_DIGESTS = Path("/opt/pipeline"), Path("/opt/pipeline.json")
"""The folder of the image's code, and a JSON file with the SHA-256 of each file in that folder at build time. The folder no longer matches
the JSON file if other code was mounted over the folder.
"""
VERB = (sys.executable, "-m", "pipeline")
REPRO = ((*VERB, "check"), ("dvc", "repro"), (*VERB, "summary"))
NEED_RESULTS = {"train", "evaluate", "summary", "verify"}
"""Verbs that read the results of an earlier job. If such a verb fails, a printed line says whether the checkout keeps results."""
NEEDS_GIT = re.compile(r"dvc (?:--cd \S+ |-(?!-cd )\S+ )*(exp|experiments|queue|diff|(?:metrics|params|plots) diff)(?: |$)")
"""Matches the DVC commands that need Git. DVC's own message advises to turn off `core.no_scm`, which leads to another error."""
USAGE = f"""\
usage: docker run [--gpus all] [-v NAME:{checkout.HOME}] IMAGE [VERB ... | dvc ... | mlflow ...]

Without a verb: repro, which is check, dvc repro and summary. `ui --host 0.0.0.0` needs `-p 127.0.0.1:5000:5000` before IMAGE.
The following help lists the verbs:
"""


def main(words: list[str]) -> int:
    try:
        return run(commands_for(words))
    except Refusal as refusal:
        return print_error(str(refusal), BAD_INPUT)
    except OSError as error:
        return print_os_error(error)


def commands_for(words: list[str]) -> tuple[tuple[str, ...], ...]:
    """Return the commands for the arguments of the container, in the order in which to run them. Raises Refusal for an unknown verb."""
    if words in ([], ["repro"]):
        return REPRO
    if words[0] in ("dvc", "mlflow"):
        return (tuple(words),)
    if words[0] in ("-h", "--help"):
        return (("echo", USAGE), (*VERB, *words))
    if words[0] in VERBS:
        return ((*VERB, *words),)
    raise Refusal(f"there is no verb {words[0]!r}: the verbs are {', '.join(VERBS)}, dvc ... and mlflow ...; without one, repro runs")


def run(commands: tuple[tuple[str, ...], ...]) -> int:
    """Run the commands in the job's checkout and return their exit code. Raises Refusal if they cannot run there."""
    built, homes = json.loads(IMAGE_DIGESTS.read_bytes()), possible_homes()
    mounted = [Path(mount.mountpoint) for mount in psutil.disk_partitions(all=True)]
    job = checkout.find(Path.cwd(), IMAGE_CODE, homes, lock=built["requirements.lock"], mounted=mounted)
    if job.copy_of and (needs_git := NEEDS_GIT.match(" ".join(commands[0]))):
        raise Refusal(
            f"`dvc {needs_git[1]}` needs Git, but this job runs in a copy of {job.copy_of} without Git: "
            'run it in a checkout, with `make docker-repro ARGS="dvc ..."` or `-v $PWD:$PWD -w $PWD --user $(id -u):$(id -g)`'
        )
    uses_dvc = any(command[0] == "dvc" for command in commands)  # DVC's own locks have no effect between containers
    holder = f"in a container (host name {socket.gethostname()})"
    with checkout_lock.held(job.top, place=holder) if uses_dvc else nullcontext():
        edited = copy(job.copy_of, job.top) if job.copy_of else []
        environment = job_environment.variables(job.top, os.environ, commit=commit(job, built, is_edited=bool(edited)))
        environment |= {SUMMARY_FOLLOWS: "true"} if commands == REPRO else {}
        code = supervision.run_all(commands, environment, top=job.top)
    if code and cgroup.num_oom_kills():
        report("the OOM killer killed a process of this container: raise its memory limit (`docker run --memory`)")
    if job.copy_of and (commands == REPRO or (code and NEED_RESULTS & set(commands[0]))):
        fate = (
            "is mounted and keeps the results"
            if is_kept(job.top)
            else f"is deleted with this container: add `-v NAME:{homes[0]}` to keep the results"
        )
        report(f"{job.top} {fate} (docs/container.md, Results)")
    return code


def is_kept(folder: Path) -> bool:
    """Return True if the folder is in a mount other than a tmpfs, so that its files outlive the container."""
    types = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    holder = next(str(parent) for parent in (folder, *folder.parents) if os.path.ismount(parent))
    return holder != "/" and types.get(holder) != "tmpfs"


def possible_homes() -> list[Path]:
    """Return the folders in which a copy may be created, in order of preference.

    If PIPELINE_HOME is set, return only that folder. Otherwise return the documented mount point of a volume, then a temporary folder.
    """
    home = os.environ.get("PIPELINE_HOME")
    return [Path(home)] if home else [checkout.HOME, Path(os.environ.get("TMPDIR", "/tmp")) / "pipeline"]  # noqa: S108  # private


def copy(source: Path, home: Path) -> list[str]:
    """Copy the code from `source` to `home`, but keep files there that the user edited; print and return their paths.

    If `source` is a mounted checkout and not the image's code, first print why the job runs in the copy.
    """
    if source != IMAGE_CODE:
        remedy = "mount it without `:ro`, or add `--user $(id -u):$(id -g)`, to run there"
        report(f"uid {os.getuid()} cannot write in {source}: this job runs in a copy, {home}; {remedy}")
    edited = checkout.copy(source, home)
    for path in edited:
        report(f"{home / path} was edited: it is kept as it is, not updated from {source}")
    return edited


def commit(job: Checkout, built: dict[str, str], *, is_edited: bool) -> str:
    """Return the image's commit if the job's checkout is a copy of the image's code, or else "".

    The commit ends with "-changed" if the user edited the copy. Return "" also if other code was mounted over the image's code:
    `built` has the SHA-256 of that code at build time.
    """
    revision = os.environ.get("PIPELINE_IMAGE_REVISION", "")
    if not revision or not job.copy_of or checkout.digests(job.copy_of) != built:
        return ""
    return f"{revision}-changed" if is_edited and not revision.endswith("-changed") else revision


def report(line: str) -> None:
    print(f"container: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
