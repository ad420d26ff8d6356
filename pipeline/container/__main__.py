"""The entry point of the container, run by `tini -g`: `python -m pipeline.container [WORD ...]`."""

import json
import os
import socket
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil

from pipeline.__main__ import parse, print_failure, print_refusal
from pipeline.container import checkout
from pipeline.container.checkout import Checkout
from pipeline.core import interruption, limits
from pipeline.core.environment import SUMMARY_FOLLOWS, Environment
from pipeline.core.refusal import Refusal
from pipeline.runs.mlflow import mirror
from pipeline.tools import checkout_lock, supervision
from pipeline.tools.verbs import VERBS

IMAGE_CODE, IMAGE_DIGESTS = Path("/opt/pipeline"), Path("/opt/pipeline.json")
"""The folder of the image's code, and a JSON file with the SHA-256 of each file that the folder had when the image was built."""
VERB = (sys.executable, "-m", "pipeline")
REPRO = ((*VERB, "check"), ("dvc", "repro"), (*VERB, "summary"))
NEED_RESULTS = {"train", "evaluate", "summary", "verify"}  # they read results: if one fails, a message says whether results are kept
USAGE = f"""\
usage: docker run [--gpus all] [-v NAME:{checkout.HOME}] [--env PRESET=NAME] IMAGE [VERB ... | dvc ... | mlflow ... | torchrun ...]

Without a verb: repro, which is check, dvc repro and summary. PRESET and `repro -S KEY=VALUE` change its parameters first. `ui --host 0.0.0.0` needs `-p 127.0.0.1:5000:5000` before IMAGE.
The following help lists the verbs:
"""


def main(words: list[str]) -> int:
    try:
        return run(commands_for(words, preset=os.environ.get("PRESET", "")))
    except Refusal as refusal:
        return print_refusal(refusal)
    except OSError as error:
        return print_failure(error)


def commands_for(words: list[str], *, preset: str = "") -> tuple[tuple[str, ...], ...]:
    """Return the commands to run, in order. `words` are the words after the image's name in `docker run`.

    They begin with a verb of the pipeline, `dvc`, `mlflow`, `torchrun` or `--help`; without any, repro is run. `torchrun ... -m pipeline
    train` is for trainings on several machines. Before repro, params.yaml becomes the `preset`, unless that is "", and gets the values of
    the options `-S`. Raises Refusal for an unknown verb.
    """
    if words[:1] in ([], ["repro"]):
        assignments = parse(words or ["repro"]).assignments
        if preset:
            return ((*VERB, "set", f"preset={preset}", *assignments), *REPRO)
        return ((*VERB, "set", *assignments), *REPRO) if assignments else REPRO
    if words[0] in ("dvc", "mlflow"):
        return (tuple(words),)
    if words[0] == "torchrun":
        return ((sys.executable, "-m", "pipeline.tools.torchrun", *words[1:]),)
    if words[0] in ("-h", "--help"):
        return (("echo", USAGE), (*VERB, *words))
    if words[0] in VERBS:
        return ((*VERB, *words),)
    raise Refusal(
        f"there is no verb {words[0]!r}: write one of {', '.join(VERBS)}, dvc ..., mlflow ... or torchrun ...; to run repro, you can also write nothing"
    )


def run(commands: tuple[tuple[str, ...], ...]) -> int:
    """Run the commands in the folder that `checkout.find` chooses: a mounted checkout or a copy of the code. Return their exit code.

    Raises Refusal if no folder can be used, or if another job is using it.
    """
    built, home = json.loads(IMAGE_DIGESTS.read_bytes()), os.environ.get("PIPELINE_HOME")
    # a copy is in the documented mount point of a volume, or else in a temporary folder; PIPELINE_HOME replaces both
    homes = [Path(home)] if home else [checkout.HOME, Path(os.environ.get("TMPDIR", "/tmp")) / "pipeline"]  # noqa: S108  # private
    mounted = [Path(mount.mountpoint) for mount in psutil.disk_partitions(all=True)]
    job = checkout.find(Path.cwd(), IMAGE_CODE, homes, lock=built["requirements.lock"], mounted=mounted)
    is_repro, changes_parameters = commands[-len(REPRO) :] == REPRO, len(commands) > len(REPRO)
    uses_dvc = any(command[0] == "dvc" for command in commands)  # DVC's own locks have no effect between containers
    locked = checkout_lock.alone if is_repro else checkout_lock.held
    with locked(job.top, place=f"in a container (host name {socket.gethostname()})") if uses_dvc else nullcontext() as lock:
        edited = copy(job.copy_of, job.top) if job.copy_of else []
        environment = checkout.variables(job.top, os.environ, commit=commit(job, built, is_edited=changes_parameters or bool(edited)))
        environment |= {SUMMARY_FOLLOWS: "true"} if is_repro else {}
        code = supervision.run_all(commands, environment, top=job.top, lock=lock)
    if code not in interruption.EXIT_CODES:
        with suppress(Refusal):  # the commands have reported invalid variables
            # MLflow must have what the commands have left to mirror processes, which end with the container
            mirror.wait(Environment.read().model_copy(update={"dvc_root": job.top}))
    if code and limits.num_oom_kills():
        report("the OOM killer killed a process of this container: raise its memory limit (`docker run --memory`)")
    if job.copy_of and (is_repro or (code and NEED_RESULTS & set(commands[0]))):
        lost = f"is deleted with this container: add `-v NAME:{homes[0]}` to keep the results"
        report(f"{job.top} {'is mounted and keeps the results' if is_kept(job.top) else lost} (docs/container.md, Results)")
    return code


def is_kept(folder: Path) -> bool:
    """Return True if the files in `folder` outlive the container: the folder is in a mount, and this mount is no tmpfs."""
    types = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    holder = next(str(parent) for parent in (folder, *folder.parents) if os.path.ismount(parent))
    return holder != "/" and types.get(holder) != "tmpfs"


def copy(source: Path, home: Path) -> list[str]:
    """Copy the code from `source` to `home`. Return the files in `home` that the user edited; they are not overwritten.

    If `source` is a mounted checkout, print why the job does not run in it.
    """
    if source != IMAGE_CODE:
        remedy = f"{'mount it without `:ro`' if checkout.is_read_only(source) else 'add `--user $(id -u):$(id -g)`'} to run there"
        report(f"uid {os.getuid()} cannot write in {source}: this job runs in a copy, {home}; {remedy}")
    edited = checkout.copy(source, home)
    for path in edited:
        report(f"{home / path} was edited: it is kept as it is, not updated from {source}")
    return edited


def commit(job: Checkout, built: dict[str, str], *, is_edited: bool) -> str:
    """Return the commit of the image's code, if the job runs in a copy of exactly this code; otherwise "".

    "-changed" is appended to the commit if the user edited the copy (`is_edited`). `built` has the SHA-256 of each file of the image's
    code. If the files that were copied differ from it, other code is mounted over the image's code.
    """
    revision = os.environ.get("PIPELINE_IMAGE_REVISION")
    if not revision or not job.copy_of or checkout.digests(job.copy_of) != built:  # if other code was mounted over it
        return ""
    return f"{revision}-changed" if is_edited and not revision.endswith("-changed") else revision


def report(line: str) -> None:
    print(f"container: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
