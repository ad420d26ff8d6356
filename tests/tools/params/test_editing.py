"""Editing the text of params.yaml: only what is assigned to changes, and nothing invalid comes out."""

import json
import re
from difflib import unified_diff
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.inference.params import ModelSettings
from pipeline.tools.params.editing import edited, types_of
from tests.imports import TOP

TEXT = (TOP / "presets/digits.yaml").read_text(encoding="utf-8")
OWN = TEXT.replace("  name: digits\n", "  name: arrays\n  duplicates: keep\n")
"""The same with a source whose root may be any."""
MODEL = "model:\n  name: convnet\n  weights: null\n  width: 16\n  dropout: 0.1\n"
PRESETS = sorted(path.stem for path in (TOP / "presets").glob("*.yaml"))


def data(text: str) -> dict[str, Any]:
    return Document.of(text, Path("params.yaml")).data


def differences(text: str, *assignments: str) -> list[str]:
    """Return the lines that the assignments remove (-) and add (+)."""
    lines = unified_diff(text.splitlines(), edited(text, assignments).splitlines(), n=0, lineterm="")
    return [line for line in [*lines][2:] if not line.startswith("@@")]


def refusal(text: str, *assignments: str) -> str:
    with pytest.raises(Refusal) as refused:
        edited(text, assignments)
    return str(refused.value)


def test_a_value_is_replaced_as_it_was_given_and_the_comment_beside_it_stays() -> None:
    assert differences(TEXT, "optimizer.learning_rate=1e-3", "augment.flip=random", "train.freeze=[a.*, 'b, c']") == [
        "-  learning_rate: 3e-3",
        "+  learning_rate: 1e-3",
        "-  flip: none # a mirrored digit is not a digit",
        "+  flip: random # a mirrored digit is not a digit",
        "-  freeze: []",
        "+  freeze: [a.*, 'b, c']",
    ]


def test_what_is_not_assigned_keeps_its_bytes_in_every_preset() -> None:
    for preset in PRESETS:
        text = (TOP / f"presets/{preset}.yaml").read_text(encoding="utf-8")
        assert text.replace("\nseed: 1\n", "\nseed: 314\n") == edited(text, ["seed=314"]) != text


@pytest.mark.parametrize("assignments", [["model=mlp", "model.width=64"], ["model.width=64", "model=mlp"]])
def test_single_keys_are_assigned_after_whole_sections_in_any_order(assignments: list[str]) -> None:
    assert data(edited(TEXT, assignments))["model"] == {"name": "mlp", "weights": None, "width": 64, "depth": 2, "dropout": 0.2}


def test_the_present_member_gets_its_recommended_values_and_keeps_its_comments() -> None:
    text = TEXT.replace("  width: 16\n", "  width: 8 # narrow\n  # a remark\n")
    assert differences(text, "model=convnet") == ["-  width: 8 # narrow", "+  width: 16 # narrow"]
    in_another_order = text.replace("  name: convnet\n", "").replace("  dropout: 0.1\n", "  dropout: 0.1\n  name: convnet\n")
    assert differences(in_another_order, "model=convnet") == ["-  width: 8 # narrow", "+  width: 16 # narrow"]


def test_the_recommended_values_of_a_text_model_depend_on_the_task() -> None:
    texts = (TOP / "presets/trec-lstm.yaml").read_text(encoding="utf-8")
    assert data(edited(texts, ["model=transformer"]))["model"]["pooling"] == "mean"
    corpus = (TOP / "presets/shakespeare-lstm.yaml").read_text(encoding="utf-8")
    assert data(edited(corpus, ["model=transformer"]))["model"]["pooling"] is None
    assert data(edited(texts, ["model=transformer", "source=text", "evaluate=language_modeling"]))["model"]["pooling"] is None


