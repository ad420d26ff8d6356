"""`set`: change parameters in params.yaml after validating them; comments and order stay. `set preset=NAME`: copy a preset to params.yaml.

`set --upgrade [FILE ...]` adds the keys that files of earlier versions lack, and moves those that have another place now.
"""

import hashlib
import re
import shlex
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Problem, Refusal, dotted
from pipeline.core.section import MOVED, moved
from pipeline.core.yaml_document import Document, read_text
from pipeline.tools import checkout_lock, tool
from pipeline.tools.check.command import refuse_misfits
from pipeline.tools.params.commented_yaml import on_one_line
from pipeline.tools.params.editing import Assignment, changes, edited, problems, upgraded_text
from pipeline.tools.params.reference import STAGE_PARAMS

FROM_PRESETS, FROM_TOP = "$schema=../params.schema.json", "$schema=params.schema.json"
PRESET, DATA = "preset=", "data="
REPLACED = Path(".pipeline/replaced")
"""Holds each params.yaml that was replaced as a whole, and that was no preset. A part of its SHA-256 is its name."""


def run(assignments: Sequence[str], upgrade: Sequence[str] | None = None) -> None:
    """Call `change` while no other command has the checkout: a training that runs takes its parameters from params.yaml."""
    with checkout_lock.alone(Path()):
        change(assignments, upgrade)


def change(assignments: Sequence[str], upgrade: Sequence[str] | None = None) -> None:
    """Write the values of `assignments`, each `KEY=VALUE`, into params.yaml, and print what changed.

    `preset=NAME` first replaces the whole file by a preset. With `upgrade`, instead add the keys that were added since the files `upgrade`
    (params.yaml if it is empty) were written, with the values that keep the result. Raises Refusal like `assigned`, `apply_preset` and
    `upgraded_text`, or for both or none of the two. Then nothing is written.
    """
    if bool(assignments) == (upgrade is not None):
        raise Refusal("set: write either values, such as train.epochs=3 or preset=digits, or --upgrade")
    target = Paths().params
    if upgrade is not None:
        if values := [name for name in upgrade if "=" in name and not Path(name).exists()]:
            raise Refusal(f"set: --upgrade takes files, but {values[0]} is a value: write it in a second command, without --upgrade")
        add_keys([Path(name) for name in upgrade] or [target])
        return
    names = [given.removeprefix(PRESET).strip() for given in assignments if given.startswith(PRESET)]
    roots = [given.removeprefix(DATA).strip() for given in assignments if given.startswith(DATA)]
    values = [given for given in assignments if not given.startswith((PRESET, DATA))]
    if roots:
        if names or len(roots) > 1:
            raise Refusal("set: data=PATH chooses all parameters: write one of it, and no preset")
        if not roots[0]:
            raise Refusal("data=: names no data: write data=PATH with the path of a file or folder")
        apply_data(Path(roots[0]), values)
        return
    if names:
        apply_preset(names, values)
        return
    before = read_text(target)
    after = assigned(before, with_pretrained(values, before))
    if after == before:
        print(f"set: {target} has these values already")
        return
    files.write_text(target, after)
    for line in changes(before, after):
        print(f"set: {line}")


def apply_preset(names: Sequence[str], assignments: Sequence[str]) -> None:
    """Copy a preset to params.yaml, with the values of `assignments` in place of its own. `names` has the name of this one preset.

    Raises Refusal if there are several names or no such preset, or if an assignment is wrong.
    """
    if len(names) > 1:
        raise Refusal(f"preset={names[1]}: is the second preset: write one")
    target, known = Paths().params, texts()
    if names[0] not in known:
        raise Refusal(f"there is no preset {names[0]!r}: the presets are {', '.join(known)}")
    original = known[names[0]]
    text = assigned(original, with_pretrained(assignments, original)) if assignments else original
    changed = changes(original, text) if assignments else []
    replace(target, text)
    print(f"set: {target} is now the preset {names[0]}{', except:' if changed else ''}")
    for line in changed:
        print(f"set: {line}")


