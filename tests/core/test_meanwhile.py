"""Data, parameters and code that change while DVC runs a stage: the result is refused, or it is that of the inputs that DVC records.

It is never half of each.
"""

import glob
import hashlib
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.core import identity
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Unavailable
from pipeline.evaluate import stage as evaluate_stage
from pipeline.inference import model_file
from pipeline.prepare import stage as prepare_stage
from pipeline.prepare.reading import archives
from pipeline.runs import run_description
from pipeline.tools import stages
from pipeline.train import training
from tests import project
from tests.conftest import MLP
from tests.imports import TOP
from tests.repository import repository, variables
from tests.sources.pictures import picture, write_folder

CLASSES = ("cat", "dog")
SOURCE = project.IMAGE_FOLDER | {"valid": 0.1, "image_size": 6, "channels": 1}
IMAGES = "data/raw/images"
ARRAY, MODEL, CODE = Path("data/prepared/train-inputs.npy"), Path("models/model.safetensors"), Path("pipeline/train/engine/fit.py")
WITHOUT_IGNORED = identity.without_ignored
LOOP = (training.Training, "save_when_due")
Edit = Callable[[], object]


def images(count: int = 20, **more: int) -> dict[str, bytes]:
    """Return grey images, whose values differ. All have the same size in bytes."""
    names = [f"{CLASSES[number % 2]}/{number:04}.bmp" for number in range(count)]
    return {name: picture(value, "BMP") for name, value in {**dict(zip(names, range(count), strict=True)), **more}.items()}


