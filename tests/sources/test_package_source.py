"""The source of a locked package as a corpus: its bytes are those that the lock decides."""

import shutil
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer import Tokenizer
from pipeline.prepare.params import PrepareParams
from pipeline.prepare.stage import prepare
from pipeline.sources import package_source
from pipeline.tools.check.command import describe_dataset
from tests.imports import TOP
from tests.pretrained_tokenizers import FITTED

from . import settings

SETTINGS = {"tokenizer": "bpe", **FITTED, "vocabulary": 300, "min_count": 2, "normalization": [], "max_length": 64}
FILES = ("sympy/core/basic.py", "sympy/core/logic.py")


@pytest.fixture(autouse=True)
def at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOP)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the metadata of sympy and of a few of its files, which the source reads instead of the installed package."""
    installed = distribution("sympy")
    home = tmp_path / "site-packages"
    metadata = home / f"sympy-{installed.version}.dist-info"
    metadata.mkdir(parents=True)
    for name in ("METADATA", "RECORD"):
        (metadata / name).write_text(installed.read_text(name) or "", encoding="utf-8")
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(installed.locate_file(name)), home / name)
    monkeypatch.setattr(package_source, "distribution", lambda _: Distribution.at(metadata))
    return metadata


def params(**changes: object) -> PrepareParams:
    fields = {"valid": 0.1, "test": 0.1, "package": "sympy", "pattern": "sympy/strategies/*"}
    return settings.params(package_source.Settings, "data/README.md", **{**fields, **SETTINGS, **changes})


def run(top: Path, **changes: object) -> Prepared:
    prepare(params(**changes), Paths(top), Environment())
    return Prepared.open(Paths(top).prepared)


def refusal(top: Path, **changes: object) -> str:
    with pytest.raises(Refusal) as caught:
        run(top, **changes)
    return str(caught.value)


def test_the_chosen_files_are_divided_and_stored_as_equal_bytes_twice(tmp_path: Path) -> None:
    prepared = run(tmp_path / "a")
    assert set(prepared.splits) == {"train", "valid", "test"}
    assert prepared.spec.num_outputs == 300
    assert "SymPy" in Tokenizer(prepared.spec.inputs.tokenizer).decode(prepared.train.inputs.ravel())  # type: ignore[attr-defined]
    assert run(tmp_path / "b").digest == prepared.digest


def test_check_knows_the_splits_without_reading_the_package() -> None:
    assert describe_dataset(params(package="no-such-package")) == ({"train", "valid", "test"}, None)


def test_every_file_is_compared_with_what_was_installed(tmp_path: Path, copied: Path) -> None:
    few = {"pattern": "sympy/core/[bls][ao][gs]i*.py", "valid": 0.0, "test": 0.3}
    assert set(run(tmp_path, **few).splits) == {"train", "test"}
    path = copied.parent / "sympy/core/basic.py"
    original = path.read_bytes()
    path.write_bytes(original.replace(b"Basic", b"Basil", 1))
    assert (
        "source.package: sympy: sympy/core/basic.py: does not have the SHA-256 that was recorded when the package was installed: "
        "install what the lock pins" in refusal(tmp_path, **few)
    )
    path.unlink()
    assert "sympy/core/basic.py: cannot be read (No such file or directory): install what the lock pins" in refusal(tmp_path, **few)


def test_another_version_and_an_editable_package_are_refused(tmp_path: Path, copied: Path) -> None:
    (copied / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}', encoding="utf-8")
    assert "source.package: sympy was installed from a folder or a URL, not as requirements.lock pins it" in refusal(tmp_path)
    metadata = copied / "METADATA"
    metadata.write_text(metadata.read_text(encoding="utf-8").replace("\nVersion: ", "\nVersion: 0."), encoding="utf-8")
    assert "is installed, but requirements.lock pins" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"package": "pytest"},
            "source.package: requirements.lock pins no package pytest by its hash: choose one that it pins, such as sympy",
        ),
        ({"package": "../sympy"}, "source.package: "),
        ({"pattern": "sympi/*"}, "source.pattern: sympy has no Python file whose path matches `sympi/*`: write `*` for all its files"),
        ({"pattern": "isympy.py"}, "source.valid: the corpus has too few characters or files"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(Refusal) as caught:
        run(tmp_path, **changes)
    assert message in str(caught.value)


def test_a_locked_package_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("none-such==1.0 \\\n    --hash=sha256:00\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refusal, match=r"source\.package: None_Such is not installed"):
        package_source.locked("None_Such")
    lock.write_text("none-such==1.0\n", encoding="utf-8")
    with pytest.raises(Refusal, match="pins no package None_Such by its hash"):
        package_source.locked("None_Such")
