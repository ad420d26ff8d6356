"""Files that are not valid YAML or not a parameter file are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.tools.parameters import Parameters

Refused = Callable[..., list[str]]
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


def test_a_conflict_in_dvc_lock_is_named_before_dvc_runs(parameters: Parameters, refused: Refused) -> None:
    Path("dvc.lock").write_text("schema: '2.0'\n<<<<<<< HEAD\nstages: {}\n", encoding="utf-8")
    (message,) = refused("check")
    assert message.startswith("dvc files: dvc.lock:2: contains a conflict of Git, so DVC does not run: `git checkout HEAD -- dvc.lock`")


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
