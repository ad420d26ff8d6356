"""Reads earlier results: prepared data in DVC's cache, and the model of a git revision or DVC experiment. Nothing is checked out."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.core import files, untrusted
from pipeline.core.environment import Paths
from pipeline.core.prepared import PreparedRecord
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Refusal
from pipeline.core.spec import MOST_BYTES
from pipeline.core.untrusted import reason, shown
from pipeline.core.yaml_document import parse
from pipeline.evaluate.reports import recorded
from pipeline.tracking import run_description

if TYPE_CHECKING:
    from dvc.api import DVCFileSystem

MOST_FOLDER_BYTES = 1 << 16
"""Upper bound for DVC's list of the files of prepared data, which are about ten. The list of a large dataset is longer, and is not read."""


@contextmanager
def located(folder: Path, top: Path, fits: Callable[[PreparedRecord], bool]) -> Iterator[Path]:
    """Yield `folder`, the prepared data of the checkout `top`, if `fits` returns True for its record.

    Otherwise yield a temporary folder with links to the first data in DVC's cache for which it does, or `folder` if there is none. The
    contents are not verified; `Prepared.open` does this.
    """
    cache = None if fitting(folder / "spec.json", fits) else cache_folder(top)
    for listing in sorted(cache.glob("*/*.dir")) if cache else ():
        try:
            listed = {str(each["relpath"]): str(each["md5"]) for each in json.loads(untrusted.read(listing, MOST_FOLDER_BYTES))}
        except (OSError, ValueError, LookupError, TypeError):
            continue
        objects = {name: listing.parents[1] / md5[:2] / md5[2:] for name, md5 in listed.items() if Path(name).name == name}
        if "spec.json" in objects and fitting(objects["spec.json"], fits):
            with TemporaryDirectory(prefix="prepared-") as links:
                for name, path in objects.items():
                    (Path(links) / name).symlink_to(path.absolute())
                yield Path(links)
            return
    yield folder


def fitting(path: Path, fits: Callable[[PreparedRecord], bool]) -> bool:
    """Return True if the file `path` is a record of prepared data that fits."""
    try:
        return fits(PreparedRecord.model_validate_json(untrusted.read(path, MOST_BYTES)))
    except (OSError, ValueError):
        return False


def cache_folder(top: Path) -> Path | None:
    """Return the folder in which DVC's cache has files by their MD5; None if the checkout `top` has no DVC."""
    from dvc.exceptions import DvcException  # late: DVC takes a second to import
    from dvc.repo import Repo

    try:
        with Repo(str(top)) as repo:
            return Path(repo.cache.local.path)
    except DvcException:
        return None


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
