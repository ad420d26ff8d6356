"""Starts the processes of a training through torch.distributed.run's agent, and starts them again if one of them has died.

`python -m pipeline.tools.torchrun OPTION ... -m pipeline train` is torchrun, which says in one line why it ended, by its exit code too.
"""

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed import run as torch_run
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipeline.core import interruption
from pipeline.core.environment import Environment
from pipeline.core.interruption import Interrupted
from pipeline.core.refusal import Refusal, Unavailable, counted
from pipeline.inference import machine
from pipeline.train.group.processes import LOST, OUT_OF_MEMORY

REFUSED = (Refusal.exit_code, Unavailable.exit_code)
"""Exit codes of a process that raised Refusal. It is not started again here: its user or scheduler decides about that."""
SHUTDOWN_S = 120
"""Time in which a process that is stopped can save a checkpoint. Then it is killed."""
MOST_LINES = 15


def num_processes(environment: Environment) -> int:
    """Return how many processes to start for a training on this machine; 1 also if torch.distributed.run has started this process.

    Raises Refusal if PIPELINE_PROCESSES is larger than the number of usable GPUs, or if PIPELINE_DEVICE is a single GPU.
    """
    if environment.is_rank:
        return 1
    num_gpus, on_one = 0 if environment.device == "cpu" else len(machine.usable_gpus()), environment.device.startswith("cuda:")
    if environment.processes == "auto":
        return 1 if on_one else max(1, num_gpus)
    if environment.processes > 1 and on_one:
        raise Refusal(
            f"PIPELINE_DEVICE={environment.device}: is one GPU, but PIPELINE_PROCESSES is {environment.processes}: use `cuda` or `auto`"
        )
    if num_gpus and environment.processes > num_gpus:
        raise Refusal(
            f"PIPELINE_PROCESSES={environment.processes}: this machine has {counted(num_gpus, 'usable GPU')}, one for each process: "
            "use this number, or `auto`"
        )
    return environment.processes


def run(arguments: Sequence[str], count: int, environment: Environment) -> int:
    """Run `python ARGUMENTS` in `count` processes, and return the exit code: 0, or that of the process that failed first.

    If a process dies, all are started again, at most PIPELINE_RESTARTS times; they continue from the last checkpoint. Raises Interrupted if
    a signal has stopped them.
    """
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_S))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # `run` says it in one line
    (environment.root / ".pipeline").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=environment.root / ".pipeline"))
    try:
        return run_until_done(arguments, count, environment.restarts, folder)
    except SignalException as error:  # raised by the agent's handlers, which remain installed
        shutil.rmtree(folder, ignore_errors=True)
        raise Interrupted(error.sigval) from None


def run_until_done(arguments: Sequence[str], count: int, most_restarts: int, folder: Path) -> int:
    """Run all processes until none fails, or one fails for the last time. Return the exit code. `folder` is for the output of the ranks."""
    restarts = 0
    while True:
        rank, code = attempt(arguments, count, folder)
        if rank == 0 and code in (0, *REFUSED):
            shutil.rmtree(folder)
            return code
        if code - 128 in interruption.STOP_SIGNALS:
            shutil.rmtree(folder)
            raise Interrupted(code - 128)
        if code == OUT_OF_MEMORY:
            print("train: starting all processes again, with the smaller micro-batch", flush=True)
            continue
        show(folder, rank)
        if code in REFUSED or restarts == most_restarts:
            return failed(rank, code, f"; the output of all ranks but 0 is in {folder}")
        restarts += 1
        print(
            f"warning: the process of rank {rank} {ended(code)}: starting all processes again from the last checkpoint "
            f"({restarts} of at most {most_restarts} times)",
            flush=True,
        )


def attempt(arguments: Sequence[str], count: int, folder: Path) -> tuple[int, int]:
    """Run all processes once. Return rank and exit code of the process that failed first; a negative code is the number of a signal.

    If none failed, return (0, 0).
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle="SIGTERM,SIGINT",  # not SIGHUP: `nohup` ignores it
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=dict.fromkeys(range(1, count), Std.ALL)),
    )
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        return first_failure(error.failures)
    return 0, 0


def first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, int]:
    """Return rank and exit code of the process whose failure is the cause of the others: the agent then stops them.

    A process that ran out of memory comes first, although its memory may take a second to be freed. All other failures are recorded to the
    second. In the same second, a process that was killed comes first, then one that lost the others, and one that the agent has stopped by
    SIGTERM last.
    """

    def order(rank: int) -> tuple[bool, int, bool, bool, int]:
        time_s, code = failures[rank].timestamp, failures[rank].exitcode
        return code != OUT_OF_MEMORY, time_s, code == -signal.SIGTERM, code == LOST, code

    rank = min(failures, key=order)
    return rank, failures[rank].exitcode


def failed(rank: int, code: int, more: str = "") -> int:
    """Print which process failed first, and how. Return the exit code for it: 128 plus the number of the signal that killed it, or `code`."""
    print(f"error: the process of rank {rank} {ended(code)}{more}", file=sys.stderr)
    return code if code > 0 else 128 - code


def ended(code: int) -> str:
    if code == LOST:
        return "lost the other processes"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"


def show(folder: Path, rank: int) -> None:
    """Print the end of the output of the process of `rank`, unless it is rank 0, whose output is on the terminal."""
    logs = sorted(folder.glob(f"*/attempt_*/{rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
    if rank and logs:
        for line in logs[-1].read_text(encoding="utf-8", errors="replace").splitlines()[-MOST_LINES:]:
            print(f"rank {rank}: {line.removeprefix(f'[rank{rank}]: ')}", file=sys.stderr)  # torch begins the lines of a traceback so


def main(arguments: Sequence[str]) -> int:
    """Run torchrun with its command line `arguments`, say in one line why it ended, and return the exit code.

    It is 128 plus the number of the signal that stopped torchrun, or that of the process of this machine that failed first. torchrun itself
    would print a traceback and exit with 1 for both.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)  # a line for each process that it stops
    try:
        torch_run.run(torch_run.parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except SignalException as error:  # the processes have ended
        print(f"error: interrupted by {signal.Signals(error.sigval).name}", file=sys.stderr)
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        return failed(*first_failure(error.failures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
