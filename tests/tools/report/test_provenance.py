"""The commands of a report that reproduce a model."""

from pipeline.core.environment import Paths
from pipeline.core.section import flatten
from pipeline.core.yaml_document import Document
from pipeline.tools.params.command import assigned
from pipeline.tools.report.model import assignments, nearest_preset
from tests.imports import TOP


def test_the_assignments_turn_the_nearest_preset_into_the_parameters() -> None:
    text = (TOP / "presets/digits.yaml").read_text(encoding="utf-8")
    for changes in ([], ["train.patience=3", "optimizer=sgd", "optimizer.momentum=0.5"], ["schedule=cosine", "train.epochs=2"]):
        params = flatten(Document.of(assigned(text, changes), Paths().params).data)
        preset = nearest_preset(params, TOP / "presets")
        assert preset
        assert preset.name == "digits"
        made = assigned(text, assignments(params, preset))
        assert flatten(Document.of(made, Paths().params).data) == params
