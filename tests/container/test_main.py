"""The commands that the container's first process runs or refuses, and the commit that it records."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.container import __main__ as first
from pipeline.container import checkout
from pipeline.container.checkout import Checkout
from pipeline.refusal import Refusal
from tests.imports import TOP

COPY = Path("/opt/pipeline")
REVISION = "c0ffee"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary folder with the code of an image."""
    monkeypatch.setenv("PIPELINE_IMAGE_REVISION", REVISION)
    checkout.copy(TOP, tmp_path / "image")
    return tmp_path / "image"


def test_the_images_commit_is_recorded_only_for_its_own_code(image: Path) -> None:
    built, job = checkout.digests(image), Checkout(image.with_name("home"), copy_of=image)
    assert first.commit(job, built, is_edited=False) == REVISION
    assert first.commit(job, built, is_edited=True) == f"{REVISION}-changed"
    assert first.commit(Checkout(image), built, is_edited=False) == "", "Git knows the commit"
    (image / "pipeline/more.py").touch()
    assert first.commit(job, built, is_edited=False) == ""
    (image / "pipeline/more.py").unlink()
    (image / "pipeline/spec.py").write_text("# mounted over it", encoding="utf-8")
    assert first.commit(job, built, is_edited=False) == ""


@pytest.mark.parametrize("words", [[], ["repro"]])
def test_without_a_verb_it_is_repro(words: list[str]) -> None:
    assert first.commands_for(words) == first.REPRO


def test_torchrun_runs_in_the_folder_of_the_job_like_dvc_and_mlflow() -> None:
    assert first.commands_for(["torchrun", "-m", "pipeline", "train"]) == (("torchrun", "-m", "pipeline", "train"),)
    with pytest.raises(Refusal, match=r"dvc \.\.\., mlflow \.\.\. or torchrun \.\.\."):
        first.commands_for(["torchrum"])


def test_help_for_repro_is_that_of_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        first.commands_for(["repro", "--help"])
    assert ended.value.code == 0
    assert "usage: python -m pipeline repro" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "preset", "before"),
    [
        (["repro", "-S", "model.width=8", "-S", "seed=2"], "", ["set", "model.width=8", "seed=2"]),
        ([], "digits", ["preset", "digits"]),
        (["repro", "-S", "seed=2"], "digits", ["preset", "digits", "seed=2"]),
    ],
)
def test_parameters_are_changed_by_one_command_before_repro(words: list[str], preset: str, before: list[str]) -> None:
    assert first.commands_for(words, preset=preset) == ((*first.VERB, *before), *first.REPRO)


@pytest.mark.parametrize("words", [["check"], ["ui"], ["dvc", "repro"], ["set", "seed=2"]])
def test_other_commands_ignore_the_preset(words: list[str]) -> None:
    assert first.commands_for(words, preset="digits") == first.commands_for(words)


@pytest.mark.parametrize("words", [["repro", "seed=2"], ["repro", "-S"], ["repro", "--set", "seed=2"]])
def test_a_wrong_argument_of_repro_ends_with_2_and_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        first.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m pipeline")


@pytest.mark.parametrize(
    "words",
    [
        "dvc exp run -S seed=2",
        "dvc -q exp run --temp",
        "dvc --cd models exp show",
        "dvc experiments show",
        "dvc queue start",
        "dvc metrics diff",
        "dvc plots diff",
        "dvc diff",
    ],
)
def test_dvc_commands_that_need_git_are_recognised(words: str) -> None:
    assert first.NEEDS_GIT.match(words)


@pytest.mark.parametrize(
    "words",
    [
        "dvc repro",
        "dvc metrics show",
        "dvc status",
        "dvc",
        "dvc add exp",
        "dvc pull exp",
        "dvc repro diff",
        "dvc --cd exp repro",
        "mlflow ui",
        "check",
        "",
    ],
)
def test_other_commands_need_no_git(words: str) -> None:
    assert not first.NEEDS_GIT.match(words)


def test_commands_that_need_git_are_refused_in_a_copy_before_dvc_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = tmp_path / "pipeline.json"
    digests.write_text('{"requirements.lock": "digest"}')
    monkeypatch.setattr(first, "IMAGE_DIGESTS", digests)
    monkeypatch.setattr(checkout, "find", lambda *_, **__: checkout.Checkout(tmp_path, copy_of=COPY))
    assert first.main(["dvc", "exp", "run"]) == 2
    error = capsys.readouterr().err
    assert (
        "`dvc exp` needs Git, but this job runs in a copy of /opt/pipeline, and a copy has no Git repository: run it in a checkout, with `make"
        in error
    )


@pytest.mark.parametrize(
    ("folder", "kept"),
    [("/home/pipeline", False), ("/volume", True), ("/volume/deep/er", True), ("/scratch", False), ("/volume/cache/x", False)],
)
def test_files_are_kept_only_by_a_mount_that_is_not_in_memory(folder: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    types = {"/": "overlay", "/volume": "ext4", "/scratch": "tmpfs", "/volume/cache": "tmpfs"}
    mounts = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in types.items()]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) in types)
    assert first.is_kept(Path(folder)) is kept
