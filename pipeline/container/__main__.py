"""The container's entry point, run by `tini -g`: `python -m pipeline.container [WORD ...]`."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from pipeline.__main__ import VERBS, print_error, print_os_error
from pipeline.container import checkout, git_verbs, job_environment, mounts, whereabouts
from pipeline.container.checkout import Place
from pipeline.container.supervision import Supervision
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime import cgroup, checkout_lock
from pipeline.runtime.environment import SUMMARY_FOLLOWS

IMAGE_CODE, BUILT_FROM = Path("/opt/pipeline"), Path("/opt/pipeline.json")
"""The image's code, and the digests of its files at build time, which reveal code that was mounted over it."""
VERB = (sys.executable, "-m", "pipeline")
REPRO = ((*VERB, "check"), ("dvc", "repro"), (*VERB, "summary"))
PROGRAMS = ("dvc", "mlflow")
AFTER_OTHERS = ("train", "evaluate", "summary", "verify")
"""Verbs that read the results of an earlier job."""
HELP = ("-h", "--help")
USAGE = f"""\
usage: docker run [--gpus all] [-v NAME:{checkout.HOME}] IMAGE [WORD ...]

  no WORD, repro   check, dvc repro, summary
  dvc ...          as in a checkout
  ui --host 0.0.0.0   the MLflow UI, with -p 127.0.0.1:5000:5000
  mlflow ...       as in a checkout
  VERB ...         of the command below, which stands for `python -m pipeline`
"""
BAD_INPUT = 2


def main(words: list[str]) -> int:
    try:
        return run(chosen(words))
    except Refusal as refusal:
        return print_error(str(refusal), BAD_INPUT)
    except OSError as error:
        return print_os_error(error)


def run(commands: tuple[tuple[str, ...], ...]) -> int:
    """Run the commands and return their exit code. Raises Refusal where they cannot run."""
    table, built = mounts.TABLE.read_text(encoding="utf-8"), json.loads(BUILT_FROM.read_bytes())
    name, mounted = mounts.container(table), [mount.point for mount in mounts.mounts(table)]
    found = checkout.find(Path.cwd(), IMAGE_CODE, homes(), lock=built["requirements.lock"], mounted=mounted)
    git_verbs.refuse(commands[0], found.copy_of)
    uses_dvc = any(command[0] == "dvc" for command in commands)  # DVC ignores the locks of a DVC in another container
    with checkout_lock.held(found.top, place=f"in the container {name}" if name else "") if uses_dvc else nullcontext():
        kept = checkout.copy(found.copy_of, found.top) if found.copy_of else ()
        tell_of_the_copy(found, kept)
        environment = job_environment.variables(found.top, os.environ, commit=commit(found, kept, built))
        environment |= {SUMMARY_FOLLOWS: "true"} if commands == REPRO else {}
        code = Supervision(environment, top=found.top).run_all(commands)
    if code and cgroup.num_oom_kills():
        say("the kernel killed a process of this container, whose memory ran out: allow it more (`docker run --memory`)")
    if found.copy_of:
        tell_what_is_kept(found.top, commands, code)
    return code


def chosen(words: list[str]) -> tuple[tuple[str, ...], ...]:
    """Return the commands to run one after another. Raises Refusal for an unknown verb."""
    if words in ([], ["repro"]):
        return REPRO
    if words[0] in PROGRAMS:
        return (tuple(words),)
    if words[0] in HELP:
        return (("echo", USAGE), (*VERB, *words))
    if words[0] in VERBS:
        return ((*VERB, *words),)
    known = ", ".join(VERBS)
    raise Refusal(f"there is no verb {words[0]!r}: without one it is repro; the others are {known}, dvc ... and mlflow ...")


def homes() -> list[Path]:
    """Return where a copy may be created: PIPELINE_HOME if set, else the usual mount point of a volume, else a temporary folder."""
    named = os.environ.get("PIPELINE_HOME")
    return [Path(named)] if named else [checkout.HOME, Path(os.environ.get("TMPDIR", "/tmp")) / "pipeline"]  # noqa: S108  # private


def commit(found: Place, kept: tuple[str, ...], built: dict[str, str]) -> str:
    """Return the commit of the image if this is a copy of its unmodified code, with "-changed" if the user edited the copy; otherwise ""."""
    revision = os.environ.get("PIPELINE_IMAGE_REVISION", "")
    if not revision or not found.copy_of or checkout.digests(found.copy_of) != built:
        return ""
    return f"{revision}-changed" if kept and not revision.endswith("-changed") else revision


def tell_of_the_copy(found: Place, kept: tuple[str, ...]) -> None:
    if found.copy_of and found.copy_of != IMAGE_CODE:
        is_read_only = os.statvfs(found.copy_of).f_flag & os.ST_RDONLY
        remedy = "mount it without `:ro` to run there" if is_read_only else "add `--user $(id -u):$(id -g)` to run there"
        say(f"uid {os.getuid()} cannot write in {found.copy_of}: this runs in a copy, {found.top}; {remedy}")
    for path in kept:
        say(f"{found.top / path} was changed by hand: it stays as it is")


def tell_what_is_kept(top: Path, commands: tuple[tuple[str, ...], ...], code: int) -> None:
    """Print where the results of the main job are. If a later verb failed, print how to keep the results of an earlier job."""
    table, home = mounts.TABLE.read_text(encoding="utf-8"), homes()[0]
    if commands == REPRO and code == 0:
        say(f"the model {whereabouts.of(Paths(top).model, table, home=home)}")
        if mounts.holding(top, table).outlives_the_container:
            say(f"compare runs: docker run --rm -p 127.0.0.1:5000:5000 -v NAME:{home} IMAGE ui --host 0.0.0.0")
    elif code and needs_results(commands) and not mounts.holding(top, table).outlives_the_container:
        say(f"{top} is new in each container: -v NAME:{home} keeps what a job makes for the next")


def needs_results(commands: tuple[tuple[str, ...], ...]) -> bool:
    return any(command[: len(VERB)] == VERB and command[len(VERB)] in AFTER_OTHERS for command in commands) and commands != REPRO


def say(line: str) -> None:
    print(f"container: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
