"""Every hostile input is refused with exit code 2 and a message that names the place, within bounds of time and memory, and without side effects."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import hostile
from tests.faults.corpus import CASES

SOON_S = 10.0
"""Most take a tenth of a second on an idle machine."""
LITTLE_BYTES = 300 * 2**20
SCREEN_LINES, LONGEST_LINE = 24, 2_100
WATCH = hostile.Watch()
LONG = {
    *(f"model: {name}" for name in ("one hundred thousand tensors", "a hundred thousand unknown parameters", "a million classes")),
    *(f"tar: {name}" for name in ("30,000 members", "a bzip2 bomb", "an xz bomb", "a bomb of many members")),
    *(f"params.yaml: {name}" for name in ("aliases that multiply", "a million bins")),
    *("zip: a bomb that lies about its size", "npz: a bomb of images", "npz: a bomb of names", "npy: names without end"),
}
"""The cases that take longest, each beside a shorter one of its kind."""


@pytest.fixture(scope="module")
def template(unplotted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPELINE_TRACKING", "false")
        patch.setenv("PIPELINE_THREADS", "2")
        yield hostile.make(tmp_path_factory.mktemp("template"))


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setenv("PIPELINE_THREADS", "2")
    monkeypatch.setenv("PIPELINE_DEVICE", "cpu")
    return hostile.copied(template, tmp_path / "project")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CASES])
def test_a_hostile_input_is_refused_in_words_and_in_bounds(folder: Path, name: str) -> None:
    case = CASES[name]
    with hostile.chdir(folder):
        case.spoil()
        before = hostile.listed(folder.parent)
        for verb in case.verbs:
            with WATCH.watching() as seen:
                answer = hostile.answer(verb)
            lines = answer.output.splitlines()
            assert answer.code == 2 or (case.harmless and answer.code == 0), answer.output
            assert answer.code == 0 or (lines and case.says in answer.output), answer.output
            assert all(line.startswith("error: ") and len(line) <= LONGEST_LINE and line.isprintable() for line in lines), answer.output
            assert len(lines) <= SCREEN_LINES
            assert answer.processor_s < SOON_S
            assert answer.grown_bytes < LITTLE_BYTES
            assert not seen or answer.code == 0  # where all is well, git is asked for the commit
    assert not hostile.strays(folder, before)


def test_the_corpus_is_large_and_has_the_long_cases() -> None:
    assert len(CASES) >= 200
    assert CASES.keys() > LONG
