"""The commands that the container's first process runs or refuses, and the commit that it records."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import __main__ as command_line
from pipeline.container import __main__ as first
from pipeline.container import checkout
from pipeline.container.checkout import Checkout
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.tools import checkout_lock, supervision
from tests.imports import TOP

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
    (image / "pipeline/core/spec.py").write_text("# mounted over it", encoding="utf-8")
    assert first.commit(job, built, is_edited=False) == ""


def test_without_a_verb_it_is_repro() -> None:
    assert first.commands_for([]) == first.commands_for(["repro"]) == first.REPRO


def test_torchrun_runs_in_the_folder_of_the_job_like_dvc_and_mlflow() -> None:
    (command,) = first.commands_for(["torchrun", "-m", "pipeline", "train"])
    assert command[1:] == ("-m", "pipeline.tools.torchrun", "-m", "pipeline", "train")
    with pytest.raises(Refusal, match=r"dvc \.\.\., mlflow \.\.\. or torchrun \.\.\."):
        first.commands_for(["torchrum"])


@pytest.mark.parametrize(
    ("words", "preset", "before"),
    [
        (["repro", "-S", "model.width=8", "-S", "seed=2"], "", ["set", "model.width=8", "seed=2"]),
        ([], "digits", ["set", "preset=digits"]),
        (["repro", "-S", "seed=2"], "digits", ["set", "preset=digits", "seed=2"]),
    ],
)
def test_parameters_are_changed_by_one_command_before_repro(words: list[str], preset: str, before: list[str]) -> None:
    assert first.commands_for(words, preset=preset) == ((*first.VERB, *before), *first.REPRO)


@pytest.mark.parametrize("words", [["repro", "seed=2"], ["repro", "-S"]])
def test_a_wrong_argument_of_repro_ends_with_2_and_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        first.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m pipeline")


def test_files_are_kept_only_by_a_mount_that_is_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {"/": "overlay", "/volume": "ext4", "/scratch": "tmpfs", "/volume/cache": "tmpfs"}
    mounts = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in types.items()]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) in types)
    folders = {"/home/pipeline": False, "/volume": True, "/volume/deep/er": True, "/scratch": False, "/volume/cache/x": False}
    assert {folder: first.is_kept(Path(folder)) for folder in folders} == folders


Job = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def volume(image: Path) -> Path:
    """Return the folder of a volume in which the jobs of `job` run, one after another."""
    return image.with_name("volume")


@pytest.fixture
def job(image: Path, volume: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Job:
    """Return a function: `job("repro", PRESET="digits")` runs a job in the volume. It returns its exit code and the lines it printed.

    The parameters are really changed. In place of check, dvc repro and summary, the line `trains with ` and the parameters is printed.
    """
    digests = image.with_name("digests.json")
    digests.write_text(json.dumps(checkout.digests(image)), encoding="utf-8")
    monkeypatch.setattr(first, "IMAGE_CODE", image)
    monkeypatch.setattr(first, "IMAGE_DIGESTS", digests)
    monkeypatch.setenv("PIPELINE_HOME", str(volume))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(volume.parent))
    monkeypatch.setattr(supervision, "run_all", run_all)
    monkeypatch.chdir(image.parent)

    def run(*words: str, **variables: str) -> tuple[int, list[str]]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = first.main([*words])
        return code, "".join(capsys.readouterr()).splitlines()

    return run


def run_all(commands: Iterable[Sequence[str]], environment: Mapping[str, str], *, top: Path, lock: int | None = None) -> int:
    for command in commands:
        if command == ("dvc", "repro"):
            print("trains with", parameters(top), environment["PIPELINE_COMMIT"])
        elif command[3] == "set":
            assert lock, "set would wait for its parent"
            with chdir(top), pytest.MonkeyPatch.context() as patch:
                patch.setenv(checkout_lock.SHARED_LOCK, str(lock))
                code = command_line.main(command[3:])
            if code:
                return code
    return 0


def parameters(folder: Path) -> str:
    data: dict[str, Any] = Document.read(folder / "params.yaml").data
    return f"seed {data['seed']}, {data['source']['name']}, width {data['model']['width']}"


def test_parameters_of_a_job_stay_in_its_volume_and_the_next_job_names_them(job: Job, volume: Path) -> None:
    code, lines = job("repro", "-S", "model.width=32", "-S", "seed=2")
    assert code == 0
    assert lines[:3] == ["set: seed: 1 -> 2", "set: model.width: 16 -> 32", f"trains with seed 2, digits, width 32 {REVISION}-changed"]
    code, lines = job()
    assert code == 0
    assert lines[:2] == [
        f"container: {volume}/params.yaml was edited: it is kept as it is, not updated from {volume.with_name('image')}",
        f"trains with seed 2, digits, width 32 {REVISION}-changed",
    ]


def test_a_preset_forgets_the_parameters_of_earlier_jobs_and_keeps_a_change_by_hand(job: Job, volume: Path) -> None:
    job("repro", "-S", "seed=2")
    for _ in range(2):
        assert "seed 1, digits, width 4" in str(job("repro", "-S", "model.width=4", PRESET="digits"))
    assert "seed 1, digits, width 16" in str(job(PRESET="digits"))
    (volume / "params.yaml").write_text((volume / "params.yaml").read_text().replace("seed: 1", "seed: 7"))
    assert "seed 7, digits, width 32" in str(job("repro", "-S", "model.width=32"))
    assert "params.yaml had other values" in str(job(PRESET="cifar10-cnn"))
    assert any("seed: 7" in path.read_text() for path in (volume / ".pipeline/replaced").iterdir())


@pytest.mark.parametrize(
    ("words", "preset", "message"),
    [
        (["repro"], "cifar", "error: there is no preset 'cifar': the presets are cifar10-cnn, cifar10-finetune"),
        (["repro", "-S", "model.widht=3"], "cifar10-cnn", "error: model.widht=3: is not a key here: did you mean `width`?"),
        (["repro", "-S", "seed=2", "-S", "model.width=x"], "", 'error: model.width=x: should be a whole number, not "x"'),
    ],
)
def test_wrong_parameters_are_refused_before_anything_changes_or_runs(
    job: Job, volume: Path, words: list[str], preset: str, message: str
) -> None:
    job("repro", "-S", "seed=5")
    before = (volume / "params.yaml").read_bytes()
    code, lines = job(*words, PRESET=preset)
    assert code == 2
    assert any(line.startswith(message) for line in lines), lines
    assert "trains with" not in str(lines)
    assert (volume / "params.yaml").read_bytes() == before
