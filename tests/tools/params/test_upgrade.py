"""`set --upgrade` adds the keys that older files lack, with the values that keep their results; without it, they are refused."""

import re
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.__main__ import main
from pipeline.core.params import UPGRADE
from pipeline.core.refusal import Refusal
from pipeline.core.section import ValueOf
from pipeline.core.spec import Spec
from pipeline.core.yaml_document import Document
from pipeline.inference.model_file import Manifest
from pipeline.models.convnet import Settings as ConvnetSettings
from pipeline.tools.params.editing import edited, problems, upgraded_text
from pipeline.tools.params.reference import STAGE_PARAMS
from pipeline.train.optimizer_params import CommonScheduleSettings, GroupSettings, OneCycleSettings
from pipeline.train.params import LoopSettings, TrainParams
from tests.imports import TOP
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
EARLIER = TOP / "tests/tools/params/earlier"
"""The presets and search files of the commits before a key was added. Never change them: users have such files."""
PARAMS = Path("params.yaml")
NEW = ("model.dropout", "schedule.warmup_ratio", "train.micro_batch_size")


@pytest.fixture
def new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some keys count as added since older files were written, and no others."""
    for section, added in {
        ConvnetSettings: {"dropout": 0.1},
        CommonScheduleSettings: {"warmup_ratio": 0.2},
        OneCycleSettings: {"start_factor": 0.04, "final_factor": 0.0},
        LoopSettings: {"micro_batch_size": ValueOf("train.batch_size")},
        GroupSettings: {"weight_decay": None},
        TrainParams: {"schedule": {"name": "one_cycle"}, "augment": None},
    }.items():
        monkeypatch.setattr(section, "ADDED", added)


def text(name: str = "digits", *without: str) -> str:
    """Return the text of a preset without some keys."""
    parameters = Parameters((TOP / f"presets/{name}.yaml").read_text(encoding="utf-8"))
    for key in without:
        parameters.delete(key)
    return "\n".join(parameters.lines) + "\n"


def upgraded(before: str) -> str:
    return upgraded_text(before, PARAMS, STAGE_PARAMS.values(), problems)[0]


def added_lines(before: str) -> list[str]:
    """Return the lines that the upgrade adds. It must change no other line."""
    lines = [*unified_diff(before.splitlines(), upgraded(before).splitlines(), n=0, lineterm="")][2:]
    changed = [line for line in lines if not line.startswith("@@")]
    assert all(line.startswith("+") for line in changed), changed
    return [line.removeprefix("+") for line in changed]


@pytest.mark.usefixtures("new_keys")
def test_all_missing_keys_are_named_at_once_and_the_upgrade_adds_them(parameters: Parameters, refused: Refused, capsys) -> None:
    complete = Document.read(PARAMS).data
    for key in NEW:
        parameters.delete(key)
    parameters.write()
    expected = [f"params.yaml:{parameters.line(key.partition('.')[0])}: {key}: is missing: {UPGRADE}" for key in NEW]
    assert refused("check") == expected
    assert refused("set", "seed=2") == expected
    capsys.readouterr()
    assert main(["set", "--upgrade"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "set: params.yaml: added model.dropout: 0.1",
        "set: params.yaml: added schedule.warmup_ratio: 0.2",
        "set: params.yaml: added train.micro_batch_size: 64",
    ]
    assert Document.read(PARAMS).data == complete
    assert main(["check"]) == 0
    capsys.readouterr()
    assert main(["set", "--upgrade"]) == 0
    assert capsys.readouterr().out == "set: params.yaml has all keys already\n"


GROUPS = "  groups:\n    - patterns: ['*.bias'] # mine\n      lr_scale: 2.0\n"
SCHEDULE = ["", "schedule:", "  name: one_cycle", "  warmup_ratio: 0.2", "  start_factor: 0.04", "  final_factor: 0.0"]


@pytest.mark.usefixtures("new_keys")
@pytest.mark.parametrize(
    ("before", "lines"),
    [
        (text("digits", *NEW), ["  dropout: 0.1", "  warmup_ratio: 0.2", "  micro_batch_size: 64"]),
        (text("digits", "schedule"), SCHEDULE),
        (text("digits", "augment"), ["augment: null"]),
        (text().replace("  groups: []\n", GROUPS), ["      weight_decay: null"]),
    ],
    ids=["keys", "a section", "an empty section", "the items of a list"],
)
def test_the_upgrade_adds_what_is_missing_and_changes_no_other_byte(before: str, lines: list[str]) -> None:
    assert added_lines(before) == lines
    assert upgraded(before.replace("\n", "\r\n")) == upgraded(before).replace("\n", "\r\n")


@pytest.mark.usefixtures("new_keys")
@pytest.mark.parametrize(
    ("before", "message"),
    [
        (text().replace("  dropout: 0.1", "  drop_path: 0.1"), "model.drop_path: is not a key here"),
        (text("digits", "model.dropout", "model.width"), "model.width: is missing: add `width:` to this section"),
        (text("digits", "train.micro_batch_size", "train.batch_size"), "train.batch_size: is missing: add"),
        (text().replace("model:\n  name: convnet\n", "model: &shared\n  name: convnet\n").replace("  dropout: 0.1\n", ""),
         "model.dropout: model has the anchor `&shared`"),
    ],
)  # fmt: skip
def test_what_cannot_be_upgraded_is_refused(before: str, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        upgraded(before)
    assert re.search(rf"^params.yaml:\d+: {re.escape(message)}", str(refused.value), re.MULTILINE), refused.value


@pytest.mark.usefixtures("new_keys")
def test_several_files_are_upgraded_all_or_none(parameters: Parameters, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = pytest.importorskip("pipeline.tools.search.settings")
    monkeypatch.setattr(settings.SearchSettings, "ADDED", {"processes": 1})
    search = (TOP / "presets/search/digits.yaml").read_text(encoding="utf-8")
    older = search.replace("processes: 1\n", "")
    Path("search.yaml").write_text(older, encoding="utf-8")
    Path("mine.yaml").write_text(text("digits", *NEW) + "more: 1\n", encoding="utf-8")
    assert "more: is not a section" in refused("set", "--upgrade", "search.yaml", "mine.yaml")[0]
    (missing,) = refused("search", "search.yaml")
    assert missing.startswith("search.yaml:1: processes: is missing: ")
    assert "set --upgrade FILE" in missing
    assert Path("search.yaml").read_text(encoding="utf-8") == older
    Path("mine.yaml").write_text(text("digits", *NEW), encoding="utf-8")
    assert main(["set", "--upgrade", "search.yaml", "mine.yaml"]) == 0
    assert Path("search.yaml").read_text(encoding="utf-8") == older + "processes: 1\n"
    assert Document.read(Path("mine.yaml")).data == Document.of(text(), PARAMS).data


def test_values_and_the_upgrade_are_two_commands(parameters: Parameters, refused: Refused) -> None:
    for words in ((), ("seed=2", "--upgrade")):
        assert refused("set", *words) == ["set: write either values, such as train.epochs=3 or preset=digits, or --upgrade"]
    assert refused("set", "--upgrade", "seed=2")[0].startswith("set: --upgrade takes files, but seed=2 is a value: ")


@pytest.mark.usefixtures("new_keys")
def test_a_model_file_of_an_earlier_version_is_read_with_the_added_values(spec: Spec) -> None:
    params = {
        "seed": 1,
        "model": {"name": "convnet", "weights": None, "width": 16},
        "train": {"deterministic": True, "channels_last": False},
    }
    manifest = Manifest(params=params, spec=spec, precision="fp32", step=1, inputs={}, fingerprint={})
    assert manifest.inference.model.dropout == 0.1  # type: ignore[attr-defined]
    assert not manifest.channels_last
    undecided = {**params, "train": {"deterministic": True, "channels_last": "auto"}}
    with pytest.raises(ValidationError, match="channels_last\n  Input should be a valid boolean"):
        Manifest(params=undecided, spec=spec, precision="fp32", step=1, inputs={}, fingerprint={})


def test_every_earlier_preset_is_upgraded(tmp_path: Path) -> None:
    copies = {tmp_path / path.relative_to(EARLIER): path.read_text(encoding="utf-8") for path in sorted(EARLIER.rglob("*.yaml"))}
    for mine, before in copies.items():
        mine.parent.mkdir(exist_ok=True)
        mine.write_text(before, encoding="utf-8")
    assert main(["set", "--upgrade", *map(str, copies)]) == 0
    for mine, before in copies.items():
        after, old, new = mine.read_text(encoding="utf-8"), Document.of(before, mine).data, Document.read(mine).data
        kept = [line for line in before.splitlines() if line and "label_smoothing" not in line and not line.startswith("  size: ")]
        assert [line for line in after.splitlines() if line in kept] == kept, mine
        if "space" in new:
            assert [key.replace("train.label", "loss.label") for key in old["space"]] == [*new["space"]]
            continue
        assert edited(after, []) == after
        smoothing = old["train"].pop("label_smoothing")
        assert new["loss"] == {"name": "cross_entropy", "class_weights": "none", "label_smoothing": smoothing}
        assert new["train"] == {**old["train"], "metrics": []}
        assert new["source"].get("image_size") == old["source"].get("size")


def test_a_key_that_has_moved_is_named_and_its_comments_stay(parameters: Parameters, refused: Refused, capsys) -> None:
    parameters.delete("loss")
    parameters.lines.insert(parameters.line("train.clip_norm") - 1, "  label_smoothing: 0.1 # mine\n  # below")
    parameters.write()
    assert refused("check")[1].endswith(
        "train.label_smoothing: is not a key here: write `loss.label_smoothing`, with `loss.name: cross_entropy`"
    )
    capsys.readouterr()
    assert main(["set", "--upgrade"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "set: params.yaml: added loss: {name: cross_entropy, class_weights: none, label_smoothing: 0.1}",
        "set: params.yaml: removed train.label_smoothing, which is loss.label_smoothing now",
    ]
    written = PARAMS.read_text(encoding="utf-8")
    assert "  activation_checkpointing: false\n  # below\n  clip_norm: 1.0\n" in written
    assert written.endswith("\nloss:\n  name: cross_entropy\n  class_weights: none\n  label_smoothing: 0.1 # mine\n")
    assert main(["check"]) == 0
