"""A cluster of real processes on this machine: the same bytes, also if a worker is killed; and what is said of an unusable cluster."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core.environment import Environment, Paths
from pipeline.core.raw_dataset import Cluster
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare import stage
from pipeline.prepare.inputs import corpus, image_files, tokens
from pipeline.prepare.params import PrepareParams, SourceSettings
from pipeline.prepare.reading import workers
from pipeline.prepare.reading.workers import on_cluster
from pipeline.sources import image_folder, text, text_classification, text_pairs
from tests import project
from tests.imports import TOP
from tests.sources.pictures import picture, write_folder, write_tar, write_zip
from tests.sources.settings import params

pytest.importorskip("distributed")
SOURCE = {"name": "image_folder", "root": "images", "valid": 0.2, "test": 0.1, "image_size": 64, "channels": 3}
SOURCE |= {"max_pixels": 10**6, "white": None, "seed": 1, "folds": None, "fold": 0, "duplicates": "keep"}
RUN = "import sys; from pipeline.prepare.inputs import image_files; image_files.CLUSTER_CHUNK = 1; image_files.CHUNK_SAMPLES = 4"
RUN += "; from pipeline.__main__ import main; sys.exit(main(['prepare']))"


class Processes:
    """A scheduler, started in the folder `cwd`, and workers, started in a checkout of this code. `folder` has their logs."""

    def __init__(self, folder: Path, stack: ExitStack, *, num_workers: int, cwd: Path = TOP) -> None:
        self.folder, self.stack = folder, stack
        self.start("scheduler", "--port", "0", cwd=cwd)
        wait_until((folder / "scheduler.json").exists)
        self.address = json.loads((folder / "scheduler.json").read_text())["address"]
        self.workers = [self.start_worker() for _ in range(num_workers)]
        self.wait_for_workers(num_workers)

    def start(self, *arguments: str, cwd: Path = TOP) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", str(self.folder / "scheduler.json"), "--host", "127.0.0.1"]
        log = self.stack.enter_context((self.folder / f"{len(list(self.folder.glob('*.log')))}.log").open("wb"))
        process = self.stack.enter_context(subprocess.Popen([*command, "--no-dashboard"], cwd=cwd, stdout=log, stderr=log))
        self.stack.callback(process.kill)
        return process

    def wait_for_workers(self, number: int) -> None:
        """Wait until `number` workers have joined, including those that have left."""
        wait_until(lambda: (self.folder / "0.log").read_text().count("Starting worker compute stream") == number)

    def start_worker(self, cwd: Path = TOP) -> subprocess.Popen[bytes]:
        return self.start("worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder), cwd=cwd)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path_factory.mktemp("cluster"), stack, num_workers=3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with 200 images and two files that are none. Its paths are relative, and no worker has this folder."""
    contents = {f"{'ab'[number % 2]}/{number}.png": picture(number % 251, side=80) for number in range(200)}
    write_folder(tmp_path / "images", contents | {"a/17.png": b"no image", "b/150.png": b""})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image_files, "CLUSTER_CHUNK", 1)
    monkeypatch.setattr(image_files, "CHUNK_SAMPLES", 4)
    return tmp_path


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def prepared(name: str, cluster: str | None = None, *, root: str = "images") -> dict[str, bytes]:
    """Run `prepare` here, and return the contents of the files in its folder."""
    settings = image_folder.Settings(**{**SOURCE, "root": Path(root), "on_corrupt": "skip"})
    params = PrepareParams.model_construct(source=settings)
    stage.prepare(params, Paths(Path(name)), Environment(PIPELINE_CLUSTER=cluster, PIPELINE_WORKERS=2))
    return {path.name: path.read_bytes() for path in Paths(Path(name)).prepared.iterdir()}


