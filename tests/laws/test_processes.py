"""One, two and four processes with the same lanes end in the same bytes, also after signals, kills, hangs and out of memory.

Most trainings are forked; the last tests start theirs by torch.distributed.run, as a user does.
"""

import os
import random
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.core.refusal import Unavailable
from pipeline.inference import model_file
from pipeline.runs.journal import journals
from pipeline.train.group.processes import LOST, OUT_OF_MEMORY
from tests import project
from tests.forking import free_port
from tests.laws.ranks import Fault, Server, of_rank
from tests.laws.test_resuming import CONVNET, MUON, SGD
from tests.project import digests

STEPS = 12
COMMON = {
    "train.epochs": None,
    "train.steps": STEPS,
    "train.lanes": 4,
    "train.batch_size": 24,
    "train.micro_batch_size": 4,
    "train.report_every_steps": 3,
    "train.validate_every_steps": 6,
    "train.export_weights": "best",
    "train.metric": "valid/macro_f1",
    "train.clip_norm": 1.0,
    "train.ema_decay": 0.9,
}
MIXED = {"augment.crop_padding": 0, "augment.resized_crop": 0.3, "augment.flip": "random", "augment.mixup": 0.4, "augment.cutmix": 1.0}
TEXT = {**COMMON, "train.lanes": 2}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "muon, mixed": ("digits", {**COMMON, **MIXED, "model": CONVNET, "optimizer": MUON, "train.on_nonfinite": "skip"}),
    "fp16": ("digits", {**COMMON, "model": CONVNET, "optimizer": SGD, "train.precision": "fp16", "train.activation_checkpointing": True}),
    "texts": ("texts", TEXT),
    "code": ("code", {**TEXT, "train.metric": "valid/perplexity"}),
    "table": ("table", TEXT),
}
"""Networks with BatchNorm and dropout, and gradient accumulation: a lane of 6 samples is two micro-batches."""
MAIN = "muon, mixed"
RECIPES["long"] = ("digits", RECIPES[MAIN][1] | {"train.steps": 200, "train.report_every_steps": 10, "train.validate_every_steps": 50})
LONG_FORMS = [
    pytest.param(name, count, marks=pytest.mark.slow) for name, count in ((MAIN, 4), ("fp16", 4), ("code", 2), ("texts", 2), ("table", 2))
]
AGAIN = "starting all processes again from the last checkpoint"
EVERY_STEP = {"PIPELINE_CHECKPOINT_EVERY_STEPS": "1"}
Whole = Callable[[str], Path]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ranks") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return a function from the name of a recipe to a project that one process has trained. Tests only read it."""

    @cache
    def trained(name: str) -> Path:
        setting, changes = RECIPES[name]
        folder = project.make(tmp_path_factory.mktemp("whole") / "project", changes, setting=setting)
        server.train(folder, verb="prepare")
        server.train(folder)
        return folder

    return trained


def again(whole: Path, folder: Path) -> Path:
    """Make a project with the parameters and the prepared data of another one."""
    project.make(folder)
    (folder / "params.yaml").write_bytes((whole / "params.yaml").read_bytes())
    (folder / "data/prepared").symlink_to(whole / "data/prepared")
    return folder


