"""The settings of sources, as a parameter file has them."""

import json
from pathlib import Path
from typing import Any

from pipeline.core.params import from_data
from pipeline.prepare.params import PrepareParams, SourceSettings


def params(kind: type[SourceSettings], root: Path | str, **changes: object) -> PrepareParams:
    """Return the recommended values of a source, with `changes`. Splits are not drawn unless these give a share for them."""
    name = kind.model_fields["name"].annotation.__args__[0]
    recommended = kind.recommended(name=name, task=kind.task_of(changes))
    common = {"name": name, "root": root, "valid": 0.0, "test": 0.0, "seed": 1, "folds": None, "fold": 0}
    return from_data({"source": json.loads(json.dumps(recommended | common | changes, default=str))}, PrepareParams, "test")


def source(kind: type[SourceSettings], root: Path, **changes: object) -> Any:
    return params(kind, root, **changes).source