def test_a_cluster_of_which_a_worker_is_killed_prepares_the_same_bytes(processes: Processes, folder: Path, monkeypatch) -> None:
    def kill_one(advance: Callable[[int], None]) -> Callable[[int], None]:
        def killing(samples: int) -> None:
            advance(samples)
            processes.workers[0].kill()

        return killing

    expected = prepared("here")
    write = stage.writer.write
    monkeypatch.setattr(stage.writer, "write", lambda *args, advance, **options: write(*args, advance=kill_one(advance), **options))
    assert processes.workers[0].poll() is None
    assert prepared("there", processes.address) == expected
    assert processes.workers[0].wait() == -signal.SIGKILL
    assert [worker.poll() for worker in processes.workers[1:]] == [None, None]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_the_workers_read_archives(processes: Processes, folder: Path, kind: str) -> None:
    contents = {f"{'ab'[number % 2]}/{number}.png": picture(number, side=80) for number in range(30)}
    if kind == "zip":
        write_zip(folder / "all.zip", contents)
    else:
        write_tar(folder / f"all.{kind}", contents)
    assert prepared("there", processes.address, root=f"all.{kind}") == prepared("here", root=f"all.{kind}")


LABELLED = [(f"{label} {number} cat", label) for number in range(90) for label in ("good", "bad")]
OF_TEXTS: dict[str, tuple[type[SourceSettings], dict[str, object]]] = {
    "text_classification": (text_classification.Settings, {"text_column": 1, "label_column": 2}),
    "text_pairs": (text_pairs.Settings, {"text_column": 1, "target_column": 2, "vocabulary": 300}),
    "text": (text.Settings, {"divide": "position"}),
}


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_the_workers_of_a_cluster_and_processes_tokenize_texts_to_the_same_bytes(
    processes: Processes, tmp_path: Path, monkeypatch, kind: str
) -> None:
    root, (settings, changes) = tmp_path / ("a.txt" if kind == "text" else "a.tsv"), OF_TEXTS[kind]
    root.write_text("".join(f"{one}\t{other}\n" for one, other in LABELLED))
    monkeypatch.setattr(tokens, "BLOCK_TEXTS", 50)
    monkeypatch.setattr(corpus, "PIECE_CHARACTERS", 500)

    def prepared(name: str, cluster: str | None = None) -> dict[str, bytes]:
        chosen = params(settings, root, valid=0.2, test=0.2, min_count=1, max_length=8, **changes)
        stage.prepare(chosen, Paths(tmp_path / name), Environment(PIPELINE_CLUSTER=cluster, PIPELINE_WORKERS=2))
        return {path.name: path.read_bytes() for path in Paths(tmp_path / name).prepared.iterdir()}

    expected, started = prepared("alone"), list[object]()
    assert prepared("cluster", processes.address) == expected
    monkeypatch.setattr(tokens, "MANY_TEXTS", 1)
    monkeypatch.setattr(corpus, "MANY_CHARACTERS", 1)
    monkeypatch.setattr(workers, "Worker", lambda *args, of=workers.Worker: started.append(args) or of(*args))
    assert prepared("processes") == expected
    assert started
    monkeypatch.setattr(processes, "address", "tcp://127.0.0.1:9")
    with pytest.raises(Refusal, match="no scheduler has answered"):
        prepared("cluster", processes.address)


@pytest.mark.slow
def test_sigterm_in_the_middle_leaves_nothing_and_the_workers_go_on(processes: Processes, folder: Path) -> None:
    project.make(folder, {"source": {**SOURCE, "on_corrupt": "skip"}})
    environment = {**os.environ, "PYTHONPATH": str(TOP), "PIPELINE_CLUSTER": processes.address}
    with subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as run:
        wait_until(lambda: any(path.stat().st_blocks > 16 for path in folder.glob("data/prepared/.train-inputs*.draft")))
        for worker in processes.workers[1:]:
            worker.send_signal(signal.SIGSTOP)
        run.terminate()
        output = run.communicate(timeout=300)[0].decode()
        for worker in processes.workers[1:]:
            worker.send_signal(signal.SIGCONT)
    assert run.returncode == 128 + signal.SIGTERM, output
    assert output.splitlines()[-1] == "error: interrupted by SIGTERM"
    assert list((folder / "data/prepared").iterdir()) == []
    assert prepared("after", processes.address) == prepared("here")


@pytest.fixture
def refusal(processes: Processes) -> Callable[..., str]:
    def refused(*shared: Path, address: str = processes.address) -> str:
        with pytest.raises(Refusal) as caught:
            list(on_cluster(shown, "ab", cluster=Cluster(address, shared), prepare=list))
        return str(caught.value)

    return refused


