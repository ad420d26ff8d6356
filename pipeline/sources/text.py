"""Files of text as a corpus for language models."""

from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.core.raw_dataset import RawDataset
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.inputs import corpus
from pipeline.prepare.inputs.corpus import CorpusSettings, Document
from pipeline.prepare.reading import streams
from pipeline.prepare.reading.archives import Folder
from pipeline.prepare.reading.class_folders import visible_parts
from pipeline.prepare.reading.streams import UTF8, Encoding
from pipeline.prepare.reading.table_formats import is_document


class Settings(CorpusSettings):
    """Reads a corpus. `root` is a file or a folder. The files of a folder and of its subfolders are read in the order of their
    paths, and may have any size.

    Hidden and empty files are left out.
    """

    untrusted: ClassVar[bool] = True
    name: Literal["text"]
    pattern: Annotated[str, Field(min_length=1, max_length=255)]
    """Which files of a folder are read: a pattern for their paths in it, such as `*.txt` or `novels/*`. `*` matches `/` too."""
    divide: Literal["position", "files", "splits"]
    """How the text is divided. `position`: train is its beginning, then valid, then test. `files`: each file belongs to one split, chosen by
    the SHA-256 of its path. `splits`: each file belongs to the split that a word in its path means, such as `wiki.train.tokens`;
    a README or license belongs to none."""
    encoding: Encoding
    """The encoding of the files, by its name for Python, such as `utf-8` or `gbk`. A byte order mark counts more."""

    RECOMMENDED: ClassVar = {
        "root": "data/raw/text",
        "pattern": "*",
        "divide": "position",
        "encoding": UTF8,
        "tokenizer": "character",
        "vocabulary": 200,
        "min_count": 1,
        "valid": 0.05,
        "test": 0.05,
    }
    ADDED: ClassVar = {"encoding": UTF8}

    def open(self, *, workers: int) -> RawDataset:
        documents = list(read(self.root, self.pattern, self.encoding))
        if not documents:
            problem = f"{self.root} has no file with text whose path matches `{shown(self.pattern)}`"
            raise Refusal(f"source.pattern: {problem}: change source.pattern, or add files")
        if self.divide == "splits":  # a README belongs to none
            documents = [document for document in documents if not is_document(document.name)]
        ways = {"position": corpus.divide_by_position, "files": corpus.divide_by_name, "splits": corpus.divide_by_split}
        return self.dataset(ways[self.divide](documents, valid=self.valid, test=self.test), workers=workers)


def read(root: Path, pattern: str, encoding: str) -> Iterator[Document]:
    """Yield a document for each file with text. `root` is the only file, or a folder whose files are read if their paths match `pattern`.

    Empty files are left out, and so are the hidden files of a folder. Raises Refusal if a file cannot be read or is not text in `encoding`.
    """
    names = Folder(root).listing().files if root.is_dir() else [""]
    for name in names:
        if not name or (visible_parts(name) and fnmatch(name, pattern)):
            parts = partial(text_of, root / name, encoding)
            if num_characters := sum(map(len, parts())):
                yield Document(name or root.name, 0, num_characters, parts)


def text_of(path: Path, encoding: str) -> Iterator[str]:
    return (block.text for block in streams.text_blocks(path, encoding))
