"""Identifies what decides the result of a stage: digests of all inputs that dvc.yaml lists for it, and the properties of the machine that matter.

Refuses the result of a stage whose inputs have changed while it ran. The inputs are the parameters, the code and the data. DVC records all of
them as they are when a stage has ended. If they were changed meanwhile, DVC would store the result under inputs that did not give it, and
never run the stage with these.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel

from pipeline.core import files
from pipeline.core.environment import Paths
from pipeline.core.params import with_line
from pipeline.core.refusal import Problem, Refusal, Unavailable, listed
from pipeline.core.section import Scalar, ValueOf, flatten, formatted, leaves
from pipeline.core.yaml_document import Document

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
DIGESTS = {"data": "prepared data", "code": "code", "lock": "requirements.lock", "weights": "starting weights"}
"""The names of the digests in a RunIdentity and in the manifest of a model file, and their words in messages."""


class Difference(NamedTuple):
    name: str
    values: tuple[Any, ...]
    """The value in each of the compared mappings."""


def differences(*found: Mapping[str, Any], missing: Any = "missing") -> list[Difference]:
    """Return each name whose value differs among the mappings. `missing` stands for the value in a mapping that lacks the name.

    Nested mappings are compared as values: use `section.leaves` to compare their members.
    """
    first, *others = found
    names = dict.fromkeys(name for each in found for name in each)
    changed = (name for name in names if any((name in first, first.get(name)) != (name in each, each.get(name)) for each in others))
    return [Difference(name, tuple(each.get(name, missing) for each in found)) for name in changed]


@dataclass(frozen=True)
class RunIdentity:
    """Everything that determines the result of a training.

    `data`, `code`, `lock` and `weights` are SHA-256 digests of the prepared data, the Python code, the lock file of packages, and the file
    that the parameter `model.weights` names. `weights` is None if the training does not start from such a file. `params` are the sections
    of params.yaml that the training uses. `fingerprint` has the properties of the machine that change results.
    """

    data: str
    code: str
    lock: str
    params: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    weights: str | None = None

    @property
    def digests(self) -> dict[str, str]:
        weights = {} if self.weights is None else {"weights": self.weights}
        return {"data": self.data, "code": self.code, "lock": self.lock, **weights}

    @property
    def record(self) -> dict[str, Any]:
        return {**self.digests, "params": dict(self.params), "fingerprint": dict(self.fingerprint)}

    @property
    def parts(self) -> dict[str, Any]:
        """Everything in this identity, by the words of messages: digests, parameters such as `optimizer.momentum`, and `machine.threads`."""
        digests = {DIGESTS[name]: digest for name, digest in self.digests.items()}
        return {**digests, **dict(leaves(self.params)), **{f"machine.{key}": value for key, value in leaves(self.fingerprint)}}

    def differences(self, other: Self) -> list[Difference]:
        """Return all parts that differ, with the values in this identity and in the other one."""
        return differences(self.parts, other.parts)

    def differs_only_in_machine(self, other: Self) -> bool:
        return replace(self, fingerprint=other.fingerprint) == other

    @property
    def key(self) -> str:
        """16 hexadecimal digits. The keys of two trainings are equal if and only if all values in their RunIdentity are equal."""
        return files.digest_of(self.record)[:16]


def dependencies(stage: str, params: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the dependency paths of a stage from `folder/dvc.yaml`, with each `${...}` replaced by its value in `params`.

    Raises Refusal if dvc.yaml is missing or does not describe the stage.
    """
    paths = read_stage(stage, folder)["deps"]
    return [REFERENCE.sub(lambda match: str(ValueOf(match[1]).found_in(params)), path) for path in paths]


def read_stage(stage: str, folder: Path) -> dict[str, Any]:
    path = folder / "dvc.yaml"
    if not path.exists():
        raise Refusal(f"{path}: is missing: run this command in the top folder of the project's checkout")
    try:
        content: dict[str, Any] = Document.read(path).data["stages"][stage]
        "".join([*content["deps"], *content["params"]])  # raises TypeError for anything but strings
    except (Refusal, LookupError, TypeError):
        raise Refusal(f"{path}: does not describe the stage {stage}: undo its changes with `git restore {path}`") from None
    return content


def code_digest(paths: Iterable[str], folder: Path) -> str:
    """Return one digest of the Python code that a stage depends on: of its `modules`."""
    return files.digest_of({path: files.digest(folder / path) for path in modules(paths, folder)})