def test_an_unusable_cluster_is_refused_with_the_remedy(
    refusal: Callable[..., str], processes: Processes, tmp_path: Path, monkeypatch
) -> None:
    usable = Cluster(processes.address, (TOP,))
    assert list(on_cluster(shown, "ab", cluster=usable, prepare=list)) == [("a", "a"), ("b", "b")]
    missing = tmp_path / "not here"
    assert f"cannot use {missing}: share this folder with all machines under the same path" in refusal(missing)
    for name in ("code", "pillow"):
        with monkeypatch.context() as patch:
            patch.setitem(workers.versions(), name, "another")
            assert f"has another version of: {name}: update its checkout and .venv, and start its workers again" in refusal()
    with monkeypatch.context() as patch:
        patch.setattr(workers, "refuse_unfit", lambda *_: None)  # as if the worker had joined later
        assert f"cannot use {missing}: share this folder" in refusal(missing)
    monkeypatch.setattr(workers, "CONNECT_S", 0.5)
    assert "no scheduler has answered at tcp://127.0.0.1:9 within 0.5 seconds" in refusal(address="tcp://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert f"no scheduler has answered at {address} within" in refusal(address=address)
    assert workers.installed("a package that is missing") == "none"  # such as `distributed` without `make setup-cluster`
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "run `make setup-cluster`" in refusal()


@pytest.mark.slow
def test_a_scheduler_without_workers_or_without_this_code_is_refused(refusal: Callable[..., str], tmp_path: Path, monkeypatch) -> None:
    with ExitStack() as stack:
        processes = Processes(tmp_path, stack, num_workers=0, cwd=tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(workers, "CONNECT_S", 3.0)
            said = refusal(address=processes.address)
        assert f"no worker has joined {processes.address}: start `python -m dask worker {processes.address}`" in said
        processes.start_worker()
        processes.wait_for_workers(1)
        assert "the process of the scheduler cannot run this code (" in refusal(address=processes.address)


@pytest.mark.slow
def test_a_worker_that_was_started_elsewhere_is_refused(refusal: Callable[..., str], processes: Processes, tmp_path: Path) -> None:
    stranger = processes.start_worker(cwd=tmp_path)
    processes.wait_for_workers(4)
    said = refusal()
    stranger.kill()
    assert "cannot run this code (ModuleNotFoundError(\"No module named 'pipeline'\")): start it with `python -m dask` in" in said
    wait_until(lambda: "Remove worker" in (processes.folder / "0.log").read_text().split("Starting worker compute stream")[-1])


def test_a_large_item_is_sent_without_a_warning(processes: Processes) -> None:
    item = bytes(11_000_000)
    assert list(on_cluster(len, [item], cluster=Cluster(processes.address, ()), prepare=int)) == [(item, len(item))]


def test_an_error_in_a_worker_is_raised_here(processes: Processes) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(on_cluster(int, ["1", "x"], cluster=Cluster(processes.address, ()), prepare=list))


def test_nothing_of_dask_is_imported_without_the_variable() -> None:
    code = "import sys, pipeline.prepare.stage, pipeline.sources.image_folder; print('distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=TOP, check=True, capture_output=True, text=True).stdout == "False\n"


def test_check_refuses_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path))
    write_folder(tmp_path / "images", {f"{name}/{number}.png": picture(number, side=8) for name in "abcd" for number in range(10)})
    source = "source={name: image_folder, root: images, valid: 0.2, test: 0.2, seed: 1, folds: null, fold: 0, duplicates: keep, image_size: 8, channels: 1, on_corrupt: fail, max_pixels: 9999, white: null}"
    assert main(["set", source]) == 0
    assert main(["check"]) == 0
    monkeypatch.setattr(workers, "CONNECT_S", 0.2)
    monkeypatch.setenv("PIPELINE_CLUSTER", "tcp://127.0.0.1:1")
    capsys.readouterr()
    assert main(["check"]) == 69
    assert "PIPELINE_CLUSTER: no scheduler has answered at tcp://127.0.0.1:1" in capsys.readouterr().err
