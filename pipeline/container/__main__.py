"""Below `tini -g` in the container: `python -m pipeline.container [WORD ...]`."""

import os
import sys
from pathlib import Path

from pipeline.__main__ import VERBS, complain
from pipeline.container import place, surroundings
from pipeline.container.place import Place
from pipeline.container.supervision import Supervision
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
        commit = os.environ.get("PIPELINE_IMAGE_REVISION", "") if found.copy_of == IMAGE_CODE else ""
        environment = surroundings.variables(found.top, os.environ, commit=commit)
    except Refusal as refusal:
        return complain(str(refusal), BAD_INPUT)
    supervision = Supervision(environment, top=found.top)
    code = next((code for command in commands if (code := supervision.run(command))), 0)
    if found.copy_of:
        tell_where_it_is(found)
    return code


def chosen(words: list[str]) -> tuple[tuple[str, ...], ...]:
    """What runs one after another. Raises Refusal for a word that is no verb."""
    if words in ([], ["repro"]):
        return REPRO
    if words[0] in PROGRAMS:
        return (tuple(words),)
    if words[0] in VERBS:
        return ((*VERB, *words),)
    known = [f"{verb:<10} {purpose}" for verb, purpose in VERBS.items()]
    raise Refusal(
        "\n".join(
            [
                f"there is no verb {words[0]!r}; without one it is `repro`: check, dvc repro, summary. The others:",
                *known,
                "dvc, mlflow: any command of theirs",
            ]
        )
    )


def homes() -> list[Path]:
    """Where a copy may lie: what the user names, or what a volume keeps, or what ends with the container."""
    named = os.environ.get("PIPELINE_HOME")
    return [Path(named)] if named else [HOME, Path(os.environ.get("TMPDIR", "/tmp")) / "pipeline"]  # noqa: S108  # the image is its only user


def tell_where_it_is(found: Place) -> None:
    model = found.top / "models/model.safetensors"
    if not model.is_file():
        return
    if os.path.ismount(found.top):
        way = f"in the volume: docker run --rm -v NAME:{found.top} --entrypoint cat IMAGE {model} > model.safetensors"
    else:
        way = f"in this container: docker cp {os.uname().nodename}:{model} . (without --rm), or run with -v NAME:{HOME} to keep it"
    print(f"container: the model is {way}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
