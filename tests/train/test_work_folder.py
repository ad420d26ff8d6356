"""The work folder: one process for each training, two old folders kept, and a message on what changed."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core import files
from pipeline.core.identity import RunIdentity
from pipeline.core.refusal import Refusal
from pipeline.train import work_folder

BASE = RunIdentity(data="d", code="c", lock="l", params={"seed": 0}, fingerprint={"threads": 2})


def seeded(seed: int) -> RunIdentity:
    return replace(BASE, params={"seed": seed})


def folders(root: Path) -> set[str]:
    return {path.name for path in (root / ".pipeline/work").iterdir() if path.is_dir()}


def locks(root: Path) -> set[str]:
    return {path.stem for path in (root / ".pipeline/work").glob("*.lock")}


def begin(root: Path, inputs: RunIdentity) -> Path:
    """Start a training that ends before its results are written."""
    with work_folder.claimed(root, inputs) as place:
        (place.folder / "state").write_text("half")
        return place.folder


def test_the_folder_of_equal_inputs_is_found_again_and_removed_after_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin(tmp_path, BASE)
    with work_folder.claimed(tmp_path, BASE) as place:
        assert (place.folder / "state").read_text() == "half"
        place.clear()
    assert folders(tmp_path) == locks(tmp_path) == set()
    assert capsys.readouterr().out == ""


def test_a_second_process_of_equal_inputs_is_refused_and_one_of_others_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_folder, "CLAIM_WITHIN_S", 0.1)
    with work_folder.claimed(tmp_path, BASE) as place:
        with pytest.raises(Refusal, match=f"{place.folder}: another process is training with the same inputs: wait for it, or stop it"):
            begin(tmp_path, BASE)
        begin(tmp_path, seeded(1))
    begin(tmp_path, BASE)


def test_a_new_start_says_which_inputs_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = begin(tmp_path, BASE)
    begin(tmp_path, seeded(2))
    assert capsys.readouterr().out == "", "a training that saved nothing has nothing to lose"
    (tmp_path / ".pipeline/work" / seeded(2).key / "inputs.json").unlink()
    (folder / "step-000000000007.safetensors").touch()
    other_data = begin(tmp_path, replace(BASE, data="other"))
    assert capsys.readouterr().out == "", "a training on other data continues nothing"
    (other_data / "inputs.json").unlink()
    begin(tmp_path, replace(seeded(1), code="other"))
    said = capsys.readouterr().out
    assert said == f"train: the unfinished training in {folder} has other inputs (code, seed): starting from the beginning\n"
    (tmp_path / ".pipeline/work" / replace(seeded(1), code="other").key / "inputs.json").unlink()
    third = begin(tmp_path, replace(seeded(1), code="third"))
    assert capsys.readouterr().out == "", "it is said once"
    (third / "inputs.json").unlink()
    third = begin(tmp_path, replace(BASE, code="third"))
    assert f"{folder} has other inputs (code): " in capsys.readouterr().out, "not the inputs that it has named"
    (third / "inputs.json").unlink()
    begin(tmp_path, BASE)
    begin(tmp_path, replace(BASE, code="third"))
    assert f"{folder} has other inputs (code): " in capsys.readouterr().out, "the folder has been used since"


def test_old_folders_and_what_a_kill_left_are_dropped_to_two_the_newest_kept_but_none_in_use(tmp_path: Path) -> None:
    (tmp_path / ".pipeline/work/0123456789abcdef").mkdir(parents=True)
    (tmp_path / ".pipeline/work/fedcba9876543210.lock").touch()
    with work_folder.claimed(tmp_path, BASE):
        for seed in range(1, 6):
            begin(tmp_path, seeded(seed))
        assert folders(tmp_path) == locks(tmp_path) == {BASE.key, *(seeded(seed).key for seed in (3, 4, 5))}


def on(cpu: str) -> RunIdentity:
    return replace(BASE, fingerprint={"cpu": cpu, "threads": 2})


def test_another_cpu_is_named_and_its_checkpoint_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = begin(tmp_path, on("GenuineIntel family 6 model 106"))
    (folder / "step-000000000007.safetensors").touch()
    begin(tmp_path, seeded(1))  # newer, but another training
    capsys.readouterr()
    begin(tmp_path, on("AuthenticAMD family 25 model 17"))
    assert capsys.readouterr().out == (
        f"train: the unfinished training in {folder} began on a machine that gives other bits (machine.cpu: GenuineIntel family 6 model 106 there, "
        "AuthenticAMD family 25 model 17 here): starting from the beginning. The same command on a machine like that one continues it: "
        'docs/clusters.md, "One kind of machine"\n'
    )
    for model in range(5):  # more machines than old folders are kept
        begin(tmp_path, on(f"AuthenticAMD family 26 model {model}"))
    assert (folder / "step-000000000007.safetensors").exists()
    for seed in range(2, 5):
        begin(tmp_path, seeded(seed))
    assert not folder.exists(), "the work folders of another training are kept no longer than others"


def test_another_number_of_threads_is_named_with_the_variable_that_continues_it(tmp_path: Path, capsys) -> None:
    folder = begin(tmp_path, on("AuthenticAMD family 25 model 17"))
    (folder / "step-000000000007.safetensors").touch()
    begin(tmp_path, replace(BASE, fingerprint={"cpu": "AuthenticAMD family 25 model 17", "threads": 1}))
    assert capsys.readouterr().out == (
        f"train: the unfinished training in {folder} has 2 threads, which give other bits than 1: starting from the beginning. "
        "`export PIPELINE_THREADS=2`, and the same command continues it\n"
    )


def test_an_unfinished_training_counts_by_its_last_checkpoint_and_is_not_dropped_in_silence(tmp_path: Path, capsys) -> None:
    for seed in range(3):
        folder = begin(tmp_path, seeded(seed))
        (folder / "step-000000000001.safetensors").touch()
        for path in folder.iterdir():
            os.utime(path, (seed, seed))
    first = tmp_path / ".pipeline/work" / seeded(0).key
    os.utime(first / "step-000000000001.safetensors", (9, 9))
    begin(tmp_path, seeded(3))
    assert folders(tmp_path) == {seeded(seed).key for seed in (0, 2, 3)}
    dropped = tmp_path / ".pipeline/work" / seeded(1).key
    assert f"train: deleting the unfinished training in {dropped}: only the 2 newest work folders are kept" in capsys.readouterr().out


def test_no_two_hold_a_folder_however_often_its_lock_file_comes_and_goes(tmp_path: Path) -> None:
    inside, worst = 0, 0

    def train(number: int) -> None:
        nonlocal inside, worst
        for _ in range(20):
            try:
                with work_folder.claimed(tmp_path, BASE) as place:
                    inside += 1
                    worst = max(worst, inside)
                    time.sleep(0.0005)
                    inside -= 1
                    place.clear()
            except Refusal:
                continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, range(4)))
    assert worst == 1
    assert folders(tmp_path) == locks(tmp_path) == set()


@pytest.mark.parametrize("content", ["[1]", "{half"])
def test_a_damaged_old_folder_hinders_no_new_training(tmp_path: Path, content: str) -> None:
    folder = begin(tmp_path, BASE)
    files.write_text(folder / "inputs.json", content)
    assert begin(tmp_path, seeded(1)).exists()
