"""The sections that the stage `prepare` may read."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pipeline.params.section import Section
from pipeline.params.source import SourceSettings
from pipeline.registry import SOURCES


class PrepareParams(Section):
    source: Annotated[SourceSettings, SOURCES]
    """The dataset or format: a module of `pipeline/sources/`."""


def data_name(params: Mapping[str, Any]) -> str:
    """Return a name for the data of a run: the stem of `source.root` if the user's own files are read, else `source.name`.

    `params` are the parameters by dotted key. They need not be valid. The name is "" if they do not have the source.
    """
    name, root = str(params.get("source.name") or ""), str(params.get("source.root") or "")
    own = name in SOURCES.names and SOURCES.settings(name).untrusted
    return (re.sub(r"(\.tar)?\.[A-Za-z]\w{0,5}$", "", PurePath(root).name) if own else "") or name