@pytest.mark.parametrize(
    ("section", "after"),
    [
        ("model: {name: convnet, weights: null, width: 16, dropout: 0.1} # mine\n", "model: # mine\n  name: mlp\n"),
        (
            "model: # mine\n  # more\n  name: convnet\n  weights: null\n  width: 16\n  dropout: 0.1\n",
            "model: # mine\n  # more\n  name: mlp\n",
        ),
        ("model:\n    name:   convnet\n    'weights':\n    width: 16\n    dropout: 0.1\n# mine\n", "model:\n  name: mlp\n"),
        ("model:\n  {\n    name: convnet, weights: null,\n    width: 16, dropout: 0.1,\n  } # mine\n", "model: # mine\n  name: mlp\n"),
    ],
)
def test_sections_of_any_style_are_replaced(section: str, after: str) -> None:
    text = TEXT.replace(MODEL, section)
    for base in (text, text.replace("\n", "\r\n")):
        result = edited(base, ["model=mlp", "model.width=9"])
        assert after in result.replace("\r\n", "\n")
        assert "# mine" in result
        assert data(result) == {**data(TEXT), "model": {"name": "mlp", "weights": None, "width": 9, "depth": 2, "dropout": 0.2}}


@pytest.mark.parametrize(
    ("old", "assignment", "new"),
    [
        ("  width: 16\n", "model.width=32", "  width: 32\n"),
        ("  weights: null\n", "model.weights=a.safetensors", "  weights: a.safetensors\n"),
        ("  weights:\n", "model.weights=a.safetensors", "  weights: a.safetensors\n"),
        ("  weights: # none\n", "model.weights=a.safetensors", "  weights: a.safetensors # none\n"),
        ("  weights: 'b.safetensors'\n", "model.weights=", "  weights: null\n"),
        ("  weights: \"b.safetensors\"  # mine\n", "model.weights=~", "  weights: null # mine\n"),
        ("  groups:\n    - patterns: ['5.*']\n      lr_scale: 5.0\n      weight_decay: null # end\n", "optimizer.groups=[]", "  groups: []\n  beta1"),
        ("  groups: # why\n  - {patterns: [a], lr_scale: 5.0, weight_decay: 0}\n", "optimizer.groups.0.lr_scale=2", "{patterns: [a], lr_scale: 2, weight_decay: 0}\n"),
        ("  groups: [{patterns: [a], lr_scale: 5.0}]\n", "optimizer.groups.0.weight_decay=0", "lr_scale: 5.0, weight_decay: 0}]\n"),
        ("  root: data/README.md # not read\n", "source.root='data/a # b'", "  root: 'data/a # b' # not read\n"),
        ("  groups: [{patterns: [a], lr_scale: 5.0, weight_decay: null}]\n", "optimizer.groups.0.patterns.0=b, c", "[{patterns: ['b, c'], lr_scale: 5.0"),
        ("  root: >-\n    data/a\n    b\n", "source.root=data/c", "  root: >-\n    data/c\n"),
        ("  epsilon: 1e-8\n", "optimizer.epsilon=7.887233511355132e-10", "  epsilon: 7.887233511355132e-10\n"),
    ],
)  # fmt: skip
def test_a_value_of_any_style_is_replaced(old: str, assignment: str, new: str) -> None:
    key = old.split(":", maxsplit=1)[0]
    line = next(line for line in OWN.splitlines(keepends=True) if line.startswith(f"{key}:"))
    assert new in edited(OWN.replace(line, old, 1), [assignment])