def apply_data(root: Path, assignments: Sequence[str]) -> None:
    """Look at the data at `root`, and write the parameters that suit them, with the values of `assignments` in place of some.

    Prints what was seen and what changes. Raises Refusal like `data.look` and `apply_preset`.
    """
    from pipeline.prepare.reading.streams import NotDecoded
    from pipeline.tools.params.data import look, wrong_values  # late: these import NumPy and torch, which no other `set` needs
    from pipeline.tools.params.recommending import recommendation, suited

    parsed = [Assignment.parse(given) for given in assignments if not is_pretrained(given)]
    # of `source=NAME`, and of `source.KEY=VALUE`
    of_source = {str((*each.location, "name")[1]): each for each in parsed if each.location[0] == "source"}
    given = {key: each.value for key, each in of_source.items()}
    if found := wrong_values(given):
        raise Refusal.of(Problem(each.text, each.remedy, file=of_source[str(each.location[0])].given) for each in found)
    try:
        finding = look(root, given)
    except NotDecoded as error:
        words = [word for word in (f"data={root}", *assignments) if not word.startswith("source.encoding=")]
        otherwise = "; if other files have another encoding, save this one as theirs" * root.is_dir()
        if name := next(iter(error.readings), None):
            try:
                look(root, {**given, "encoding": name})
            except Refusal as next_question:
                otherwise += f"; then, with {name}: {'; '.join(problem.unplaced for problem in next_question.problems)}"
        raise Refusal(error.advising(f"python -m pipeline set {shlex.join(words)} source.encoding=") + otherwise) from None
    for line in finding.lines:
        print(f"set: {line}")
    assignments = with_pretrained(assignments, f"source: {{name: {finding.source['name']}}}", finding.texts)
    parsed = [Assignment.parse(given) for given in assignments]
    replaced = {str(each.location[0]) for each in parsed if len(each.location) == 1} - {"source"}

    def write(model: int, most: int | None) -> str:
        preset, recommended = recommendation(finding, model, most)
        values = [value for value in recommended if re.split(r"[.=]", value)[0] not in replaced]
        schema, *lines = texts()[preset].splitlines(keepends=True)
        header = [f"# Chosen by `set data={root}`.\n"]
        body = without_comments_of_source("".join(dropwhile(lambda line: line.startswith("#"), lines)))
        return assigned("".join([schema, *header, body]), [*values, *assignments])

    text, about_time = suited(finding, write, Environment.read(), own_model=any(each.location[0] == "model" for each in parsed))
    target = Paths().params
    changed = changes(read_text(target), text) if target.exists() else []
    replace(target, text)
    for line in (*changed, *about_time):
        print(f"set: {line}")
    print(f"set: {target} is written: `make repro` trains")


def without_comments_of_source(text: str) -> str:
    """Remove the comments of the section `source` of a preset, which are about the data of the preset."""
    return re.sub(r"^source:\n(?: .*\n)+", lambda section: re.sub(r" +#.*", "", section[0]), text, flags=re.MULTILINE)


def is_pretrained(given: str) -> bool:
    return bool(re.match("model=[a-z]+:", given))


def with_pretrained(assignments: Sequence[str], text: str, measured: Sequence[str] = ()) -> Sequence[str]:
    """Return the assignments, with `model=LIBRARY:NAME` replaced by those that belong to this model (see tools/params/pretrained.py).

    `text` is that of the parameters to change, and `measured` some texts of the data, () if they are not known.
    """
    if not any(map(is_pretrained, assignments)):
        return assignments
    from pipeline.tools.params.pretrained import expanded  # late: it imports torch

    named = [Assignment.parse(given).value for given in assignments if given.startswith("source=")]
    source = named[0] if named else Document.of(text, Paths().params).data["source"]["name"]
    return expanded(assignments, source, measured)


def texts() -> dict[str, str]:
    """Return the text of each preset by its name. The path of the JSON schema is changed, because params.yaml is in another folder."""
    presets = sorted(Path("presets").glob("*.yaml"))
    return {path.stem: path.read_text(encoding="utf-8").replace(FROM_PRESETS, FROM_TOP) for path in presets}


def replace(target: Path, text: str) -> None:
    """Write `text` to the file `target`. Keep what it had in REPLACED, and say so, unless this was a preset or the same."""
    before = target.read_bytes() if target.exists() else b""
    if before and before not in [known.encode() for known in (text, *texts().values())]:
        kept = REPLACED / f"params-{hashlib.sha256(before).hexdigest()[:12]}.yaml"
        with files.replacing(kept) as draft:
            draft.write_bytes(before)
        print(f"set: {target} had other values: {kept} keeps them")
    files.write_text(target, text)


def add_keys(paths: Sequence[Path]) -> None:
    """Upgrade all files, or none if one cannot be upgraded, and print the keys that were added, removed and renamed."""
    results = {path: upgraded(path) for path in paths}
    for path, (text, lines) in results.items():
        if not lines:
            print(f"set: {path} has all keys already")
            continue
        files.write_text(path, text)
        for line in lines:
            print(f"set: {path}: {line}")


def upgraded(path: Path) -> tuple[str, list[str]]:
    """Return the text of the parameter file or search file `path` with the keys of this version, and a line for each change."""
    text, renamed = read_text(path), list[str]()
    if "space" not in Document.of(text, path).data:
        text, added = upgraded_text(text, path, STAGE_PARAMS.values(), problems)
    else:
        search = tool("search.settings")  # late: most files are parameter files
        for old, new in MOVED.items():
            text, count = re.subn(rf"^(\s+){re.escape(old)}:", rf"\1{new}:", text, flags=re.MULTILINE)
            renamed += [f"renamed {old} to {new}"] * count
        text, added = upgraded_text(text, path, [search.SearchSettings], lambda data: search.checked(data)[1])
    lines = [f"added {dotted(location)}: {on_one_line(value)}" for location, value in added.items()]
    removed = [f"removed {section}.{key}, which is {MOVED[f'{section}.{key}']} now" for section, key in moved(added)]
    return text, [*lines, *removed, *renamed]


def assigned(text: str, assignments: Sequence[str]) -> str:
    """Return `text`, the text of params.yaml, after the assignments.

    Raises Refusal if an assignment is wrong, or if the parameters would be invalid or would not fit each other. What only the data or the
    machine can tell is left to the command `check`.
    """
    after = edited(text, assignments)
    refuse_misfits(Document.of(after, Paths().params))
    return after