def modules(paths: Iterable[str], folder: Path) -> list[str]:
    """Return the `.py` files among `paths`, and all `.py` files but `predict.py`, which `.dvcignore` names, inside those of `paths` that are folders below `pipeline/`, sorted.

    `paths` are the dependencies of a stage, relative to the checkout `folder`. Other dependencies, such as data, are left out.
    """
    found = {path for path in paths if path.endswith(".py")}
    for path in paths:
        if path.startswith("pipeline/") and path not in found:
            found |= {module.relative_to(folder).as_posix() for module in (folder / path).rglob("*.py") if module.name != "predict.py"}
    return sorted(found)


named = partial(listed, most=3, separator="; ")
SETTLES_WITHIN_S, RETRY_S = 5.0, 0.25
"""How long to wait for the old content to return, and how often to look: `dvc exp run --queue` changes the checkout for a second."""

State = tuple[int, int, int]
"""The inode, size and modification time of a file, in bytes and nanoseconds. While it is equal, so are the contents."""
RefuseChanges = Callable[[Callable[[], bool]], None]
"""Raises Refusal if an input of the stage has changed. The argument reads the data again, and returns True if they are what the stage has
read before. It is called only if a file was written again with an equal size.
"""


class ChangedInPlace(Unavailable):
    """Raised if other bytes were written into a file of the data, so that a stage which has mapped it may have computed with both."""


def record_nothing(_: Callable[[], bool]) -> None:
    """Allow all changes. This is the RefuseChanges of a stage that is run without DVC: what its inputs are at its end is recorded nowhere."""


@dataclass(frozen=True)
class StageInputs:
    """The parameters of a stage, by dotted key, the digest of each file of its code, and the state of each file of its data.

    `sections` are the sections of params.yaml, and `listed` the dependencies, that dvc.yaml lists for the stage. Data are all dependencies
    but code and the lock file: `source.root`, and in the later stages for example `data/prepared`.

    No digest of the data is taken when the stage begins: that would read all of them twice. A file whose state is equal at the end has not
    been written meanwhile. One that was removed, or has another size, has changed. Any other one, such as a file that DVC has restored with
    another time, may have the same bytes, but also others between two writes. So the stage then reads the data again, and the digests of
    what it has read both times decide.
    """

    stage: str
    sections: tuple[str, ...]
    listed: tuple[str, ...]
    params: Mapping[str, Scalar]
    code: Mapping[str, str]
    data: Mapping[str, State]

    @classmethod
    def read(cls, stage: str, data: Mapping[str, Any], paths: Paths) -> "StageInputs":
        """Return the inputs of `stage`. `data` is the content of `params.yaml`, which may be invalid.

        Raises Refusal if dvc.yaml does not describe the stage.
        """
        sections = tuple(read_stage(stage, paths.top)["params"])
        try:
            listed = tuple(dependencies(stage, data, paths.top))
        except (LookupError, TypeError):  # a parameter that dvc.yaml mentions is missing: validation will say so
            listed = ()
        return cls(stage, sections, listed, params_of(sections, data), code_of(listed, paths), data_of(listed, paths))

    def refuse_changes(self, paths: Paths, reads_the_same: Callable[[], bool]) -> None:
        """Raise Refusal if the parameters or the code differ from those with which the stage began, and still do after SETTLES_WITHIN_S.

        Also raise Unavailable, or ChangedInPlace, if a file of the data is still missing or of another size then, or if `reads_the_same`
        finds that the data have changed where the state of the files does not tell (see RefuseChanges).
        """
        before, deadline = self.data, time.monotonic() + SETTLES_WITHIN_S
        while True:
            problem, now = self.change(paths), data_of(self.listed, paths)
            names = without_ignored([name for name, _ in differences(before, now)], paths)
            # an added file decides nothing by itself: the stage may have downloaded it, or not read it
            certain = [name for name in names if name in before and (name not in now or now[name][1] != before[name][1])]
            if not (problem or certain) or time.monotonic() >= deadline:
                break
            time.sleep(RETRY_S)
        if problem:
            raise Refusal(problem)
        if not names:
            return
        if not certain:
            with suppress(Refusal):
                if reads_the_same() and data_of(self.listed, paths) == now:
                    return
        in_place = [name for name in names if name in before and name in now and now[name][0] == before[name][0]]
        raise (ChangedInPlace if in_place else Unavailable)(
            f"{named(certain or names)}: changed while {self.stage} ran. DVC would store the result under the new data. "
            f"{remedy('data', 'these files')}"
        )

    def change(self, paths: Paths) -> str | None:
        """Return a message about what differs now, with the remedy; None if nothing does."""
        try:
            document = Document.read(paths.params)
        except Refusal as refusal:
            return f"{refusal}. It could be read when {self.stage} began. {remedy('values', str(paths.params))}"
        params, code = params_of(self.sections, document.data), code_of(self.listed, paths)
        if found := differences(self.params, params):
            changes = [f"{key}: was {formatted(was)} when {self.stage} began, and is {formatted(now)} now" for key, (was, now) in found]
            text = f"{named(changes)}. DVC would store the result under the new values. {remedy('values', str(paths.params))}"
            return str(with_line(document, Problem.read(text)))
        if found := differences(self.code, code):
            return f"{named([name for name, _ in found])}: changed while {self.stage} ran. DVC would store the result under the new code. {remedy('code', 'these files')}"
        return None


