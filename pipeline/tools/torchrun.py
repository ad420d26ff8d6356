"""`python -m pipeline.tools.torchrun OPTION ... -m pipeline train`: torchrun, which says in one line why it ended, by its exit code too."""

import logging
import signal
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from pipeline.tools import launch


def main(arguments: Sequence[str]) -> int:
    """Run torchrun with its command line `arguments`, and return the exit code.

    It is 128 plus the number of the signal that stopped torchrun, or that of the process of this machine that failed first. torchrun itself
    would print a traceback and exit with 1 for both.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)  # a line for each process that it stops
    try:
        run(parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except SignalException as error:  # the processes have ended
        print(f"error: interrupted by {signal.Signals(error.sigval).name}", file=sys.stderr)
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        rank, code = launch.first_failure(error.failures)
        print(f"error: the process of rank {rank} {launch.ended(code)}", file=sys.stderr)
        return code if code > 0 else 128 - code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
