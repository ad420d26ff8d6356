"""Reads the result of a git revision or DVC experiment from git and from DVC's cache. Nothing is checked out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.paths import Paths
from pipeline.core.prepared import PreparedRecord
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown
from pipeline.core.yaml_document import parse
from pipeline.evaluate.reports import recorded
from pipeline.tracking import run_description

if TYPE_CHECKING:
    from dvc.api import DVCFileSystem


@dataclass(frozen=True)
class Revision:
    """The files of a revision. `model` is a temporary copy of its model file, and `params` the sections of its params.yaml.

    `splits` are the digests of its prepared splits by name; {} if the prepared data is not in DVC's cache. `evaluated` and `trained` are
    the contents of metrics/evaluate.json and metrics/train.json; {} if the revision lacks them.
    """

    model: Path
    params: Mapping[str, Any]
    splits: Mapping[str, str]
    evaluated: Mapping[str, Any]
    trained: Mapping[str, Any]

    def metrics(self, digest: str) -> dict[str, float]:
        """Return the metrics of the model file with the SHA-256 `digest`; {} if the revision has those of another file.

        A commit made by hand can combine a model file with the metrics of another.
        """
        if self.evaluated.get(recorded.MODEL) != digest[: recorded.DIGITS]:
            return {}
        valid = {f"{VALID}/{name}": float(value) for name, value in self.trained.get(VALID, {}).items()}
        return run_description.test_metrics(self.evaluated["test"]) | valid


def resolved(name: str, top: Path) -> str | None:
    """Return the commit of a git revision or DVC experiment; None if there is none of this name, or no git repository with DVC."""
    from dvc.exceptions import DvcException  # late: DVC takes a second to import
    from dvc.repo import Repo
    from dvc.scm import NoSCMError, RevError, resolve_rev
    from scmrepo.exceptions import SCMError

    try:
        with Repo(str(top)) as repo:
            return str(resolve_rev(repo.scm, name))
    except (DvcException, NoSCMError, RevError, SCMError, AssertionError):  # DVC asserts that there is a git repository
        return None


def fetch(name: str, commit: str, paths: Paths, folder: Path) -> Revision:
    """Read the revision `commit`, and copy its model file to `folder`. `name` is the user's name for it.

    Raises Refusal if the revision has no dvc.lock or params.yaml, or if neither DVC's cache nor a remote has the model file.
    """
    from dvc.api import DVCFileSystem

    tree, top = DVCFileSystem(str(paths.top), rev=commit), Paths()
    if not tree.exists(top.dvc_lock.as_posix()):
        raise Refusal(f"{shown(name)}: this revision has no dvc.lock, so it names no model: run `dvc repro`, and commit dvc.lock")
    copy = folder / top.model.name
    try:
        params, _ = parse(tree.read_text(top.params.as_posix()))
        tree.get_file(top.model.as_posix(), str(copy))
    except Exception as error:  # git, DVC and each kind of remote raise their own types
        raise Refusal(
            f"{shown(name)}: could not read the model of this revision ({reason(error)}): run `dvc pull {top.model}` in a clone of it, or "
            "`dvc repro` if no remote has it"
        ) from None
    spec, results = top.prepared / "spec.json", top.metrics
    record = read_json(tree, spec)
    return Revision(
        model=copy,
        params=params,
        splits=digests_of(record) if record else {},
        evaluated=read_json(tree, results / "evaluate.json"),
        trained=read_json(tree, results / "train.json"),
    )


def read_json(tree: "DVCFileSystem", path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of the revision; {} if the file is missing or damaged, or is in no cache and no remote."""
    try:
        content = json.loads(tree.read_text(path.as_posix()))
    except Exception:  # git, DVC and each kind of remote raise their own types
        return {}
    return content if isinstance(content, dict) else {}


def digests_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each split in the content of `data/prepared/spec.json`, as a run records it; {} if it has another format."""
    try:
        splits = PreparedRecord.model_validate(record, strict=False).splits
    except ValueError:
        return {}
    return {name: files.digest_of([split.inputs_digest, split.targets_digest]) for name, split in splits.items()}
