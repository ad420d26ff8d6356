"""The files that `schema` generates from the parameters are committed and up to date."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.yaml_document import Document
from pipeline.tools.params import reference
from tests.imports import TOP

PRESETS = sorted((TOP / "presets").glob("*.yaml"))


def test_the_schema_and_the_table_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOP)
    for path, text in reference.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is stale: run `python -m pipeline schema`"


def test_the_verb_writes_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    reference.TABLE.write_text("stale words", encoding="utf-8")
    reference.run()
    assert reference.TABLE.read_text(encoding="utf-8").startswith("# Parameters\n")
    assert json.loads(reference.SCHEMA.read_text(encoding="utf-8"))["properties"]


def test_the_table_lists_every_parameter() -> None:
    table = (TOP / reference.TABLE).read_text(encoding="utf-8")
    for preset in PRESETS:
        for section, content in Document.read(preset).data.items():
            for key in [f"{section}.{name}" for name in content] if isinstance(content, dict) else [section]:
                assert f"\n| `{key}`" in table


def test_no_key_is_described_twice_in_the_same_words() -> None:
    rows = re.findall(r"^\| `([\w.]+)`[^|]*\|(.*)", (TOP / reference.TABLE).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))


def test_a_key_without_a_docstring_does_not_get_the_text_of_its_section() -> None:
    own = {"Own": {"properties": {"name": {"const": "own"}, "key": {"type": "number"}}}}
    found = reference.rows(own, "list", {"oneOf": [{"$ref": "#/$defs/Own"}], "description": "Chooses the keys."})
    assert list(found) == [("list.name", "`own`", "Chooses the keys."), ("list.key", "number", "")]


def test_the_schema_takes_every_preset_and_no_key_more() -> None:
    written = json.loads((TOP / reference.SCHEMA).read_text(encoding="utf-8"))
    assert written["additionalProperties"] is False
    for preset in PRESETS:
        data = Document.read(preset).data
        assert set(data) == set(written["properties"]) == set(written["required"])
        for section, content in data.items():
            if isinstance(content, dict):
                definition = definition_of(written, written["properties"][section], content)
                assert set(content) == set(definition["properties"]) == set(definition["required"]), preset
                assert definition["additionalProperties"] is False


def definition_of(whole: dict[str, Any], entry: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a section, which may be a choice by its name, or nullable. Of several forms, it is the first."""
    plain, *_ = [option["$ref"] for option in entry.get("anyOf", [entry]) if "$ref" in option] or [None]
    reference = entry["discriminator"]["mapping"][content["name"]] if "discriminator" in entry else plain
    found: dict[str, Any] = whole["$defs"][reference.rpartition("/")[2]]
    return found
