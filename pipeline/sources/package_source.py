"""The Python source of an installed package: a real corpus without a download, whose bytes the lock file decides."""

import base64
import csv
import hashlib
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.core import untrusted
from pipeline.core.environment import Paths
from pipeline.core.raw_dataset import RawDataset
from pipeline.core.refusal import Refusal
from pipeline.prepare.inputs import corpus
from pipeline.prepare.inputs.corpus import CorpusSettings, Document
from pipeline.prepare.reading import streams

MOST_BYTES = 256 * 2**20
REMEDY = "install what the lock pins: `uv pip sync requirements.lock`, or `uv pip install --reinstall` for this package"


class Settings(CorpusSettings):
    """Reads the `.py` files of a package that `requirements.lock` pins. Each file belongs to one split, chosen by the SHA-256 of its path.

    `root` is not read: it must be `data/README.md`, because DVC requires a path that exists. The whole text is held in memory.
    """

    embedded: ClassVar[bool] = True
    name: Literal["package_source"]
    package: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")]
    """The name of the package, such as `sympy`, which PyTorch needs: 26 MB."""
    pattern: Annotated[str, Field(min_length=1, max_length=255)]
    """Which of its files are read: a pattern for their paths, such as `*`, or `sympy/core/*` for a small part. `*` matches `/` too."""

    RECOMMENDED: ClassVar = {
        "root": "data/README.md",
        "package": "sympy",
        "pattern": "sympy/core/*",
        "tokenizer": "bpe",
        "vocabulary": 2048,
        "valid": 0.05,
        "test": 0.05,
    }

    def open(self, *, workers: int) -> RawDataset:
        package = locked(self.package)
        documents = list(read(package, self.package, self.pattern))
        if not documents:
            problem = f"{self.package} has no Python file whose path matches `{untrusted.shown(self.pattern)}`"
            raise Refusal(f"source.pattern: {problem}: write `*` for all its files")
        return self.dataset(corpus.divide_by_name(documents, valid=self.valid, test=self.test), workers=workers)


def locked(name: str) -> Distribution:
    """Return the installed package `name`, after it was compared with `requirements.lock`.

    Raises Refusal if `requirements.lock` does not pin the package by a hash, if the package is not installed, if its version is not the
    pinned one, or if it was installed from a folder or a URL.
    """
    words = re.split(r"[-_.]+", name.lower())
    pinned = re.search(rf"^{'-'.join(words)}==([^\s;\\]+)[^\n]*\\\n\s*--hash=", Paths().lock.read_text(encoding="utf-8"), re.MULTILINE)
    if not pinned:
        raise Refusal(f"source.package: requirements.lock pins no package {name} by its hash: choose one that it pins, such as sympy")
    try:
        package = distribution(name)
    except PackageNotFoundError:
        raise Refusal(f"source.package: {name} is not installed: {REMEDY}") from None
    if package.version != pinned[1]:
        raise Refusal(f"source.package: {name} {package.version} is installed, but requirements.lock pins {pinned[1]}: {REMEDY}")
    if package.read_text("direct_url.json"):  # an editable package, or one from a folder or address
        raise Refusal(f"source.package: {name} was installed from a folder or a URL, not as requirements.lock pins it: {REMEDY}")
    return package


def read(package: Distribution, name: str, pattern: str) -> Iterator[Document]:
    """Yield the Python files of the package `name` whose paths match `pattern`, in the order of their paths. Empty files are left out.

    Raises Refusal if a file cannot be read, if its SHA-256 is not the one that the installer recorded, or if it is not UTF-8.
    """
    # the path of each file and its hash, `sha256=DIGEST` in base64, which is empty if the installer recorded none
    rows = csv.reader((package.read_text("RECORD") or "").splitlines())
    for path, recorded in sorted((row[0], row[1]) for row in rows if len(row) == 3):
        if path.endswith(".py") and not path.startswith(("/", "..")) and fnmatch(path, pattern):
            place = f"source.package: {name}: {untrusted.shown(path)}"
            try:
                content = untrusted.read(Path(str(package.locate_file(path))), MOST_BYTES)
            except OSError as error:
                raise Refusal(f"{place}: cannot be read ({error.strerror}): {REMEDY}") from None
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            if recorded != f"sha256={digest}":
                raise Refusal(f"{place}: does not have the SHA-256 that was recorded when the package was installed: {REMEDY}")
            if content:
                yield Document.of(path, streams.decoded(content, streams.UTF8, f"source.root: {untrusted.shown(path)}"))
