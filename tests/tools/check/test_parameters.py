"""Every verb that reads `params.yaml` answers mistakes with file, line, key and remedy."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core.registry import MODELS
from pipeline.core.section import COMMON_KEYS, COMMON_MODELS
from pipeline.tools.check import command as check
from pipeline.tools.params.editing import edited
from tests.imports import TOP
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
MISTAKES = [
    ("seed", "-1", "should be greater than or equal to 0, not -1"),
    ("source.name", "digit", 'there is no dataset "digit": did you mean `digits`?'),
    (
        "model.name",
        "[mlp]",
        'there is no model ["mlp"]: choose one of airbench, convnet, linear, mlp, ngrams, recurrent, resnet, timm, torchvision, transformer, transformers',
    ),
    ("optimizer.name", "", "there is no optimizer null: choose one of sgd, adam, adamw, muon"),
    ("schedule.name", "onecycle", 'there is no schedule "onecycle": did you mean `one_cycle`?'),
    ("train.epochs", "30.5", "should be a whole number, not 30.5"),
    ("train.batch_size", "0", "should be greater than 0, not 0"),
    ("train.precision", "fp8", "should be 'auto', 'bf16', 'fp16', 'fp32' or 'bf16-true', not \"fp8\""),
    ("train.deterministic", "yes", 'should be `true` or `false`, not "yes"'),
    ("train.channels_last", "yes", "should be 'auto', true or false, not \"yes\""),
    ("evaluate.confidence_level", "95", "should be less than 1, not 95"),
]
NO_PLACE = "contains a line break or another control character"
SGD = ("beta1", "beta2", "epsilon")
VALUES: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"train.micro_batch_size": "65"}, {"train.micro_batch_size": "is larger than train.batch_size: write at most 64"}),
    ({"train.steps": "3"}, {"train.steps": "set either `epochs` or `steps`, and write null for the other"}),
    ({"train.validate_every_steps": "55"}, {"train.validate_every_steps": "is not a multiple of train.report_every_steps (10): write 60"}),
    ({"source.root": r'"data/a\nb"'}, {"source.root": f"{NO_PLACE}: rename the folder or file"}),
    ({"source.root": r'"data/a\u2028b"'}, {"source.root": NO_PLACE}),
    (
        {"source.root": '""'},
        {"source.root": "is the checkout itself, which also has the results of the stages: write the path of the data"},
    ),
    (
        {"source.name": "imagenet"},
        {"source.name": 'there is no dataset "imagenet": choose one of arrays, cifar, dates, digits, image_folder,'},
    ),
    ({"source.folds": "many", "source.fold": "3"}, {"source.folds": "should be a whole number"}),
    ({"model.name": "LSTM"}, {"model.name": 'there is no model "LSTM": write `name: recurrent` and `cell: lstm`'}),
    ({"optimizer.learning_rate": ".nan"}, {"optimizer.learning_rate": "should be a finite number, not NaN"}),
    (
        {"optimizer.groups": '[{patterns: ["*"], lr: 0.1, weight_decay: null}]'},
        {
            "optimizer.groups.0.lr": "is not a key here: choose one of patterns, lr_scale",
            "optimizer.groups.0.lr_scale": "is missing: add `lr_scale:` to this section",
        },
    ),
    (
        {"optimizer.name": "sgd"},
        {
            **{f"optimizer.{key}": f"is missing: add `{key}:` to this section" for key in ("momentum", "nesterov")},
            **{f"optimizer.{key}": "is not a key here: choose one of name, learning_rate, weight_decay" for key in SGD},
        },
    ),
    ({"train.precision": "bf16-true"}, {"train.ema_decay": "an EMA in bf16 would lose its small updates by rounding: write 0.0, or set"}),
    (
        {"train.precision": "bf16-true", "train.ema_decay": "0.0"},
        {"train": "precision: bf16-true would round away small updates of adamw's running averages"},
    ),
    # the keys of a model are judged where nothing else is wrong
    ({"model.width": "two", "model.dropout": "two"}, dict.fromkeys(("model.width", "model.dropout"), "should be a")),
    ({"model.width": "two", "optimizer.beta1": "two"}, {"optimizer.beta1": "should be a number"}),
]
"""Values, and what is said of which keys."""


def test_all_mistakes_are_answered_with_place_and_remedy_in_the_order_of_the_file(parameters: Parameters, refused: Refused) -> None:
    lines = [parameters.put(key, value) for key, value, _ in MISTAKES]
    parameters.write()
    for said, line, (key, _, words) in zip(refused("check"), lines, MISTAKES, strict=True):
        assert said.startswith(f"params.yaml:{line}: {key}: {words}")


@pytest.mark.parametrize(("values", "said"), VALUES, ids=[" ".join(values) for values, _ in VALUES])
def test_a_bad_value_is_answered_with_its_place_and_the_remedy(
    parameters: Parameters, refused: Refused, values: dict[str, str], said: dict[str, str]
) -> None:
    for key, value in values.items():
        parameters.put(key, value)
    parameters.write()
    for line, (key, words) in zip(refused("check"), said.items(), strict=True):
        place = "[0-9]+" if "is missing" in words else parameters.line(".".join(key.split(".")[:2]))
        assert re.match(rf"params\.yaml:{place}: {re.escape(f'{key}: {words}')}", line)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("source.valid", "add `valid:` to this section"),
        ("model.name", "add `name:` to this section"),
        ("model.width", "add `width:` to this section"),
        ("seed", "add `seed: 1` (docs/parameters.md"),
    ],
)
def test_a_missing_key_is_named_where_it_belongs(parameters: Parameters, refused: Refused, key: str, remedy: str) -> None:
    parameters.delete(key)
    line = parameters.line(key.partition(".")[0]) if "." in key else 1
    parameters.write()
    [said] = refused("check")
    assert said.startswith(f"params.yaml:{line}: {key}: is missing: {remedy}")


@pytest.mark.parametrize(("key", "typed"), [("model.width", "widht"), ("train", "trian")])
def test_a_misspelt_key_gets_the_nearest_known_one_and_no_second_line(parameters, refused: Refused, key: str, typed: str) -> None:
    line = parameters.rename(key, typed)
    parameters.write()
    wrong = f"{key.rpartition('.')[0]}.{typed}".removeprefix(".")
    what = "key here" if "." in key else "section"
    assert refused("check") == [f"params.yaml:{line}: {wrong}: is not a {what}: did you mean `{key.rpartition('.')[2]}`?"]


def test_the_error_in_the_readme_is_that_of_this_mistake(parameters: Parameters, refused: Refused) -> None:
    parameters.rename("optimizer.learning_rate", "learning_rat")
    parameters.write()
    [error] = refused("check")
    assert f"\nerror: {error}\n" in (TOP / "README.md").read_text(encoding="utf-8")


def test_a_missing_and_an_unknown_section_are_named(parameters: Parameters, refused: Refused) -> None:
    parameters.delete("augment")
    parameters.lines += ["plugins:", "  dashboard: true"]
    parameters.write()
    missing, unknown = refused("check")
    assert missing.startswith("params.yaml:1: augment: is missing: add `augment:` and its keys")
    assert unknown.startswith(f"params.yaml:{parameters.line('plugins')}: plugins: is not a section: choose one of seed, source, model,")


def test_keys_of_any_form_are_readable_in_the_messages(parameters: Parameters, refused: Refused) -> None:
    keys = {
        '  ""': 'evaluate."": is not a key here: choose one of',
        '""': '"": is not a section: choose one of seed,',
        '" seed"': '" seed": is not a section: did you mean `seed`?',
        '"a: b"': '"a: b": is not a section: choose one of seed,',
        "~": "~: is not a section: choose one of seed,",
        "train.steps": "train.steps: is not a section: write `steps:` in the section `train:`",
    }
    first = len(parameters.lines) + 1
    parameters.lines += [f"{key}: 1" for key in keys]
    parameters.write()
    for said, (line, message) in zip(refused("check"), enumerate(keys.values(), first), strict=True):
        assert said.startswith(f"params.yaml:{line}: {message}")


@pytest.mark.parametrize("value", ["", "[convnet]"])
def test_something_else_than_a_section_is_named(parameters: Parameters, refused: Refused, value: str) -> None:
    sections = ("model", "optimizer", "augment") if value else ("model", "optimizer")  # `augment` may be null
    for section in sections:
        parameters.section(section)
        parameters.put(section, value)
    parameters.write()
    for said, section in zip(refused("check"), sections, strict=True):
        assert said.startswith(f"params.yaml:{parameters.line(section)}: {section}: should be a section with keys of its own, not ")


def test_nesterov_without_momentum_is_refused(parameters: Parameters, refused: Refused) -> None:
    text = edited("\n".join(parameters.lines) + "\n", ["optimizer=sgd", "train.ema_decay=0.0"])
    with_sgd = Parameters(text.replace("  momentum: 0.9", "  momentum: 0.0"))
    with_sgd.write()
    said = f"params.yaml:{with_sgd.line('optimizer.nesterov')}: optimizer.nesterov: needs optimizer.momentum above 0: raise it, or write"
    assert refused("check") == [f"{said} `optimizer.nesterov: false`"]


def test_an_unknown_architecture_and_unknown_weights_are_named_with_the_nearest(parameters: Parameters, refused: Refused) -> None:
    parameters.section("model", "name: torchvision", "architecture: resnet81", "stem: small", "weights: null", "pretrained: null")
    parameters.write()
    [said] = refused("check")
    assert said.startswith(f"params.yaml:{parameters.line('model.architecture')}: model.architecture: torchvision has no classification")
    assert "`resnet18`" in said
    parameters.put("model.architecture", "resnet18")
    line = parameters.put("model.pretrained", "IMAGENET")
    parameters.write()
    assert refused("train") == [
        f"params.yaml:{line}: model.pretrained: resnet18 has no weights 'IMAGENET': choose one of IMAGENET1K_V1, DEFAULT, or null for random weights"
    ]


def test_every_preset_passes_the_check_but_for_data_that_is_not_there(
    parameters: Parameters, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "would_run", lambda _: True)
    for preset in sorted((TOP / "presets").glob("*.yaml")):
        Path("params.yaml").write_bytes(preset.read_bytes())
        code = main(["check"])
        said = capsys.readouterr()
        assert code == 0 or all("source.root: " in line and "does not exist" in line for line in said.err.splitlines()), preset


@pytest.mark.parametrize(
    ("key", "other", "message"),
    [
        ("train.patience", "pin_memory", "train.pin_memory: is not a key here: leave it out: pinned memory is used wherever it helps"),
        ("optimizer.learning_rate", "lr", "optimizer.lr: is not a key here: write `optimizer.learning_rate`"),
        ("train.patience", "lr", "train.lr: is not a key here: write `optimizer.learning_rate`"),
    ],
)
def test_a_word_of_tutorials_is_answered_with_the_parameter(parameters, refused: Refused, key: str, other: str, message: str) -> None:
    line = parameters.rename(key, other)
    parameters.write()
    found = refused("check")
    assert f"params.yaml:{line}: {message}" in found
    assert message.endswith(f"write `{key}`") == (len(found) == 1), "that the right key is missing is not said again"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("{name: rotat}", '.name: there is no transform "rotat": did you mean `rotate`?'),
        ("{degrees: 5}", ".name: is missing: add `name:` to this section: choose one of rand_augment, "),
        ("rotate", ': should be a section with keys of its own, not "rotate"'),
        ("{name: rotate, degrees: 200}", ".degrees: should be less than or equal to 180, not 200"),
        ("{name: rotate, degree: 5}", ".degree: is not a key here: did you mean `degrees`?"),
        (
            "{name: random_erasing, degrees: 5, probability: 0.5, area: 0.5}",
            ".degrees: is not a key here: choose one of name, probability, area",
        ),
        (
            "{name: token_dropout, probability: 0.5}",
            ": token_dropout needs inputs of the kind text, but these are of the kind image: choose among rand_augment, ",
        ),
    ],
)
def test_a_mistake_in_a_transform_is_answered_with_its_line(parameters: Parameters, refused: Refused, item: str, message: str) -> None:
    line = parameters.replace("augment.transforms", f"transforms:\n    - {{name: vertical_flip, probability: 0.5}}\n    - {item}")
    parameters.write()
    [said] = refused("check")
    assert said.startswith(f"params.yaml:{line + 2}: augment.transforms.1{message}")


def test_what_is_named_for_a_word_of_tutorials_exists() -> None:
    keys = re.findall(r"^\| `([\w.]+)`", (TOP / "docs/parameters.md").read_text(encoding="utf-8"), re.MULTILINE)
    page = (TOP / "docs/environment.md").read_text(encoding="utf-8")
    for remedy in COMMON_KEYS.values():
        named = re.findall(r"`(\w+\.\w+)`|(PIPELINE_\w+)", remedy)
        assert named or "leave it out" in remedy
        assert all(key in keys or f"| `{variable}` |" in page for key, variable in named), remedy
    for remedy in COMMON_MODELS.values():
        name, *_ = re.findall(r"`name: (\w+)`", remedy)
        assert name in MODELS.names


FILES: list[tuple[str, bytes, int, str]] = [
    ("tab", b"model:\n\tname: mlp\n", 2, r"is not valid YAML: found character '\t' that cannot start any token: indent with spaces"),
    (
        "bracket",
        b"seed: 1\nmodel:\n  size: [3, 4\nother: 2\n",
        4,
        "expected ',' or ']', but got ':', while parsing a flow sequence from line 3",
    ),
    (
        "twice a section",
        b"model:\n  width: 3\nmodel:\n  width: 4\n",
        3,
        'found duplicate key "model", while constructing a mapping from line 1',
    ),
    ("alias", b"seed: 1\nmodel: *nowhere\n", 2, "found undefined alias 'nowhere'"),
    ("conflict", b"seed: 1\n<<<<<<< HEAD\nwidth: 1\n=======\nwidth: 2\n>>>>>>> other\n", 2, "contains a conflict of Git: keep one"),
    ("control character", b"seed: 1\nmodel: \x01\n", 2, "contains the control character U+0001: remove it"),
    ("empty", b"", 1, "but is empty: copy a file of presets/ to this path"),
    ("list", b"- seed\n- model\n", 1, "should contain sections such as `train:`, but is a list"),
    ("word", b"hello\n", 1, "should contain sections such as `train:`, but is a single value"),
    ("latin-1", "seed: 1\n# für alle\n".encode("latin-1"), 2, "is not UTF-8 text"),
]
"""`tests/faults/corpus` has the hostile files."""


@pytest.mark.parametrize(("content", "line", "words"), [entry[1:] for entry in FILES], ids=[entry[0] for entry in FILES])
def test_what_is_no_parameter_file_is_answered_with_the_line(parameters, refused: Refused, content: bytes, line: int, words: str) -> None:
    Path("params.yaml").write_bytes(content)
    [said] = refused("check")
    assert said.startswith(f"params.yaml:{line}: ")
    assert words in said


def test_a_missing_file_is_named_with_where_to_get_one(parameters: Parameters, refused: Refused) -> None:
    Path("params.yaml").unlink()
    for verb in ("check", "train"):
        assert refused(verb) == ["params.yaml: is missing: copy a file of presets/ to this path"]
    Path("params.yaml").mkdir()
    assert refused("check") == ["params.yaml: cannot be read (Is a directory): make it a readable file"]


def test_line_ends_and_the_byte_order_mark_of_other_editors_are_accepted(parameters: Parameters) -> None:
    path = Path("params.yaml")
    path.write_bytes(("\ufeff" + path.read_text(encoding="utf-8").replace("\n", "\r\n")).encode())
    assert main(["check"]) == 0