def test_a_missing_key_and_a_missing_section_are_added() -> None:
    assert differences(TEXT.replace("  dropout: 0.1\n", "").replace("  width: 16\n", "  width: 16 # w\n"), "model.dropout=0.3") == [
        "+  dropout: 0.3"
    ]
    assert differences(TEXT.replace("\nseed: 1\n", "\n"), "seed=4") == ["+seed: 4"]
    assert data(edited(TEXT.replace(MODEL, ""), ["model=mlp"]))["model"]["name"] == "mlp"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.width=x", 'model.width=x: should be a whole number, not "x"'),
        ("model.widht=8", "model.widht=8: is not a key here: did you mean `width`?"),
        ("augment.contrast=1e400", "augment.contrast=1e400: should be a finite number, not Infinity"),
        ("train.freeze=[1e309]", "train.freeze=[1e309]: train.freeze.0: should be text, not Infinity"),
        ("modle=mlp", "modle=mlp: modle is not a section: did you mean `model`?"),
        ("epochs=3", "epochs=3: epochs is not a section: did you mean `train.epochs`?"),
        ("dropout=0.2", "dropout=0.2: dropout is not a section: did you mean `model.dropout`?"),
        (
            "model=org/bert-base",
            'there is no model "org/bert-base": for a pretrained model write model=transformers:org/bert-base; choose one of',
        ),
        ("model=resnet50d", "for a pretrained model write model=timm:resnet50d; did you mean `resnet`?"),
        ("model=mlpp", 'model=mlpp: there is no model "mlpp": did you mean `mlp`?'),
        ("model=null", "model=null: should be a section with keys of its own, not null"),
        ("optimizer.name=sgd", "optimizer.name=sgd: sgd has other keys: write `optimizer=sgd`, which replaces all of them"),
        ("optimizer.learning_rate='1e-3'", "optimizer.learning_rate='1e-3': should be a number, not \"1e-3\""),
        ("train.batch_size=32", "params.yaml:58: train.micro_batch_size: is larger than train.batch_size: write at most 32"),
        ("train.steps=5", "train.steps=5: set either `epochs` or `steps`, and write null for the other"),
        ("train.epochs=null", "train.steps: set either `epochs` or `steps`, and write null for the other"),
        ("train", "train: is not of the form KEY=VALUE"),
        ("=3", "=3: is not of the form KEY=VALUE"),
        ("source.root=a: b", "source.root=a: b: is not valid YAML:"),
        ("source.root=a\nb: 3", "source.root=a\\nb: 3: is not a single value"),
        ("optimizer.groups.²=3", "optimizer.groups.²=3: there is no `²`, because its parent is a list of 0"),
        (f"source.root={'a' * 20_000}", "params.yaml: would be larger than 20000 bytes: write shorter values"),
        ("mod\udce4=3", "is not a section: choose one of"),
        ("seed.x=3", "seed.x=3: there is no `x`, because its parent is 1"),
        ("optimizer.groups.0.lr_scale=3", "optimizer.groups.0.lr_scale=3: there is no `0`, because its parent is a list of 0"),
    ],
)
def test_a_wrong_assignment_is_refused_and_named(assignment: str, message: str) -> None:
    assert message in refusal(TEXT, assignment)


def test_text_that_is_no_valid_yaml_gets_the_quotes_that_it_needs() -> None:
    assert refusal(OWN, "source.root=*").endswith("if it is text, write it in quotes: 'source.root=\"*\"'")
    assert differences(OWN, 'source.root="*"')[1] == '+  root: "*" # not read: the digits are embedded, but DVC needs a path that exists'


def test_all_errors_are_reported_and_those_of_the_file_with_their_lines() -> None:
    text = TEXT.replace("\nseed: 1\n", "\nseed: -1\n")
    assert [line.split(": should")[0] for line in refusal(text, "model.width=x", "train.epochs=x").splitlines()] == [
        "params.yaml:3: seed",
        "train.epochs=x",
    ], "the section `model` needs torch and is validated when all others are valid"
    assert data(edited(text, ["seed=2"]))["seed"] == 2, "an invalid file can be mended"
    assert refusal(TEXT, "model=mlp", "model.width=x") == 'model.width=x: should be a whole number, not "x"'


@pytest.mark.parametrize(
    ("old", "new", "assignment"),
    [
        ("seed: 1\n", "seed: &one 1\nplugins: *one\n", "seed=2"),
        ("  batch_size: 64\n  micro_batch_size: 64\n", "  batch_size: &size 64\n  micro_batch_size: *size\n", "train.micro_batch_size=32"),
        ("model:\n", "model: &model\n", "model=mlp"),
        ("optimizer:\n", "optimizer: &optimizer\n", "optimizer.beta1=0.8"),
    ],
)
def test_a_value_with_an_anchor_is_refused_because_an_alias_may_share_it(old: str, new: str, assignment: str) -> None:
    text = TEXT.replace(old, new, 1)
    assert text != TEXT
    assert re.search(r"has the anchor `&\w+` in params.yaml: remove the anchor, or edit the file$", refusal(text, assignment))