@pytest.mark.parametrize(("name", "count"), [(MAIN, 2), *LONG_FORMS])
def test_every_number_of_processes_ends_in_the_same_bytes(server: Server, whole: Whole, tmp_path: Path, name: str, count: int) -> None:
    folder = again(whole(name), tmp_path / "project")
    server.train(folder, count, PIPELINE_TRACKING="true", PIPELINE_TRACKING_MIRROR="false")
    assert digests(folder) == digests(whole(name))
    assert len(journals(folder)) == 1
    assert f"step {STEPS} of {STEPS}" in (folder / "rank-0.log").read_text()


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, or 0."""
    return max((int(path.stem.removeprefix("step-")) for path in folder.glob(".pipeline/work/*/step-*")), default=0)


def saved_step(output: str) -> int:
    """Return the step of the last save that the output names."""
    *_, step = re.findall(r"train: step (\d+) is saved: the same command continues after it", output)
    return int(step)


def objectives(folder: Path) -> list[float]:
    header, *rows = (line.split(",") for line in (folder / "plots/train/history.csv").read_text().splitlines())
    return [float(row[header.index("train/objective")]) for row in rows]


def test_without_lanes_two_processes_learn_the_same_within_rounding(server: Server, whole: Whole, tmp_path: Path) -> None:
    """Without BatchNorm and dropout. The number of processes is recorded, because it decides the last bits."""
    found = []
    for count in (1, 2):
        folder = again(whole(MAIN), tmp_path / str(count))
        project.write_params(folder, {**COMMON, "train.lanes": 1})
        server.train(folder, count)
        found.append((objectives(folder), model_file.load(folder / "models/model.safetensors")[1].fingerprint))
    (alone, of_one), (together, of_two) = found
    assert together == pytest.approx(alone, rel=1e-5)
    assert len(alone) == 4
    assert of_two == of_one | {"processes": 2}


@pytest.mark.parametrize("counts", [(2,), pytest.param((4, 2), marks=pytest.mark.slow)], ids=str)
def test_a_checkpoint_is_continued_by_any_number_of_processes_also_after_a_signal_to_one(
    server: Server, whole: Whole, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """All processes stop after the same step, and there is one whole checkpoint of it."""
    folder = again(whole(MAIN), tmp_path / "project")
    for count, step in zip(counts, (4, 8), strict=False):
        (folder / "fault-has-happened").unlink(missing_ok=True)
        assert server.wait(*server.start(folder, count, fault=("stop signal", step))) == [128 + signal.SIGTERM] * count
        saved = saved_step((folder / "rank-0.log").read_text())
        assert step <= saved <= step + 1, "the others know of the signal one step later"
        assert newest_step(folder) == saved
        assert not list(folder.glob(".pipeline/work/*/.*"))
    server.train(folder)
    assert f"resuming after step {saved}" in (folder / "rank-0.log").read_text()
    assert digests(folder) == digests(whole(MAIN))


@pytest.mark.parametrize("variables", [EVERY_STEP, pytest.param({}, marks=pytest.mark.slow)], ids=["with a checkpoint", "without one"])
def test_out_of_memory_in_one_process_gives_the_bytes_of_a_run_that_switched_there(
    server: Server, whole: Whole, tmp_path: Path, variables: dict[str, str]
) -> None:
    alone = again(whole(MAIN), tmp_path / "alone")
    server.train(alone, fault=("out of memory", 5))
    assert "out of memory at step 5: using micro-batches of 2 from this step on" in (alone / "rank-0.log").read_text()
    together = again(whole(MAIN), tmp_path / "together")
    codes = server.wait(*server.start(together, 2, fault=("out of memory", 5), **variables))
    assert codes == [LOST, OUT_OF_MEMORY]
    server.train(together, 2)
    assert digests(together) == digests(alone) != digests(whole(MAIN))
    assert model_file.load(together / "models/model.safetensors")[1].switches == [{"step": 5, "micro_batch_size": 2}]


@pytest.mark.parametrize(("fault", "code"), [("hang", None), pytest.param("kill", -signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_process_that_hangs_or_is_killed_ends_the_others_within_the_time_limit(
    server: Server, whole: Whole, tmp_path: Path, fault: str, code: int | None
) -> None:
    folder = again(whole(MAIN), tmp_path / "project")
    first, faulty = server.start(folder, 2, fault=(fault, 5), PIPELINE_TIMEOUT_S="2", **EVERY_STEP)
    assert server.wait(first, within_s=120) == [LOST]
    assert server.wait(faulty, within_s=0 if code is None else 120) == [code]
    assert "error: rank 0: another process has ended or does not answer" in (folder / "rank-0.log").read_text()
    server.train(folder, 2)
    assert digests(folder) == digests(whole(MAIN))


class Launched:
    """A training that torch.distributed.run has started, by the pid of the launcher, which is killed at the end of the block."""

    def __init__(self, server: Server, folder: Path, *, fault: Fault | None = None, **variables: str) -> None:
        self.server, self.folder = server, folder
        self.pid = server.launch(folder, fault=fault, **EVERY_STEP, PIPELINE_TIMEOUT_S="10", **variables)

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *_: object) -> None:
        ranks = self.ranks()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for rank in ranks:
            with suppress(psutil.NoSuchProcess):
                rank.kill()

    def ranks(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children()
        return []

    def wait(self, within_s: float = 300) -> int | None:
        (code,) = self.server.wait(self.pid, within_s=within_s)
        return code

    def wait_for_a_step(self) -> None:
        """Wait until a checkpoint is newer than those that exist now."""
        begun = newest_step(self.folder)
        self.wait_for(lambda: newest_step(self.folder) > begun)

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def kill_one(self, generator: random.Random) -> None:
        """Kill a rank, and wait until the launcher starts all again."""
        times = self.log().count(AGAIN)
        self.wait_for(self.ranks)
        generator.choice(self.ranks()).kill()
        self.wait_for(lambda: self.log().count(AGAIN) > times)

    def log(self) -> str:
        return (self.folder / "launcher.log").read_text()


@pytest.mark.slow
def test_any_process_killed_at_any_moment_gives_the_same_bytes(server: Server, whole: Whole, tmp_path: Path) -> None:
    """Ranks are killed at random, during the training or the start, and at the end the launcher."""
    generator, kills = random.Random(3), 3
    folder = again(whole("long"), tmp_path / "project")
    with Launched(server, folder, PIPELINE_RESTARTS="1000") as launched:
        for number in range(kills):
            if number % 5 != 2:
                launched.wait_for_a_step()
            time.sleep(generator.uniform(0, 0.1))
            launched.kill_one(generator)
        launched.wait_for_a_step()
        found = launched.ranks()
        os.kill(launched.pid, signal.SIGKILL)
        assert launched.wait() == -signal.SIGKILL
        _, alive = psutil.wait_procs(found, timeout=300)
        assert alive == [], "they save, and end"
    assert launched.log().count(AGAIN) == kills
    server.train(folder)
    assert digests(folder) == digests(whole("long"))


@pytest.mark.slow
def test_a_signal_to_the_launcher_ends_all_with_one_whole_checkpoint(server: Server, whole: Whole, tmp_path: Path) -> None:
    folder = again(whole("long"), tmp_path / "project")
    with Launched(server, folder) as launched:
        launched.wait_for_a_step()
        os.kill(launched.pid, signal.SIGTERM)
        assert launched.wait() == 128 + signal.SIGTERM, launched.log()
    saved = saved_step(launched.log())
    assert newest_step(folder) == saved
    assert "Traceback" not in launched.log()
    server.train(folder)
    assert f"resuming after step {saved}" in (folder / "rank-0.log").read_text()
    assert digests(folder) == digests(whole("long"))


@pytest.mark.slow
def test_the_error_of_a_process_is_shown_when_the_launcher_gives_up(server: Server, whole: Whole, tmp_path: Path) -> None:
    folder = again(whole(MAIN), tmp_path / "project")
    with Launched(server, folder, fault=("own error", 3), PIPELINE_RESTARTS="0") as launched:
        assert launched.wait() == 1, launched.log()
    *_, before, last = launched.log().splitlines()
    assert before == "rank 1: LookupError: this is what was wrong with this rank"
    assert last.startswith(f"error: the process of rank 1 failed with exit code 1; the output of all ranks but 0 is in {folder}/.pipeline/")
    assert len(launched.log().splitlines()) <= 24, "it fits on a screen"


@pytest.mark.slow
def test_the_launcher_starts_all_again_after_out_of_memory_and_after_an_error(server: Server, whole: Whole, tmp_path: Path) -> None:
    alone, together, restarted = (again(whole(MAIN), tmp_path / name) for name in ("alone", "together", "restarted"))
    server.train(alone, fault=("out of memory", 5))
    with Launched(server, together, fault=("out of memory", 5), PIPELINE_RESTARTS="0") as launched:
        assert launched.wait() == 0, launched.log()
    assert "train: starting all processes again, with the smaller micro-batch" in launched.log()
    assert digests(together) == digests(alone)
    with Launched(server, restarted, fault=("own error", 5)) as launched:
        assert launched.wait() == 0, launched.log()
    assert "warning: the process of rank 1 failed with exit code 1: starting all processes again" in launched.log()
    assert digests(restarted) == digests(whole(MAIN))


@pytest.mark.slow
def test_the_other_processes_of_a_sharded_training_do_not_wait_for_mlflow(server: Server, tmp_path: Path) -> None:
    folder = project.make(tmp_path, {"train.sharding": "full", "train.steps": 20})
    server.train(folder, verb="prepare")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = {
            "PIPELINE_TRACKING": "true",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "PIPELINE_TRACKING_WAIT_S": "20",
            "PIPELINE_TIMEOUT_S": "10",
        }
        assert server.wait(*server.start(folder, 2, **variables)) == [0, 0], (folder / "rank-1.log").read_text()
    assert "is not completely in MLflow yet" in (folder / "rank-0.log").read_text(), "it has waited"


@pytest.mark.slow
def test_a_sharded_training_whose_parameters_were_edited_ends_at_once_with_the_old_ones(server: Server, whole: Whole, tmp_path) -> None:
    folder = again(whole(MAIN), tmp_path / "project")
    project.write_params(folder, {"train.sharding": "full", "train.steps": 16})
    params, before = folder / "params.yaml", (folder / "params.yaml").read_bytes()
    variables = {"DVC_STAGE": "train", "PIPELINE_CHECKPOINT_EVERY_STEPS": "4"}
    pids = server.start(folder, 2, **variables)
    end_s = time.monotonic() + 300
    while not newest_step(folder):
        assert time.monotonic() < end_s, (folder / "rank-0.log").read_text()
        time.sleep(0.01)
    params.write_bytes(before.replace(b"batch_size:", b"batch_size: 1 #", 1))
    assert server.wait(*pids) == [2, 0], "only the first process fails: its message is the one that is shown"
    params.write_bytes(before)
    assert newest_step(folder) == 16
    server.train(folder, 2, **variables)
    assert "resuming after step 16" in (folder / "rank-0.log").read_text()
    assert (folder / "models/model.safetensors").exists()


def refusal(server: Server, folders: list[Path], variables: list[dict[str, str]], code: int = 2) -> str:
    """Start two processes with variables and a folder each. Return what rank 0 prints. Both must end in time, rank 0 with `code`."""
    port = free_port()
    pids = [
        server.fork(folder, rank, of_rank(rank, 2, port) | more) for rank, (folder, more) in enumerate(zip(folders, variables, strict=True))
    ]
    codes = server.wait(*pids, within_s=120)
    output = (folders[0] / "rank-0.log").read_text()
    assert codes in ([code, code], [code, LOST]), output
    return output.splitlines()[-1]


def project_with(folder: Path, whole: Path, **changes: Any) -> Path:
    project.make(folder, {f"train.{name}": value for name, value in changes.items()})
    (folder / "data/prepared").symlink_to(whole / "data/prepared")
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rendezvous_that_no_other_process_answers_may_be_tried_again(server: Server, tmp_path: Path, rank: int) -> None:
    port, folder = free_port(), project.make(tmp_path / "project")
    pid = server.fork(folder, rank, of_rank(rank, 2, port) | {"PIPELINE_TIMEOUT_S": "1"})
    assert server.wait(pid, within_s=120) == [Unavailable.exit_code]
    *_, said = (folder / f"rank-{rank}.log").read_text().splitlines()  # torch says something of rank 1, too
    assert said.startswith(f"error: MASTER_ADDR: the 2 processes did not meet at 127.0.0.1:{port} within 1 s (")
    assert said.endswith("): start all of them, and check this address, the port and the firewall")


def test_one_process_of_a_machine_verifies_the_data_for_all(server: Server, whole: Whole, tmp_path: Path) -> None:
    folder = project.make(tmp_path / "project")
    shutil.copytree(whole(MAIN) / "data/prepared", folder / "data/prepared")
    path = folder / "data/prepared/train-inputs.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    said = refusal(server, [folder] * 2, [{}, {}])
    assert said == "error: data/prepared/train-inputs.npy: does not match its digest in spec.json: run `dvc repro -f prepare`"


def test_what_two_processes_cannot_share_is_refused_at_its_line(server: Server, whole: Whole, tmp_path: Path) -> None:
    folder = project_with(tmp_path / "project", whole(MAIN), batch_size=15, micro_batch_size=15)
    said = refusal(server, [folder] * 2, [{}, {}])
    assert said.startswith("error: params.yaml:")
    assert said.endswith(
        "train.batch_size: 15 samples cannot be shared equally by 2 processes: write a multiple of 2, or change PIPELINE_PROCESSES"
    )


def test_processes_with_different_inputs_are_refused(server: Server, whole: Whole, tmp_path: Path) -> None:
    same, other = (project_with(tmp_path / name, whole(MAIN)) for name in ("same", "other"))
    project.write_params(other, {"train.steps": 30})
    said = refusal(server, [same, other], [{}, {}])
    assert said.startswith(
        "error: the processes of rank 0 and rank 1 differ in train.steps: all processes need the same commit, parameters, data"
    )


def test_processes_with_different_work_folders_are_refused(server: Server, whole: Whole, tmp_path: Path) -> None:
    """Only one of them has the checkpoint."""
    folder, other = (project_with(tmp_path / name, whole(MAIN), lanes=2) for name in ("folder", "other"))
    assert server.wait(*server.start(folder, 2, fault=("stop signal", 8))) == [143, 143]
    said = refusal(server, [folder, other], [{}, {}], Unavailable.exit_code)
    assert said.startswith("error: the processes of rank 0 and rank 1 differ in checkpoint: ")


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "kills"), [("digits", 12), ("code", 8)])
def test_a_run_killed_at_any_moment_ends_in_the_same_bytes(server: Server, tmp_path: Path, setting: str, kills: int) -> None:
    """A campaign that proves nothing fails."""
    outcome = server.campaign(tmp_path, "tests.faults.killing", kills, setting)
    assert outcome["other_digests"] == 0
    assert outcome["kills"] == kills
    assert outcome["resumed"] >= kills // 4, f"too few kills came after the first checkpoint: {outcome}"
