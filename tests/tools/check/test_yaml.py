"""Files that are not valid YAML or not a parameter file are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES: list[tuple[str, bytes, int, str]] = [
    ("tab", b"model:\n\tname: mlp\n", 2, r"is not valid YAML: found character '\t' that cannot start any token: indent with spaces"),
    (
        "bracket",
        b"seed: 1\nmodel:\n  size: [3, 4\nother: 2\n",
        4,
        "expected ',' or ']', but got ':', while parsing a flow sequence from line 3",
    ),
    ("quote", b'seed: 1\nmodel: "mlp\n', 3, "found unexpected end of stream, while scanning a quoted scalar from line 2"),
    ("colon", b"seed: 1\nmodel: a: b\n", 2, "mapping values are not allowed here"),
    ("no colon", b"seed: 1\nmodel mlp\n", 3, "could not find expected ':', while scanning a simple key from line 2"),
    ("indentation", b"model:\n  name: mlp\n   width: 3\n", 3, "mapping values are not allowed here"),
    ("twice a key", b"model:\n  width: 3\n  width: 4\n", 3, 'found duplicate key "width", while constructing a mapping from line 2'),
    (
        "twice a section",
        b"model:\n  width: 3\nmodel:\n  width: 4\n",
        3,
        'found duplicate key "model", while constructing a mapping from line 1',
    ),
    ("alias", b"seed: 1\nmodel: *nowhere\n", 2, "found undefined alias 'nowhere'"),
    ("tag", b"seed: !!python/object/apply:os.system [ls]\n", 1, "could not determine a constructor for the tag"),
    ("two documents", b"seed: 1\n---\nseed: 2\n", 2, "found another document"),
    ("control character", b"seed: 1\nmodel: \x01\n", 2, "contains the control character U+0001: remove it"),
    ("date", b"seed: 2020-13-45\n", 1, "month must be in 1..12"),
    ("five thousand digits", b"seed: 1" + 5000 * b"0", 1, "contains an invalid value"),
    ("half a surrogate", b'seed: "\\ud800"\n', 1, "surrogates not allowed"),
    ("empty", b"", 1, "but is empty: copy a file of presets/ to this path"),
    ("comments", b"# later\n", 1, "but is empty: copy a file of presets/ to this path"),
    ("list", b"- seed\n- model\n", 1, "should contain sections such as `train:`, but is a list"),
    ("word", b"hello\n", 1, "should contain sections such as `train:`, but is a single value"),
    ("pickle", b"\x80\x04\x95\x0e\x00", 1, "is not UTF-8 text (invalid start byte): save it as UTF-8"),
    ("binary", bytes(range(256)), 2, "is not UTF-8 text"),
    ("latin-1", "seed: 1\n# für alle\n".encode("latin-1"), 2, "is not UTF-8 text"),
    ("utf-16", "seed: 1\n".encode("utf-16"), 1, "is not UTF-8 text"),
    ("zeros", 100 * b"\0", 1, "contains the control character U+0000"),
    ("huge", 100_000 * b"# \n", 1, "is larger than 20000 bytes: this is not a parameter file"),
    ("aliases that multiply", BOMB.encode(), 1, "the file expands to more than 2000 values: use fewer aliases"),
    ("an alias of itself", b"a: &a [*a]\n", 1, "is nested too deeply"),
    ("nested brackets", b"a: " + 900 * b"[" + 900 * b"]", 1, "contains more than 200 brackets: this is not a parameter file"),
]


@pytest.mark.parametrize(("content", "line", "words"), [entry[1:] for entry in FILES], ids=[entry[0] for entry in FILES])
def test_what_is_no_parameter_file_is_answered_with_the_line(
    parameters: Parameters, refused: Refused, content: bytes, line: int, words: str
) -> None:
    Path("params.yaml").write_bytes(content)
    [said] = refused("check")
    assert said.startswith(f"params.yaml:{line}: ")
    assert words in said


@pytest.mark.parametrize("verb", ["check", "prepare", "train", "evaluate"])
def test_a_missing_file_is_named_with_where_to_get_one(parameters: Parameters, refused: Refused, verb: str) -> None:
    Path("params.yaml").unlink()
    assert refused(verb) == ["params.yaml: is missing: copy a file of presets/ to this path"]
    Path("params.yaml").mkdir()
    assert refused(verb) == ["params.yaml: cannot be read (Is a directory): make it a readable file"]


@pytest.mark.parametrize(
    "change", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text], ids=["windows", "byte order mark"]
)
def test_other_editors_are_welcome(parameters: Parameters, change: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("params.yaml")
    path.write_bytes(change(path.read_text(encoding="utf-8")).encode())
    assert main(["check"]) == 0