def refuse_other_source(source: BaseModel, prepared: Path) -> None:
    """Raise Refusal if the data in the folder `prepared` were made with other parameters than `source`, the section of params.yaml.

    Data of earlier versions have no record of their parameters, and are not compared. Missing data are left to the stage.
    """
    from pipeline.core.prepared import read_record  # late: it imports numpy

    if not (prepared / "spec.json").exists():
        return
    now = source.model_dump(mode="json")
    used, now = (flatten({"source": values}) for values in (read_record(prepared).source or now, now))
    if found := differences(used, now):
        changes = [
            f"{key}: was {formatted(before)} when {prepared} was made, and is {formatted(after)} now" for key, (before, after) in found
        ]
        raise Refusal(f"{named(changes)}. Run `dvc repro -f prepare` to make it with the new values")


def params_of(sections: tuple[str, ...], data: Mapping[str, Any]) -> dict[str, Scalar]:
    return flatten({name: data[name] for name in sections if name in data})


def code_of(listed: tuple[str, ...], paths: Paths) -> dict[str, str]:
    """Return the digest of the lock file, and of each `.py` file among the dependencies `listed`, by path. Missing files are left out."""
    names = [*modules(listed, paths.top), paths.lock.relative_to(paths.top).as_posix()]
    return {name: files.digest(paths.top / name) for name in names if (paths.top / name).is_file()}


def data_of(listed: tuple[str, ...], paths: Paths) -> dict[str, State]:
    """Return the state of each file of the data among the dependencies `listed`, by path. Links are followed. Missing files are left out."""
    lock = paths.lock.relative_to(paths.top).as_posix()
    names = [name for name in listed if name != lock and not name.startswith("pipeline/")]
    found: dict[str, State] = {}
    for name in names:
        path = paths.top / name
        if path.is_dir():
            found.update(states(path, set()))
        elif path.is_file():
            found[str(path)] = state_of(path.stat())
    return found


def states(folder: Path | str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, State]]:
    """Yield the path and the state of each file in a folder and its subfolders, except for the folders in `seen`: links may form a circle.

    What cannot be read is left out: the stage says so when it reads it.
    """
    with suppress(OSError):
        status = os.stat(folder)  # noqa: PTH116  # creating a Path for each of a million files would double the time
        identity = (status.st_dev, status.st_ino)
        if identity in seen:
            return
        seen.add(identity)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from states(entry.path, seen)
                else:
                    with suppress(OSError):
                        yield entry.path, state_of(entry.stat())


def state_of(status: os.stat_result) -> State:
    return status.st_ino, status.st_size, status.st_mtime_ns


def without_ignored(names: list[str], paths: Paths) -> list[str]:
    """Return `names` without the files that DVC leaves out of a dependency, because a `.dvcignore` names them."""
    if not names:
        return names
    command = [sys.executable, "-m", "dvc", "check-ignore", "--stdin"]
    text = "".join(f"{name}\n" for name in names)
    answer = subprocess.run(command, input=text, cwd=paths.top, capture_output=True, text=True, errors="surrogateescape", check=False)
    ignored = set(answer.stdout.splitlines())
    return [name for name in names if name not in ignored]


def remedy(what: str, where: str) -> str:
    return f"To keep the old {what}, restore {where} and repeat the command. To use the new {what}, just repeat the command"
