"""Registries: the modules of a package are the choices, and only the chosen one is imported."""

import re
import sys
from pathlib import Path

import pytest
import torch

from pipeline.core.refusal import Refusal
from pipeline.core.registry import LOSSES, MODELS, SOURCES, Registry
from tests.imports import TOP
from tests.specs import image_spec


def test_the_names_are_the_modules() -> None:
    for registry, folder in ((MODELS, "models"), (LOSSES, "losses"), (SOURCES, "sources")):
        modules = {path.stem for path in (TOP / "pipeline" / folder).glob("*.py")} - {"__init__"}
        assert set(registry.names) == modules
        for name in registry.names:
            assert registry.settings(name).model_fields["name"].annotation.__args__ == (name,)


def test_nothing_but_a_member_is_imported() -> None:
    before = set(sys.modules)
    for name in ("__init__", "os", "mlp.nn"):
        with pytest.raises(KeyError):
            MODELS.settings(name)
    assert set(sys.modules) == before


def package(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    (folder / name).mkdir()
    for module, text in {"__init__": "", **modules}.items():
        (folder / name / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)


def test_a_new_file_is_a_new_choice_and_only_the_chosen_one_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "park", monkeypatch, wide="class Settings: pass", deep="")
    registry = Registry("park", "animal")
    assert registry.names == ("deep", "wide")
    assert registry.settings("wide").__module__ == "park.wide"
    assert "park.deep" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Setings: pass", "zoo/wide.py: has no class `Settings`: define it, as docs/extending.md explains"),
        (
            "from typing import Literal\nfrom pipeline.inference.params import ModelSettings\nclass Settings(ModelSettings):\n    name: Literal['wde']",
            'zoo/wide.py: its class `Settings` has another name (wde): write `name: Literal["wide"]`',
        ),
        (
            "from pipeline.inference.params import ModelSettings\nclass Settings(ModelSettings): pass",
            'zoo/wide.py: its class `Settings` has no name of its own: write `name: Literal["wide"]`',
        ),
    ],
)
def test_a_file_that_is_no_choice_is_named(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "zoo", monkeypatch, wide=text)
    for name in ("zoo", "zoo.wide"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(Refusal, match=f"^{re.escape(message)}$"):
        Registry("zoo", "animal").settings("wide")


def test_the_readmes_example_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(
        r"```python\n(.*?class Settings\(ModelSettings\).*?)```", (TOP / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    package(tmp_path, "garden", monkeypatch, wide=example)
    settings = Registry("garden", "model").settings("wide")(name="wide", weights=None, width=7)
    spec = image_spec(shape=(4, 3, 2), classes=("a", "b"), mean=(0.5, 0.5), std=(0.5, 0.5))
    assert settings.build(spec)(torch.zeros(5, 2, 4, 3)).shape == (5, 2)