def source(root: str, **changes: object) -> dict[str, object]:
    section = {f"source.{key}": value for key, value in {**SOURCE, "root": root, **changes}.items()}
    return {**section, "evaluate.top_k": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setattr(identity, "SETTLES_WITHIN_S", 0.0)
    monkeypatch.setattr(identity, "without_ignored", lambda names, _: names)  # one test asks DVC, which takes a second
    monkeypatch.chdir(project.make(tmp_path))
    write_folder(tmp_path / IMAGES, images())
    project.write_params(tmp_path, source(IMAGES))
    return tmp_path


def by_dvc(stage: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("DVC_STAGE", stage)
    return main([stage])


def after(owner: object, name: str, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `edit` once, after the first call of `name` of `owner`."""
    original, edits = getattr(owner, name), [edit]

    def edited(*arguments, **more):
        result = original(*arguments, **more)
        if edits:
            edits.pop()()
        return result

    monkeypatch.setattr(owner, name, edited)


def replace(path: Path, data: bytes) -> None:
    """Write a file as DVC, Git and rsync do: another file takes the name."""
    draft = path.with_name("draft")
    draft.write_bytes(data)
    draft.replace(path)


def write_arrays(path: Path, value: int = 0) -> None:
    np.savez(
        path, inputs=np.arange(20 * 36, dtype=np.uint32).astype(np.uint8).reshape(20, 6, 6) + np.uint8(value), targets=np.arange(20) % 2
    )


def test_an_array_that_was_changed_in_its_file_while_prepare_read_it_is_refused(folder: Path, monkeypatch, capsys) -> None:
    """It keeps its size."""
    write_arrays(folder / "data/a.npz")
    params = YAML().load(Path("params.yaml"))
    kept = ("seed", "folds", "fold", "duplicates", "valid", "test")
    params["source"] = {"name": "arrays", "root": "data/a.npz"} | {key: params["source"][key] for key in kept}
    YAML().dump(params, Path("params.yaml"))
    after(prepare_stage.writer, "store", lambda: write_arrays(folder / "data/a.npz", 1), monkeypatch)
    assert by_dvc("prepare", monkeypatch) == Unavailable.exit_code
    error = capsys.readouterr().err
    assert "error: data/a.npz: changed while prepare ran. DVC would store the result under the new data." in error


@pytest.mark.parametrize("edit", ["changed", "removed", "added"])
def test_images_that_were_changed_added_or_removed_are_refused(folder: Path, monkeypatch, capsys, edit: str) -> None:
    path = folder / IMAGES / ("cat/new.bmp" if edit == "added" else "cat/0000.bmp")
    change = path.unlink if edit == "removed" else lambda: path.write_bytes(picture(99, "BMP"))
    after(prepare_stage.writer, "store", change, monkeypatch)
    assert by_dvc("prepare", monkeypatch) == Unavailable.exit_code
    assert f"{path.relative_to(folder)}: changed while prepare ran" in capsys.readouterr().err


def test_equal_bytes_with_another_time_are_no_change(folder: Path, monkeypatch) -> None:
    """DVC restores files so. Then `prepare` reads all of them once more."""
    calls = []
    after(prepare_stage.writer, "store", lambda: calls.append(replace(folder / IMAGES / "cat/0000.bmp", picture(0, "BMP"))), monkeypatch)
    assert by_dvc("prepare", monkeypatch) == 0
    assert len(calls) == 1
    assert sorted(read(folder)) == list(range(20))


def test_a_file_that_prepare_does_not_read_may_be_added(folder: Path, monkeypatch) -> None:
    after(prepare_stage.writer, "store", (folder / IMAGES / ".DS_Store").touch, monkeypatch)
    assert by_dvc("prepare", monkeypatch) == 0


def test_a_file_that_dvc_ignores_may_be_added(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(identity, "without_ignored", WITHOUT_IGNORED)
    monkeypatch.setattr(identity.subprocess, "run", lambda *_, **given: SimpleNamespace(stdout=given["input"]))
    after(prepare_stage.writer, "store", (folder / IMAGES / "cat/0.bmp").touch, monkeypatch)
    assert by_dvc("prepare", monkeypatch) == 0


def test_other_bytes_that_were_there_only_while_they_were_read_are_refused(folder: Path, monkeypatch, capsys) -> None:
    """As `git stash` and `git stash pop` do. At the end of the stage, all bytes are those of its begin."""
    path = folder / IMAGES / "cat/0000.bmp"
    before, original, reads = path.read_bytes(), archives.Folder.read, []

    def reading(self, name: str) -> bytes:
        reads.append(name)
        if len(reads) > 1:
            return original(self, name)
        replace(path, picture(200, "BMP"))
        data = original(self, "cat/0000.bmp")
        replace(path, before)
        return data

    monkeypatch.setattr(archives.Folder, "read", reading)
    assert by_dvc("prepare", monkeypatch) == Unavailable.exit_code
    assert f"{IMAGES}/cat/0000.bmp: changed while prepare ran" in capsys.readouterr().err


def read(folder: Path) -> list[int]:
    """Return the grey values of all images in the prepared data."""
    splits = Prepared.open(folder / "data/prepared").splits.values()
    return [int(value) for split in splits for value in split.inputs[:, 0, 0, 0]]


@pytest.fixture
def prepared(folder: Path) -> Path:
    assert main(["prepare"]) == 0
    return folder


@pytest.mark.parametrize("in_place", [True, False])
def test_a_training_whose_data_were_changed_is_refused_and_saved_unless_it_may_have_read_them(
    prepared: Path, monkeypatch, capsys, in_place: bool
) -> None:
    before = ARRAY.read_bytes()

    def flip() -> None:
        changed = before[:-1] + bytes([before[-1] ^ 1])
        if in_place:  # into the file that the training has mapped
            ARRAY.write_bytes(changed)
        else:
            replace(ARRAY, changed)

    after(*LOOP, flip, monkeypatch)
    assert by_dvc("train", monkeypatch) == Unavailable.exit_code
    streams = capsys.readouterr()
    assert f"error: {ARRAY}: changed while train ran" in streams.err
    assert ("train: the checkpoints are deleted" if in_place else "train: step 24 is saved") in streams.out
    ARRAY.write_bytes(before)
    assert by_dvc("train", monkeypatch) == 0
    assert ("resuming after step 24" in capsys.readouterr().out) != in_place


def test_a_training_whose_data_and_weights_were_restored_with_other_times_goes_on(prepared: Path, monkeypatch) -> None:
    assert main(["train"]) == 0
    weights = Path("data/weights/start.safetensors")
    weights.write_bytes(MODEL.read_bytes())
    project.write_params(prepared, {**source(IMAGES), "model": {**MLP, "weights": weights.name}})
    after(*LOOP, lambda: [replace(path, path.read_bytes()) for path in (ARRAY, weights)], monkeypatch)
    assert by_dvc("train", monkeypatch) == 0
    after(*LOOP, lambda: replace(weights, bytes(reversed(weights.read_bytes()))), monkeypatch)
    assert by_dvc("train", monkeypatch) == Unavailable.exit_code


def test_an_evaluation_whose_model_was_changed_is_refused_and_writes_nothing(prepared: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("pipeline.tasks.classification.evaluate.Evaluator.write", lambda *_, **__: None)  # figures take seconds
    assert main(["train"]) == 0
    whole = MODEL.read_bytes()
    after(evaluate_stage, "judge", lambda: replace(MODEL, whole), monkeypatch)
    assert by_dvc("evaluate", monkeypatch) == 0
    Path("metrics/evaluate.json").unlink()
    project.write_params(prepared, {**source(IMAGES), "seed": 2})
    assert main(["train"]) == 0
    assert len(MODEL.read_bytes()) == len(whole)
    after(evaluate_stage, "judge", lambda: replace(MODEL, whole), monkeypatch)
    assert by_dvc("evaluate", monkeypatch) == Unavailable.exit_code
    assert f"error: {MODEL}: changed while evaluate ran" in capsys.readouterr().err
    assert not Path("metrics/evaluate.json").exists()


def edit(folder: Path, **changes: object) -> None:
    project.write_params(folder, {**source(IMAGES), **changes})


def widen(folder: Path) -> None:
    edit(folder, model={**MLP, "width": 20})


def test_a_training_whose_parameters_were_edited_fails_and_ends_at_once_with_the_old_ones(prepared: Path, monkeypatch, capsys) -> None:
    after(*LOOP, lambda: widen(prepared), monkeypatch)
    assert by_dvc("train", monkeypatch) == 2
    edited, error = Path("params.yaml").read_text(), capsys.readouterr().err
    line = next(number for number, text in enumerate(edited.splitlines(), start=1) if "width: 20" in text)
    assert error.startswith(f"error: params.yaml:{line}: model.width: was 16 when train began, and is 20 now. DVC would store the result")
    assert not MODEL.exists()
    edit(prepared)
    assert by_dvc("train", monkeypatch) == 0
    assert "resuming after step 24" in capsys.readouterr().out


def test_an_edit_while_the_results_are_written_is_found_too(prepared: Path, monkeypatch, capsys) -> None:
    after(run_description, "add_training", lambda: widen(prepared), monkeypatch)
    assert by_dvc("train", monkeypatch) == 2
    edit(prepared)
    assert by_dvc("train", monkeypatch) == 0
    assert "resuming after step 24" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_at_the_end_is_no_reason_to_begin_again(prepared: Path, monkeypatch, capsys) -> None:
    after(*LOOP, lambda: Path("params.yaml").write_text("model: [\n"), monkeypatch)
    assert by_dvc("train", monkeypatch) == 2
    streams = capsys.readouterr()
    assert "train: step 24 is saved: with the old values, code and data, the same command continues after it" in streams.out
    assert "It could be read when train began. To keep the old values, restore params.yaml and repeat the command." in streams.err


def test_an_edit_that_is_soon_undone_is_no_error(prepared: Path, monkeypatch) -> None:
    """`dvc exp run --queue` changes the checkout for a second."""
    monkeypatch.setattr(identity, "SETTLES_WITHIN_S", 60.0)
    before, undone = Path("params.yaml").read_bytes(), []

    def undo() -> None:
        undone.append(Path("params.yaml").read_bytes() != before)
        Path("params.yaml").write_bytes(before)

    after(identity.StageInputs, "change", undo, monkeypatch)
    after(*LOOP, lambda: widen(prepared), monkeypatch)
    assert by_dvc("train", monkeypatch) == 0
    assert undone == [True]


@pytest.mark.parametrize("owner", [stages, training.Training], ids=["while it is imported", "in the loop"])
def test_a_training_whose_code_was_edited_or_removed_fails(prepared: Path, monkeypatch, capsys, owner: object) -> None:
    Path("pipeline").unlink()
    shutil.copytree(TOP / "pipeline", "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    name, change = ("import_module", lambda: CODE.write_text("# edited\n")) if owner is stages else ("save_when_due", CODE.unlink)
    after(owner, name, change, monkeypatch)
    assert by_dvc("train", monkeypatch) == 2
    assert f"error: {CODE}: changed while train ran. DVC would store the result under the new code." in capsys.readouterr().err


def test_edits_of_another_stages_parameters_are_allowed(prepared: Path, monkeypatch) -> None:
    after(*LOOP, lambda: edit(prepared, **{"evaluate.batch_size": 7}), monkeypatch)
    assert by_dvc("train", monkeypatch) == 0


def test_without_dvc_nothing_records_the_new_parameters(prepared: Path, monkeypatch) -> None:
    after(*LOOP, lambda: widen(prepared), monkeypatch)
    assert main(["train"]) == 0
    assert model_file.load(MODEL)[1].inference.model.width == 16


def dvc_hash(root: Path) -> str:
    """Return the hash that DVC records for a folder."""
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    entries = [{"md5": hashlib.md5((root / name).read_bytes()).hexdigest(), "relpath": name} for name in names]  # noqa: S324
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode()).hexdigest() + ".dir"  # noqa: S324


def tracked(folder: Path) -> str:
    """Return the hash of the images in dvc.lock."""
    deps = YAML(typ="safe").load(folder / "dvc.lock")["stages"]["prepare"]["deps"]
    return str(next(dep["md5"] for dep in deps if dep["path"] == IMAGES))


@pytest.mark.slow
def test_the_hash_in_dvc_lock_is_that_of_the_bytes_that_were_read(tmp_path: Path) -> None:
    """Images are replaced at random instants of real runs; every second time only their times change. A file that DVC ignores grows.

    A trial that writes after the stage's last look, when its result is printed, says nothing: decision 20 names this limit. The stage may
    also refuse images that are still being replaced when it has read them again.
    """
    folder, root, count, trials = repository(tmp_path), tmp_path / IMAGES, 3000, 6
    with (folder / ".dvcignore").open("a") as file:
        file.write("*.log\n")
    project.write_params(folder, source(IMAGES, image_size=64))
    write_folder(root, images(2, **{f"{CLASSES[number % 2]}/{number:04}.bmp": number % 100 for number in range(count)}))
    generator, seen = random.Random(trials), []
    for trial in range(trials):
        with (folder / "output.log").open("wb") as output:
            command = subprocess.Popen(
                ["dvc", "repro", "-f", "prepare"], cwd=folder, env=variables(), stderr=subprocess.DEVNULL, stdout=output
            )
        # not Path.glob, which fails where DVC removes the folder meanwhile
        while command.poll() is None and not glob.glob(f"{folder}/data/prepared/.train-inputs*.draft"):  # noqa: PTH207
            time.sleep(0.005)
        time.sleep(generator.random() * 0.3)
        chosen = generator.sample(sorted(root.rglob("*.bmp")), 100)
        (root / "notes.log").write_text("." * trial)
        for path in chosen:
            replace(path, path.read_bytes() if trial % 2 else picture(100 + trial, "BMP", side=16))
        was_over = b"prepare: train: " in (folder / "output.log").read_bytes()
        complete = command.wait(120) == 0
        if was_over:
            continue
        seen.append((trial % 2, complete))
        if complete:
            (root / "notes.log").unlink()
            values = [int(np.frombuffer(path.read_bytes(), np.uint8)[-1]) for path in root.rglob("*.bmp")]
            assert tracked(folder) == dvc_hash(root)
            assert sorted(read(folder)) == sorted(values)
    assert any(complete for restored, complete in seen if restored)
    assert not all(complete for restored, complete in seen if not restored)
