"""Below `tini -g` in the container: `python -m pipeline.container [WORD ...]`."""

import os
import sys
from pathlib import Path

from pipeline.__main__ import VERBS, complain, complain_of_the_system
from pipeline.container import place, surroundings
from pipeline.container.place import Place
from pipeline.container.supervision import Supervision
from pipeline.paths import Paths
from pipeline.refusal import Refusal

IMAGE_CODE = Path("/opt/pipeline")
HOME = Path("/home/pipeline")
VERB = (sys.executable, "-m", "pipeline")
REPRO = ((*VERB, "check"), ("dvc", "repro"), (*VERB, "summary"))
PROGRAMS = ("dvc", "mlflow")
BAD_INPUT = 2


def main(words: list[str]) -> int:
    try:
        commands = chosen(words)
        found = place.find(Path.cwd(), IMAGE_CODE, homes())
        environment = surroundings.variables(found.top, os.environ, commit=commit(found))
    except Refusal as refusal:
        return complain(str(refusal), BAD_INPUT)
    except OSError as error:
        return complain_of_the_system(error)
    for path in found.kept:
        print(f"container: {found.top / path} was changed by hand: it stays as it is", flush=True)
    code = Supervision(environment, top=found.top).run_all(commands)
    if commands == REPRO and code == 0 and found.copy_of:
        tell_where_it_is(Paths(found.top).model)
    return code


def chosen(words: list[str]) -> tuple[tuple[str, ...], ...]:
    """What runs one after another. Raises Refusal for a word that is no verb."""
    if words in ([], ["repro"]):
        return REPRO
    if words[0] in PROGRAMS:
        return (tuple(words),)
    if words[0] in VERBS or words[0] in ("-h", "--help"):
        return ((*VERB, *words),)
    known = ", ".join(VERBS)
    raise Refusal(
        f"there is no verb {words[0]!r}: without one it is repro (check, dvc repro, summary); the others are {known}, dvc ... and mlflow ..."
    )


def homes() -> list[Path]:
    """Where a copy may lie: what the user names, or what a volume keeps, or what ends with the container."""
    named = os.environ.get("PIPELINE_HOME")
    return [Path(named)] if named else [HOME, Path(os.environ.get("TMPDIR", "/tmp")) / "pipeline"]  # noqa: S108  # it is this container's own


def commit(found: Place) -> str:
    """Of the code that runs, where no Git can say it: the image's, as far as nobody changed it."""
    revision = os.environ.get("PIPELINE_IMAGE_REVISION", "")
    if found.copy_of != IMAGE_CODE or not revision:
        return ""
    return f"{revision}-changed" if found.kept and not revision.endswith("-changed") else revision


def tell_where_it_is(model: Path) -> None:
    mount = next(folder for folder in model.parents if os.path.ismount(folder))
    if is_in_memory(mount):
        way = f"goes with this container, whose {mount} is memory: -v NAME:{HOME} keeps it"
    elif mount == Path("/"):
        way = f"is in this container: docker cp CONTAINER:{model} . gets it (without --rm), and -v NAME:{HOME} keeps it"
    else:
        way = f"is in what you mounted at {mount}: docker run --rm -v NAME:{mount} --entrypoint cat IMAGE {model} > {model.name}"
    print(f"container: the model {way}", flush=True)


def is_in_memory(mount: Path) -> bool:
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    return any(fields[1] == str(mount) and fields[2] == "tmpfs" for fields in mounts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