@pytest.mark.parametrize(("section", "other"), [("train", "evaluate"), ("evaluate", "train")])
def test_a_value_that_is_merged_into_two_sections_is_changed_in_one(section: str, other: str) -> None:
    text = TEXT.replace("  batch_size: 64\n", "  <<: &sizes {batch_size: 64}\n").replace("  batch_size: 256\n", "  <<: *sizes\n")
    after = data(edited(text, [f"{section}.batch_size=128"]))
    assert (after[section]["batch_size"], after[other]["batch_size"]) == (128, 64)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "seed: 1\n",
            "seed:  # of the parameters\n  1\n\n",
            "params.yaml: has a comment between a key and its value, where it would be lost: write the value on the line of its key",
        ),
        (
            "  freeze: []\n",
            "  freeze: [ # one\n    'a # b', # two\n    'c', ]\n",
            "params.yaml:71: the comment # one would be lost: move it to a line of its own above the key",
        ),
        (
            "seed: 1\n",
            "---\nseed: 1\n",
            "params.yaml:1: the comment # yaml-language-server: $schema=../params.schema.json would be lost: remove the line ---",
        ),
    ],
)
def test_a_comment_that_would_be_lost_is_refused(old: str, new: str, message: str) -> None:
    assert refusal(TEXT.replace(old, new, 1), "train.epochs=3") == message


def test_numbers_keep_all_digits_when_another_value_changes() -> None:
    for number in ("7.887233511355132e-10", "7.984389405774261e-05", "1.5E+300", "+.5e-3", "1_0.5", "3."):
        text = TEXT.replace("1e-8", number)
        assert data(edited(text, ["seed=2"]))["optimizer"] == data(text)["optimizer"]


@pytest.mark.parametrize(
    ("assignment", "last"), [("model=mlp", "  dropout: 0.2"), ("model.weights=a.safetensors", "  weights: a.safetensors")]
)
def test_the_comments_below_a_section_stay_below_it(assignment: str, last: str) -> None:
    text = TEXT.replace("  weights: null\n", "").replace("  dropout: 0.1\n", "  dropout: 0.1 # of dropout\n  # below\n")
    assert f"{last}\n  # below\n\nloss:" in edited(text, [assignment])
    flips = "  flip: none # a mirrored digit is not a digit\n"
    text = TEXT.replace(flips, "").replace("  transforms: []\n", f"  transforms: []\n{flips}# below\n")
    assert "\naugment: null\n# below\n\ntrain:" in edited(text, ["augment=null"])


def test_every_member_of_every_section_states_valid_values() -> None:
    for section in ("source", "model", "loss", "optimizer", "schedule", "evaluate"):
        types = types_of(section)
        assert types
        for name in types.names:
            assert data(edited(TEXT, [f"{section}={name}"]))[section].keys() == types.settings(name).model_fields.keys()


class Incomplete(ModelSettings):
    """A model of a stranger, who states one value of two."""

    name: Literal["mlp"]
    width: int
    depth: int
    RECOMMENDED: ClassVar = {"depth": 3}


def test_a_member_without_a_recommended_value_is_refused_and_the_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.models.mlp.Settings", Incomplete)
    assert refusal(TEXT, "model=mlp") == (
        "model=mlp: mlp has no recommended value for width: add them to the class Incomplete in tests/tools/params/test_editing.py, "
        "as `RECOMMENDED = {\"width\": ...}`, or give all keys: 'model={name: mlp, width: ...}'"
    )
    given = {"name": "mlp", "weights": None, "width": 7, "depth": 1}
    assert data(edited(TEXT, [f"model={json.dumps(given)}"]))["model"] == given
