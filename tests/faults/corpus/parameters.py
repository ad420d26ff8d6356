"""Parameter files, and a damaged dvc.yaml."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.faults.corpus.damage import endless, loop, replaced
from tests.faults.hostile import Case
from tests.tools.parameters import Parameters

PARAMS, STAGES = Path("params.yaml"), Path("dvc.yaml")
EVERY = ("check", "prepare", "train", "evaluate")
DEEP = "is nested too deeply"
BRACKETS = "contains more than 200 brackets"
MANY = "more than 2000 values"
NO_STAGES = "dvc.yaml: does not describe the stage train"


def whole(content: bytes | str) -> Callable[[], None]:
    """The whole file."""

    def write() -> None:
        PARAMS.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)

    return write


def value(key: str, text: str) -> Callable[[], None]:
    """One value in the project's own file."""

    def write() -> None:
        parameters = Parameters(PARAMS.read_text(encoding="utf-8"))
        parameters.put(key, text)
        parameters.write()

    return write


def multiplied(levels: int, *, merged: bool) -> str:
    """Ten times as many values with each level; by aliases in lists, or by merging sections."""
    lines = ["a0: &a0 {k: 1, l: 2, m: 3}"]
    for level in range(1, levels):
        references = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{references}], n{level}: 1}}" if merged else f"[{references}]"))
    return "\n".join(lines) + "\n"


WHOLE: dict[str, tuple[bytes | str, str]] = {
    "aliases that multiply": (multiplied(9, merged=False), MANY),
    "merged sections that multiply": (multiplied(9, merged=True), MANY),
    "a merge of a number": ("model:\n  <<: 3\n", "expected a mapping"),
    "an alias of itself": ("a: &a [*a]\n", DEEP),
    "a chain of aliases": ("".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else ''}]\n" for i in range(900)), BRACKETS),
    "19,000 brackets": ("a: " + "[" * 19_000, "contains more than 200 brackets"),
    "nested by indentation": ("".join(f"{' ' * depth}a:\n" for depth in range(190)), DEEP),
    "10 megabytes": ("# " + "x" * 10_000_000, "is larger than"),
    "a long key": (f"{'k' * 900}: 1\n", "is not a section"),
    "900 unknown keys": ("".join(f"key{i}: 1\n" for i in range(900)), "... and "),
    "a key that clears the screen": ('"\\e[2J\\e]0;owned\\a": 1\n', "\\x1b[2J"),
    "NUL": ("seed: 1\0\n", "control character U+0000"),
    "bytes": (bytes(range(256)), "is not UTF-8 text"),
    "a pickle": (b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.", "is not UTF-8 text"),
    "two keys": ("seed: 1\nseed: 2\n", "duplicate key"),
    "os.system": ('seed: !!python/object/apply:os.system ["touch owned"]\n', "could not determine a constructor"),
    "a local tag": ("seed: !run touch owned\n", "could not determine a constructor"),
    "a tag directive": ("%TAG ! tag:yaml.org,2002:python/\n---\nseed: !object/apply:os.getcwd []\n", "could not determine"),
    "a version of YAML to come": ("%YAML 9.9\n---\nseed: 1\n", "params.yaml:"),
    "a truth that is none": ("seed: !!bool maybe\n", "contains an invalid value"),
    "binary": ("seed: !!binary aGVsbG8=\n", "a value of the type bytes"),
    "a list for a key": ("? [a, b]\n: 1\n", "is not a section"),
    "19,000 hexadecimal digits": ("seed: 0x" + "f" * 19_000, "a number of 76000 bits"),
    "19,000 digits": ("seed: " + "9" * 19_000, "contains an invalid value"),
    "a month 13": ("seed: 2020-13-45\n", "month must be in 1..12"),
    "two documents": ("seed: 1\n---\nseed: 2\n", "found another document"),
}
VALUES: dict[str, tuple[str, str, str]] = {
    "a root of NUL": ("source.root", '"\\0"', "another control character: rename"),
    "a root of 15,000 characters": ("source.root", "a" * 15_000, "does not exist"),
    "a root that is the null device": ("source.root", "/dev/null", "source.root: /dev/null"),
    "a root without end": ("source.root", "/dev/zero", "Is a device, a pipe or a socket"),
    "a module of another package": ("model.name", "../../x", "there is no model"),
    "a name that is a section": ("model.name", "{a: {b: c}}", "there is no model"),
    "a width of a million": ("model.width", "1000000", "should be less than or equal to 65536"),
    "two kinds of crop": ("augment.resized_crop", "0.5", "cannot be combined with augment.crop_padding: write `augment.crop_padding: 0`"),
    "a share of infinity": ("augment.mixup", ".inf", "should be a finite number"),
    "a million and one bins": ("evaluate.calibration_bins", "1000001", "should be less than or equal to 1000000"),
    "not a number": ("optimizer.learning_rate", ".nan", "should be a finite number"),
}
LATE: dict[str, tuple[Callable[[], object], str, str]] = {
    "a crop beyond the image": (
        value("augment.crop_padding", "1024"),
        "train",
        "augment.crop_padding: 1024 pixels of padding around images of 4x4",
    ),
    "colours that are none": (
        value("augment.saturation", "0.5"),
        "train",
        "augment.saturation: needs images of 3 channels, these have 1: write 0.0",
    ),
    "more classes than there are": (value("evaluate.top_k", "1000000"), "evaluate", "evaluate.top_k: 1000000 is more than the 2 classes"),
    "a network beyond the memory": (
        lambda: widen("name: convnet", "weights: null", "width: 65536", "dropout: 0.0"),
        "train",
        "GB: choose a smaller model",
    ),
}


