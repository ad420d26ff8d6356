"""Trainings of one or several processes, forked from a process that has imported torch, which takes longer than a short training.

`python -m tests.laws.ranks FAULT STEP` is the command of a process that torch.distributed.run starts: rank 1 has the fault, once.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from pipeline.__main__ import main
from pipeline.tools import torchrun as launcher
from pipeline.train.engine import update
from tests.forking import ForkServer, fork, free_port

VARIABLES = {"PIPELINE_TRACKING": "false", "PIPELINE_DEVICE": "cpu", "PIPELINE_THREADS": "1"}
HEAVY = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "pipeline.models.convnet",
    "pipeline.models.mlp",
    "pipeline.models.recurrent",
    "pipeline.models.transformer",
    "pipeline.prepare.stage",
    "pipeline.train.stage",
)
Fault = tuple[str, int]
"""The name of one of the functions below, and the step in which it happens."""


class Server(ForkServer):
    def __init__(self, log: Path, *modules: str) -> None:
        """Start the process, which imports HEAVY and `modules`."""
        super().__init__("tests.laws.ranks", log, {"IMPORTED": " ".join((*HEAVY, *modules))})

    def fork(self, folder: Path, rank: int, variables: Mapping[str, str], *, verb: str = "train", fault: Fault | None = None) -> int:
        """Start one process, which writes its output to `rank-RANK.log`, and return its pid."""
        variables = VARIABLES | variables
        return int(self.ask(folder=str(folder), log=f"rank-{rank}.log", arguments=[verb], fault=fault, variables=variables))

    def start(self, folder: Path, count: int = 1, *, verb: str = "train", fault: Fault | None = None, **variables: str) -> list[int]:
        """Start a training of `count` processes without torch.distributed.run, and return their pids. The last one has the fault."""
        port = free_port()
        return [
            self.fork(
                folder,
                rank,
                (of_rank(rank, count, port) if count > 1 else {}) | variables,
                verb=verb,
                fault=fault if rank == count - 1 else None,
            )
            for rank in range(count)
        ]

    def launch(self, folder: Path, count: int = 2, *, fault: Fault | None = None, **variables: str) -> int:
        """Start a training of `count` processes by torch.distributed.run, and return the pid of the launcher. Rank 1 has the fault."""
        variables = VARIABLES | {"PIPELINE_PROCESSES": str(count)} | variables
        words = ["-m", "tests.laws.ranks", *map(str, fault)] if fault else ["-m", "pipeline", "train"]
        return int(self.ask(folder=str(folder), log="launcher.log", launch=words, arguments=["train"], variables=variables))

    def campaign(self, folder: Path, module: str, *arguments: Any) -> dict[str, Any]:
        """Return what `run` of a module returns, in a fork of this process."""
        pid = int(self.ask(folder=str(folder), log="campaign.log", campaign=(module, *arguments), arguments=[], variables={}))
        assert self.wait(pid) == [0], (folder / "campaign.log").read_text()
        return dict(json.loads((folder / "campaign.log").read_text().splitlines()[-1]))

    def wait(self, *pids: int, within_s: float = 300) -> list[int | None]:
        """Return the exit codes of the processes. It is None for each that had not ended in time: it is then killed."""
        return list(self.ask(wait=pids, within_s=within_s))

    def train(self, folder: Path, count: int = 1, **more: Any) -> None:
        pids = self.start(folder, count, **more)
        codes = self.wait(*pids)
        assert codes == [0] * count, (codes, *(path.read_text() for path in folder.glob("rank-*.log")))


def of_rank(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the variables that torch.distributed.run sets."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test"} | {name: str(value) for name, value in numbers.items()}


def raised(error: Exception) -> None:
    raise error


FAULTS: dict[str, Callable[[], None]] = {
    "out of memory": lambda: raised(torch.OutOfMemoryError("CUDA out of memory (injected)")),
    "own error": lambda: raised(LookupError("this is what was wrong with this rank")),
    "stop signal": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "hang": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def inject(name: str, step: int) -> None:
    """Make the fault happen at the begin of a step of this process: once, also if the training is started again."""
    accumulate_gradients, seen = update.accumulate_gradients, Path("fault-has-happened")

    def failing(state: Any, *arguments: Any, **more: Any) -> Any:
        if state.step == step - 1 and not seen.exists():
            seen.touch()
            FAULTS[name]()
        return accumulate_gradients(state, *arguments, **more)

    update.accumulate_gradients = failing


def act(
    *,
    folder: str,
    log: str,
    arguments: Sequence[str],
    variables: dict[str, str],
    fault: Fault | None = None,
    launch: Sequence[str] = (),
    campaign: Sequence[Any] = (),
) -> int:
    """Run a verb, or a campaign, in a forked child. With `launch`, the processes that it starts run `python LAUNCH`."""
    os.chdir(folder)
    os.environ.update(variables)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if campaign:
        module, *words = campaign
        print(json.dumps(import_module(module).run(*words)), flush=True)
        return 0
    if fault:
        inject(*fault)
    run = launcher.run
    launcher.run = lambda words, count, environment: run(launch or words, count, environment)
    return main(arguments)


def exit_codes(pids: Sequence[int], deadline: float) -> list[int | None]:
    """Return the exit codes of children. Kill those that have not ended at the deadline: their code is None."""
    codes: dict[int, int | None] = {}
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in set(pids) - codes.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for pid in set(pids) - codes.keys():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [codes.get(pid) for pid in pids]


def serve() -> NoReturn:
    for module in os.environ["IMPORTED"].split():
        import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        pids = request.pop("wait", None)
        answer = fork(partial(act, **request)) if pids is None else exit_codes(pids, time.monotonic() + request["within_s"])
        print(json.dumps(answer), flush=True)
    os.killpg(0, signal.SIGKILL)  # the tests have ended, in whatever way: leave no process behind
    sys.exit(0)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve()
    if os.environ["RANK"] == "1":
        inject(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(["train"]))
