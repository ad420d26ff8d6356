"""The verbs: help is immediate, unknown verbs are refused, and no verb imports what it does not use."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline import __main__
from pipeline.__main__ import main, print_error, print_failure
from pipeline.tools.verbs import VERBS
from tests import project
from tests.forking import ForkServer
from tests.imports import TOP

HEAVY = {
    *("torch", "torch._dynamo", "torchvision", "mlflow", "sqlalchemy", "dvc", "sklearn", "scipy", "pandas", "matplotlib", "PIL"),
    *("numpy", "safetensors", "rich", "pipeline.tools.profile"),
}
"""Modules that take more than some hundredths of a second to import and are used by some verbs only."""
FETCHED = {"mlflow", "sqlalchemy", "dvc", "sklearn", "scipy", "pandas", "torchvision", "rich", "pipeline.tools.profile"}
"""Modules that a stage does not use when it trains or evaluates without tracking."""


class Verbs(ForkServer):
    """Runs verbs in forks of a process that has imported nothing, or torch alone."""

    def __init__(self, log: Path, *imported: str) -> None:
        super().__init__("tests.importing", log, {"PIPELINE_TRACKING": "false"}, *imported)

    def modules_after(self, *words: str, cwd: Path = TOP, **variables: str) -> tuple[int, set[str]]:
        """Return the exit code of a verb and all modules that were imported."""
        found = self.ask(folder=str(cwd), words=words, variables=variables)
        return found["code"], set(found["modules"])

    def heavy_after(self, *words: str, cwd: Path = TOP, **variables: str) -> tuple[int, set[str]]:
        """Return the exit code of a verb and the heavy modules that were imported."""
        code, found = self.modules_after(*words, cwd=cwd, **variables)
        return code, found & HEAVY


@pytest.fixture(scope="module")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verbs]:
    with Verbs(tmp_path_factory.mktemp("verbs") / "log") as started:
        yield started


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verbs]:
    """For verbs that need torch, whose import takes longer than most of them."""
    with Verbs(tmp_path_factory.mktemp("verbs") / "log", "torch") as started:
        yield started


@pytest.fixture(scope="module")
def trained(verbs: Verbs, with_torch: Verbs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, set[str]]]:
    """Return a project in which every stage ran, the training alone with tracking, and the heavy modules that each stage imported."""
    folder = project.make(tmp_path_factory.mktemp("project"))
    found = {}
    for stage, server, tracking in (("prepare", verbs, "false"), ("train", with_torch, "true"), ("evaluate", with_torch, "false")):
        code, found[stage] = server.heavy_after(stage, cwd=folder, PIPELINE_TRACKING=tracking, PIPELINE_TRACKING_MIRROR="false")
        assert code == 0
    return folder, found


def test_help_is_there_at_once() -> None:
    def modules(*lines: str) -> set[str]:
        code = "\n".join((*lines, "import sys; print(*sys.modules, file=sys.stderr)"))
        done = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True)
        return set(done.stderr.split())

    bare = modules()
    for words in (["--help"], ["train", "--help"]):
        found = modules("from pipeline.__main__ import main", f"try: main({words})", "except SystemExit as end: assert not end.code")
        foreign = {name.partition(".")[0] for name in found - bare} - sys.stdlib_module_names
        assert foreign == {"pipeline"}
        assert not found & {"asyncio", "email", "http", "logging", "ssl", "urllib.request"}


def test_a_preset_a_typing_error_and_a_journal_with_nothing_left_need_nothing_heavy(
    verbs: Verbs, with_torch: Verbs, tmp_path: Path
) -> None:
    project.make(tmp_path)
    (tmp_path / "presets").symlink_to(TOP / "presets")
    (tmp_path / "params.yaml").unlink()
    assert verbs.heavy_after("set", "preset=digits", cwd=tmp_path) == (0, set())
    assert verbs.heavy_after("sync", cwd=tmp_path, PIPELINE_TRACKING="true") == (0, set())
    assert verbs.heavy_after("set", "train.epoch=3", "model.width=3", cwd=tmp_path) == (2, {"numpy"}), "a source needs it"
    code, found = with_torch.heavy_after("set", "train.epochs=3", cwd=tmp_path)
    assert code == 0
    assert not found & {*FETCHED, "torch._dynamo", "matplotlib", "PIL"}


def edited(folder: Path, good: str, bad: str) -> Path:
    """Return a project whose parameters are the digits preset with an error."""
    text = (TOP / "presets/digits.yaml").read_text(encoding="utf-8")
    assert good in text
    (project.make(folder) / "params.yaml").write_text(text.replace(good, bad), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("verb", "good", "bad"),
    [
        ("check", "name: convnet", "name: convnt"),
        ("prepare", "name: digits", "name: digit"),
        ("train", "learning_rate:", "learning_rat:"),
        ("evaluate", "batch_size: 256", "batch_size: 0"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_before_anything_heavy_is_imported(
    verbs: Verbs, tmp_path: Path, verb: str, good: str, bad: str
) -> None:
    code, found = verbs.heavy_after(verb, cwd=edited(tmp_path, good, bad))
    assert code == 2
    # `check` looks at the data, too, as far as the parameters of the data are sound, and at the settings of DVC; those of `evaluate` stand beside its scores
    assert found <= {"check": {"numpy", "dvc"}, "evaluate": {"numpy"}}.get(verb, set())


def test_check_imports_torch_without_its_compiler_and_nothing_of_other_verbs(with_torch: Verbs, tmp_path: Path) -> None:
    code, found = with_torch.heavy_after("check", cwd=project.make(tmp_path))
    assert code == 0
    assert "torch" in found
    assert not found & {*FETCHED, "torch._dynamo", "matplotlib", "PIL"} - {"dvc"}, "of DVC only its settings"


def test_doctor_needs_nothing_that_takes_seconds_to_import(verbs: Verbs, tmp_path: Path) -> None:
    code, found = verbs.heavy_after("doctor", cwd=project.make(tmp_path))
    assert code in (0, 1)
    assert found == set()


def test_prepare_needs_no_torch(verbs: Verbs, tmp_path: Path, trained: tuple[Path, dict[str, set[str]]]) -> None:
    assert "torch" not in trained[1]["prepare"]
    root = tmp_path / "arrays"
    root.mkdir()
    for split, samples in {"train": 9, "test": 3}.items():
        np.save(root / f"{split}-inputs.npy", np.zeros((samples, 4, 4, 1), np.uint8), allow_pickle=False)
        np.save(root / f"{split}-targets.npy", np.arange(samples) % 3, allow_pickle=False)
    source = {"name": "arrays", "root": str(root), "valid": 0.0, "test": 0.0, "seed": 1, "folds": None, "fold": 0, "duplicates": "keep"}
    assert verbs.heavy_after("prepare", cwd=project.make(tmp_path / "project", {"source": source})) == (0, {"numpy"})


def test_a_search_is_refused_before_anything_heavy_is_imported_and_needs_no_mlflow(verbs: Verbs, tmp_path: Path) -> None:
    text = (TOP / "presets/search/digits.yaml").read_text(encoding="utf-8")
    (project.make(tmp_path) / "search.yaml").write_text(text.replace("trials: 20", "trials: none"), encoding="utf-8")
    code, found = verbs.modules_after("search", "search.yaml", cwd=tmp_path)
    assert (code, found & {*HEAVY, "optuna"}) == (2, {"numpy"})
    code, found = verbs.modules_after("trial", "nowhere", cwd=tmp_path)
    assert (code, found & {*HEAVY, "optuna"}) == (2, set())


def test_a_training_leaves_mlflow_to_its_mirror_and_a_stage_without_tracking_imports_nothing_of_it(
    trained: tuple[Path, dict[str, set[str]]],
) -> None:
    _, found = trained
    assert not found["train"] & {*FETCHED, "matplotlib", "PIL"}
    assert not found["evaluate"] & {*FETCHED - {"scipy", "pandas"}, "torch._dynamo"}, (
        "scipy gives the interval of the accuracy; pyarrow looks for pandas"
    )


def test_the_summary_of_a_repetition_needs_neither_torch_nor_mlflow(verbs: Verbs, trained: tuple[Path, dict[str, set[str]]]) -> None:
    variables = {"PIPELINE_TRACKING": "true", "PIPELINE_TRACKING_MIRROR": "false"}
    verbs.heavy_after("summary", cwd=trained[0], **variables)  # the first one records the scores of an evaluation without tracking
    code, found = verbs.heavy_after("summary", cwd=trained[0], **variables)
    assert code == 0
    assert found <= {"numpy"}


def test_help_lists_every_verb_with_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    output = " ".join(capsys.readouterr().out.split())
    for name, verb in VERBS.items():
        assert (f"{name} {verb.purpose}" in output) == verb.listed
    assert {name for name, verb in VERBS.items() if not verb.listed} == {"summary", "trial"}


@pytest.mark.parametrize("arguments", [["trian"], [], ["check", "--fast"]], ids=str)
def test_a_wrong_verb_or_argument_ends_with_2_and_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert output.startswith("usage: python -m pipeline")
    assert "Traceback" not in output
    if arguments != ["check", "--fast"]:
        assert all(name in output for name, verb in VERBS.items() if verb.listed)
    assert ("did you mean `train`?" in output) == (arguments == ["trian"])


def test_a_reader_that_ends_early_ends_a_verb_without_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-m", "pipeline", "doctor"], cwd=TOP, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_many_lines_of_an_error_are_cut_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    for count, last in ((20, "error: 19"), (21, "error: ... and 1 more")):
        assert print_error("\n".join(map(str, range(count))), 2) == 2
        assert capsys.readouterr().err.splitlines()[-1] == last


@pytest.mark.parametrize("number", [errno.EBADF, errno.EPIPE])  # EPIPE of a connection, as stdout can be written
def test_an_error_of_the_system_without_a_remedy_keeps_its_traceback(number: int) -> None:
    with pytest.raises(OSError, match="a surprise"):
        print_failure(OSError(number, "a surprise"))


def test_libraries_get_variables_that_they_read_when_they_are_loaded_and_a_users_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    __main__.set_up_libraries()
    assert (os.environ["MPLBACKEND"], os.environ["GOMP_SPINCOUNT"]) == ("agg", "7")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    __main__.set_up_libraries()
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    __main__.set_up_libraries()
    assert os.environ["GOMP_SPINCOUNT"] == str(__main__.SPIN_COUNT)