def widen(*lines: str) -> None:
    parameters = Parameters(PARAMS.read_text(encoding="utf-8"))
    parameters.section("model", *lines)
    parameters.write()


def stages(content: bytes) -> Callable[[], None]:
    return lambda: STAGES.write_bytes(content)


DAMAGED_STAGES: dict[str, tuple[Callable[[], object], str]] = {
    "empty": (stages(b""), NO_STAGES),
    "bytes": (stages(bytes(range(256))), NO_STAGES),
    "deep": (stages(b"[" * 19_000), NO_STAGES),
    "long": (stages(b"# " + b"x" * 10_000_000), NO_STAGES),
    "numbers for paths": (stages(b"stages: {train: {deps: [1, {}], params: 5}}\n"), NO_STAGES),
    "a pickle": (stages(b"stages: !!python/object/apply:os.system ['touch owned']\n"), NO_STAGES),
    "a pipe": (replaced(STAGES, os.mkfifo), NO_STAGES),
    "no end": (replaced(STAGES, endless), NO_STAGES),
}
CASES = (
    {f"params.yaml: {name}": Case(EVERY if name == "a pickle" else ("check",), whole(text), said) for name, (text, said) in WHOLE.items()}
    | {f"params.yaml: {name}": Case(("check",), value(key, text), said) for name, (key, text, said) in VALUES.items()}
    | {f"params.yaml: {name}": Case((verb,), change, said) for name, (change, verb, said) in LATE.items()}
    | {
        "params.yaml: a folder": Case(EVERY, replaced(PARAMS, Path.mkdir), "cannot be read (Is a directory)"),
        "params.yaml: a pipe": Case(EVERY, replaced(PARAMS, os.mkfifo), "cannot be read (Is a device, a pipe or a socket)"),
        "params.yaml: no end": Case(EVERY, replaced(PARAMS, endless), "cannot be read (Is a device, a pipe or a socket)"),
        "params.yaml: a link to itself": Case(EVERY, replaced(PARAMS, loop), "cannot be read (Too many levels of symbolic links)"),
        "params.yaml: a million bins": Case(("evaluate",), value("evaluate.calibration_bins", "1000000"), "", harmless=True),
        "params.yaml: nearly full coverage": Case(
            ("evaluate",), value("evaluate.confidence_level", "0.9999999999999999"), "", harmless=True
        ),
    }
    | {f"dvc.yaml: {name}": Case(("train",), change, said) for name, (change, said) in DAMAGED_STAGES.items()}
)
