"""The identity of a search: what all of its trials have in common, and what must not change while it runs."""

from typing import Any

from pipeline.data.prepared import read_record
from pipeline.flatten import flatten
from pipeline.io import files
from pipeline.params.yaml_document import Document
from pipeline.paths import Paths
from pipeline.runtime import run_identity
from pipeline.search.settings import Choices, Search


def identity_of(search: Search, params: Document, paths: Paths, *, metric: str, direction: str) -> dict[str, Any]:
    """Return what all trials of `search` have in common, by the names that messages show. Data and code are read at each call.

    `params` is `params.yaml` without the values of a trial.
    """
    settings, document = search.settings, params.data
    code = {}
    for name in model_names(search, params):
        listed = run_identity.dependencies("train", {**document, "model": {**document["model"], "name": name}}, paths.top)
        code[f"the code of {name}"] = run_identity.code_digest(listed, paths.top)
    fixed = {key: value for key, value in flatten(document).items() if not is_searched(search, key)}
    return {
        **{f"space.{key}": entry.model_dump(mode="json") for key, entry in search.space.items()},
        "metric": metric,
        "direction": direction,
        "pruner": settings.pruner,
        "seed": settings.seed,
        **{f"{params.path} {key}": value for key, value in fixed.items() if key.partition(".")[0] != "evaluate"},
        "data/prepared": files.digest_of(read_record(paths.prepared).model_dump(mode="json")),
        paths.lock.name: files.digest(paths.lock),
        **code,
    }


def is_searched(search: Search, key: str) -> bool:
    return any(key == searched or key.startswith(f"{searched}.") for searched in search.space)


def model_names(search: Search, params: Document) -> list[str]:
    """Return the value of `model.name` in every trial, or all of its choices."""
    chosen = search.space.get("model") or search.space.get("model.name")
    return [str(name) for name in chosen.choices] if isinstance(chosen, Choices) else [params.data["model"]["name"]]
