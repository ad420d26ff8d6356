"""`make schema`: write the reference of the parameters: params.schema.json for editors, and docs/parameters.md for users."""

import json
from pathlib import Path
from typing import Annotated, Any, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from pipeline.core import files
from pipeline.core.params import SectionTypes, section_types
from pipeline.core.section import formatted
from pipeline.evaluate.params import EvaluateParams
from pipeline.prepare.params import PrepareParams
from pipeline.runs.table import markdown
from pipeline.train.params import TrainParams

STAGE_PARAMS: dict[str, type[BaseModel]] = {"prepare": PrepareParams, "train": TrainParams, "evaluate": EvaluateParams}


def section_fields() -> dict[str, FieldInfo]:
    """Return the pydantic field of each section of `params.yaml` by its name."""
    return {name: field for params in STAGE_PARAMS.values() for name, field in params.model_fields.items()}


def definition(section: str, field: FieldInfo) -> tuple[Any, FieldInfo]:
    """Return the definition of a section for pydantic's `create_model`: the pair (type, FieldInfo). `field` is its pydantic field.

    The type of a section with variants is the union of the classes of all variants, discriminated by `name`.
    """
    types = section_types(section, field)
    if types is None:
        return with_lists(field.annotation), field
    return variants(types), Field(discriminator="name", description=field.description)


def variants(types: SectionTypes) -> Any:
    """Return the union of the classes of all variants."""
    return Union[tuple(map(types.settings, types.names))]  # noqa: UP007  # `|` cannot take a tuple of types


def with_lists(annotation: Any) -> Any:
    """Return the type `annotation` of a section, in which the items of a list of sections with variants are the union of all variants."""
    kinds: list[Any] = []
    for kind in get_args(annotation) or (annotation,):
        lists = {key: types for key, member in getattr(kind, "model_fields", {}).items() if (types := section_types(key, member))}
        fields: dict[str, Any] = {
            key: (tuple[Annotated[variants(types), Field(discriminator="name")], ...], kind.model_fields[key])  # type: ignore[misc]  # a type that is made from the registry
            for key, types in lists.items()
        }
        kinds.append(create_model(kind.__name__, __base__=kind, **fields) if fields else kind)
    return Union[tuple(kinds)]  # noqa: UP007  # `|` cannot take a tuple of types


def schema() -> dict[str, Any]:
    """Return the JSON schema of `params.yaml` for editors, with the settings of every model and source. Imports all their modules."""
    fields: dict[str, Any] = {name: definition(name, field) for name, field in section_fields().items()}
    whole = create_model("Parameters", __config__=ConfigDict(extra="forbid"), **fields)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole.model_json_schema()}


def tables() -> str:
    """Return the reference as Markdown: for each section of `params.yaml` a heading and a table with one row for each key."""
    whole = schema()
    parts = []
    for section, entry in whole["properties"].items():
        cells = [
            (f"`{key}`" + (f" ({', '.join(variants)})" if variants else ""), value, meaning)
            for (key, value, meaning), variants in rows(whole["$defs"], section, entry).items()
        ]
        lines = [tuple(" ".join(cell.replace("|", "\\|").split()) for cell in row) for row in cells]
        parts.append(f"## `{section}`\n\n{markdown(('key', 'value', 'meaning'), lines)}\n")
    return "\n".join(parts)


def rows(definitions: dict[str, Any], section: str, entry: dict[str, Any]) -> dict[tuple[str, str, str], list[str]]:
    """Return (key, values, meaning) of each key of a section, and the variants that have it: [] if all do.

    `entry` is the JSON schema of the section, and `definitions` has those of the variants to which it refers.
    """
    options = [option for option in entry.get("oneOf", entry.get("anyOf", [entry])) if "$ref" in option]
    members = [definitions[option["$ref"].rpartition("/")[2]]["properties"] for option in options]
    common = set.intersection(*map(set, members)) if members else set()
    # the values of the key `name` of a variant are one, or several that share a class
    names = [member["name"].get("enum", [member["name"].get("const")]) if "name" in member else [] for member in members]
    found: dict[tuple[str, str, str], list[str]] = {}
    if not members or "anyOf" in entry:
        found[section, "section or `null`" if members else values(entry), entry.get("description", "")] = []
    for variants, member in zip(names, members, strict=True):
        for key, field in member.items():
            value = ", ".join(f"`{name}`" for each in names for name in each) if key == "name" else values(field)
            meaning = field.get("description") or (entry.get("description", "") if key == "name" else "")
            row = (f"{section}.{key}", value, meaning)
            if key not in common:
                found.setdefault(row, []).extend(variants)
            elif member is members[0]:
                found[row] = []
            if "oneOf" in field.get("items", {}):
                found |= rows(definitions, f"{section}.{key}", {**field["items"], "description": "Chooses the item's keys."})
    return found


def values(field: dict[str, Any]) -> str:
    """Return a short description of the values that a key may have: their type and bounds. `field` is the JSON schema of the key."""
    if "anyOf" in field:
        return " or ".join(values(option) for option in field["anyOf"])
    if "$ref" in field or field.get("type") == "object":
        return "section"
    if field.get("type") == "array" and field.get("items", {}).keys() & {"$ref", "oneOf"}:
        return "list of sections"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{formatted(value)}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return f"list, each: {values(field['items'])}" if "items" in field else f"({'; '.join(map(values, field['prefixItems']))})"
    kinds = {"string": "text", "number": "number", "integer": "whole number", "boolean": "`true` or `false`", "null": "`null`"}
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    bounds = [f"{sign} {field[name]:g}" for name, sign in signs.items() if name in field]
    return f"{kinds[field['type']]} {', '.join(bounds)}".rstrip()


SCHEMA, TABLE = Path("params.schema.json"), Path("docs/parameters.md")
HEADER = """\
# Parameters

Everything that decides a result is in `params.yaml`; where and how a run happens is in the environment ([environment.md](environment.md)).
[training.md](training.md) explains how the parameters of a training work together, [changing-parameters.md](changing-parameters.md) how a command
changes them. A key with names in brackets belongs to these sources, models, optimizers, schedules or tasks only. This page is written by `make schema`.

"""


def run() -> None:
    for path, text in generated().items():
        files.write_text(path, text)


def generated() -> dict[Path, str]:
    """Return the contents of the two files that `make schema` writes, by the path of each file."""
    return {SCHEMA: json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", TABLE: HEADER + tables()}
