"""Hypothesis strategies that damage valid inputs: bytes, lines of a parameter file, values of a JSON tree."""

import copy
from typing import Any

from hypothesis import strategies as st

WORDS = [
    *("null", "true", "-1", "0", "1", "65536", "1000000", "1e999", ".nan", "-.inf", "0x_f", "1_0", "[]", "{}", "[[[]]]", "''"),
    *("~", "&a", "*a", "<<:", "!!int", "!!set", "!!python/name:os.system", "../../x", "os", "\\0", "\ud7ff", "\u202e", "-"),
    *("?", ":", "#", "%", "@", "`", "|", ">", '"', "'", "{", "}", "[", "]", ",", "2020-13-45", "99999999999999999999999999"),
    *("mlp", "convnet", "torchvision", "sgd", "adamw", "cosine"),
]
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 9, 65_536, 10**6, 2**31, 2**63, 2**64, 10**30, 0.5, 1e-320, 1e308),
    *("", "x", "NaN", "../../x", "os", "\0", "\x1b[2J", "mlp", "convnet", "resnet", "torchvision", "resnet18", "image", "fp16"),
    *([], [1], [0, 0, 0], [65_535, 65_535, 3], ["a", "b"], {}, {"name": "mlp"}),
)


@st.composite
def damaged_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Apply one to four damages: a flipped bit, another byte, a truncation, or a piece that is removed, repeated, inserted or overwritten."""
    content = good
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(content) - 1)))
        length = draw(st.integers(0, 64))
        piece = content[start : start + length]
        kind = draw(st.sampled_from(["flip", "set", "cut", "leave out", "repeat", "insert", "overwrite"]))
        match kind:
            case "flip" if content:
                content = content[:start] + bytes([content[start] ^ 1 << draw(st.integers(0, 7))]) + content[start + 1 :]
            case "set":
                content = content[:start] + draw(st.sampled_from([b"\0", b"\x7f", b"\x80", b"\xff"])) + content[start + 1 :]
            case "cut":
                content = content[:start]
            case "leave out":
                content = content[:start] + content[start + length :]
            case "repeat":
                content = content[:start] + piece * draw(st.integers(2, 5)) + content[start + length :]
            case "insert":
                content = content[:start] + draw(st.binary(max_size=64)) + content[start:]
            case "overwrite":
                foreign = draw(st.binary(max_size=64))
                content = content[:start] + foreign + content[start + len(foreign) :]
    return content


@st.composite
def damaged_lines(draw: st.DrawFn, texts: list[str]) -> str:
    """Remove, move, repeat or indent some lines of a parameter file, change their values, or insert words."""
    lines = draw(st.sampled_from(texts)).splitlines()
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        word = draw(st.sampled_from(WORDS))
        match draw(st.sampled_from(["value", "value", "value", "key", "delete", "repeat", "move", "indent", "word"])):
            case "value":
                lines[at] = f"{lines[at].partition(':')[0]}: {word}"
            case "key":
                lines[at] = f"  {word}:{lines[at].partition(':')[2]}"
            case "delete" if len(lines) > 1:
                del lines[at]
            case "repeat":
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "indent":
                lines[at] = " " * draw(st.integers(0, 5)) + lines[at].strip()
            case "word":
                place = draw(st.integers(0, len(lines[at])))
                lines[at] = lines[at][:place] + word + lines[at][place:]
    return "\n".join(lines) + "\n"


@st.composite
def damaged_tree(draw: st.DrawFn, good: Any) -> Any:
    """Replace, remove or add values in one to three places of a JSON tree."""
    tree = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        places = list(containers(tree))
        place = draw(st.sampled_from(places))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        value = copy.deepcopy(draw(st.sampled_from(VALUES)))
        match draw(st.sampled_from(["replace", "replace", "replace", "delete", "add"])):
            case "replace" if keys:
                place[draw(st.sampled_from(keys))] = value
            case "delete" if keys:
                del place[draw(st.sampled_from(keys))]
            case _ if isinstance(place, dict):
                place[draw(st.sampled_from(["name", "extra", "width", "", "\x1b"]))] = value
            case _:
                place.append(value)
    return tree


def containers(tree: Any) -> Any:
    if isinstance(tree, dict | list):
        yield tree
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from containers(part)
