"""Finds prepared data on this machine: that of the checkout, or earlier data in DVC's cache, also while another `dvc repro` runs."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.core import untrusted
from pipeline.core.prepared import PreparedRecord
from pipeline.core.spec import MOST_BYTES

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
            files = {str(each["relpath"]): str(each["md5"]) for each in json.loads(untrusted.read(listing, MOST_FOLDER_BYTES))}
        except (OSError, ValueError, LookupError, TypeError):
            continue
        objects = {name: listing.parents[1] / md5[:2] / md5[2:] for name, md5 in files.items() if Path(name).name == name}
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
