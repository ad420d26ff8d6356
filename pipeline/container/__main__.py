"""Below `tini -g` in the container: `python -m pipeline.container [WORD ...]`."""

import os
import sys
from pathlib import Path

from pipeline.__main__ import VERBS, complain, complain_of_the_system
from pipeline.container import git_verbs, mounts, place, surroundings, whereabouts
from pipeline.container.place import Place
from pipeline.container.supervision import Supervision
from pipeline.paths import Paths
from pipeline.refusal import Refusal

IMAGE_CODE = Path("/opt/pipeline")
VERB = (sys.executable, "-m", "pipeline")
REPRO = ((*VERB, "check"), ("dvc", "repro"), (*VERB, "summary"))
OF_REPRO = {"PIPELINE_SUMMARY_FOLLOWS": "true"}
PROGRAMS = ("dvc", "mlflow")
AFTER_OTHERS = ("train", "evaluate", "summary", "verify")
"""Verbs that read what an earlier job made."""
HELP = ("-h", "--help")
USAGE = f"""\
usage: docker run [--gpus all] [-v NAME:{place.HOME}] IMAGE [WORD ...]

  no WORD, repro   check, dvc repro, summary
  dvc ...          as in a checkout
  mlflow ...       `mlflow ui --host 0.0.0.0`, say, with -p 127.0.0.1:5000:5000
  VERB ...         of the command below, which stands for `python -m pipeline`
"""
BAD_INPUT = 2


def main(words: list[str]) -> int:
    try:
        commands = chosen(words)
        found = place.find(Path.cwd(), IMAGE_CODE, homes())
        git_verbs.refuse(words, found.copy_of)
        environment = surroundings.variables(found.top, os.environ, commit=commit(found)) | (OF_REPRO if commands == REPRO else {})
    except Refusal as refusal:
        return complain(str(refusal), BAD_INPUT)
    except OSError as error:
        return complain_of_the_system(error)
    tell_of_the_copy(found)
    code = Supervision(environment, top=found.top).run_all(commands)
    if found.copy_of:
        tell_what_is_kept(found.top, commands, code)
    return code


def chosen(words: list[str]) -> tuple[tuple[str, ...], ...]:
    """What runs one after another. Raises Refusal for a word that is no verb."""
    if words in ([], ["repro"]):
        return REPRO
    if words[0] in PROGRAMS:
        return (tuple(words),)
    if words[0] in HELP:
        return (("echo", USAGE), (*VERB, *words))
    if words[0] in VERBS:
        return ((*VERB, *words),)
    known = ", ".join(VERBS)
    raise Refusal(
        f"there is no verb {words[0]!r}: without one it is repro (check, dvc repro, summary); the others are {known}, dvc ... and mlflow ..."
    )


def homes() -> list[Path]:
    """Where a copy may lie: what the user names, or what a volume keeps, or what ends with the container."""
    named = os.environ.get("PIPELINE_HOME")
    return [Path(named)] if named else [place.HOME, Path(os.environ.get("TMPDIR", "/tmp")) / "pipeline"]  # noqa: S108  # it is this container's own


def commit(found: Place) -> str:
    """Of the code that runs, where no Git can say it: the image's, as far as nobody changed it."""
    revision = os.environ.get("PIPELINE_IMAGE_REVISION", "")
    if found.copy_of != IMAGE_CODE or not revision:
        return ""
    return f"{revision}-changed" if found.kept and not revision.endswith("-changed") else revision


def tell_of_the_copy(found: Place) -> None:
    if found.copy_of and found.copy_of != IMAGE_CODE:
        is_read_only = os.statvfs(found.copy_of).f_flag & os.ST_RDONLY
        remedy = "mount it without `:ro` to run there" if is_read_only else "add `--user $(id -u):$(id -g)` to run there"
        say(f"uid {os.getuid()} cannot write in {found.copy_of}: this runs in a copy, {found.top}; {remedy}")
    for path in found.kept:
        say(f"{found.top / path} was changed by hand: it stays as it is")


def tell_what_is_kept(top: Path, commands: tuple[tuple[str, ...], ...], code: int) -> None:
    """The results of the main job; to a verb that may have missed those of an earlier one, why they are not here."""
    table, home = mounts.TABLE.read_text(encoding="utf-8"), homes()[0]
    if commands == REPRO and code == 0:
        say(f"the model {whereabouts.of(Paths(top).model, table, home=home)}")
    elif code and needs_results(commands) and not mounts.holding(top, table).outlives_the_container:
        say(f"{top} is new in each container: -v NAME:{home} keeps what a job makes for the next")


def needs_results(commands: tuple[tuple[str, ...], ...]) -> bool:
    return any(command[: len(VERB)] == VERB and command[len(VERB)] in AFTER_OTHERS for command in commands) and commands != REPRO


def say(line: str) -> None:
    print(f"container: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
