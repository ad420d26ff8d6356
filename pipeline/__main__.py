"""The command line `python -m pipeline VERB`: parse the arguments, import the verb's module and call its function."""

import argparse
import errno
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.core.interruption import KILLED, STARTED_BY_TORCHRUN, Interrupted, record_exit_code
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.registry import failed_choice
from pipeline.core.untrusted import shown
from pipeline.tools import tool
from pipeline.tools.verbs import VERBS

STAGES = ("prepare", "train", "evaluate")
UNCAUGHT = 1
INTERRUPTED = 130
READER_ENDED = 141  # as a shell reports a program that SIGPIPE has ended
SPIN_COUNT = 1000
"""How often a waiting thread of libgomp, PyTorch's OpenMP library, looks for work before it sleeps: some 30 microseconds. libgomp's own
300,000 fill the time slices of a thread, so that on busy cores those that have work wait for those that have none."""
MAX_LINES, MAX_SHOWN = 20, 2000
MOUNTED = "cannot be replaced, because it is a mount point or belongs to another user: change the original file, or mount its folder"
FIXABLE = {
    errno.ENOSPC: "the disk is full, or has no inodes left (`df`, `df -i`): free some, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again",
    errno.EBUSY: MOUNTED,
    errno.EPERM: MOUNTED,
    errno.EFBIG: "the file would be larger than this process may write: raise the limit of `ulimit -f`, or choose another disk",
    errno.EROFS: "the file system is read-only: run in a writable folder",
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "a part of this path is a file, where a folder is needed: choose another path"),
    errno.EACCES: "permission denied: run as the owner of this folder, or change its permissions",
    **dict.fromkeys(
        (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP),
        "the file system does not support file locks (flock): use one that does, such as a local disk",
    ),
}


def set_up_libraries() -> None:
    """Set the environment variables that libraries read when they are loaded. They change no result."""
    os.environ["MPLBACKEND"] = "agg"  # a kernel of Jupyter passes on its own, which matplotlib may not be able to load here
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="A reproducible training pipeline.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        listed: dict[str, Any] = {"help": verb.purpose} if verb.listed else {}
        subparser = verbs.add_parser(name, description=verb.purpose, **listed)
        for argument, settings in verb.arguments.items():
            subparser.add_argument(argument, **settings)
    if not arguments or not (arguments[0] in VERBS or arguments[0].startswith("-")):
        from pipeline.core.section import suggestion  # late: it imports pydantic, which `--help` does not need

        known = tuple(name for name, verb in VERBS.items() if verb.listed)
        unknown = f"there is no verb {shown(arguments[0], 60)}: {suggestion(arguments[0], known)}" if arguments else "a VERB is missing"
        parser.error(f"{unknown}\nthe verbs are {', '.join(known)}: `python -m pipeline --help` explains them")
    return parser.parse_args(arguments)


def command(verb: str) -> Callable[..., int | None]:
    """Return the function that runs `verb`, the first word of the command line."""
    location = VERBS[verb].function
    if location is None:
        return lambda: tool("stages").run(verb)
    module, function = location.split(":")
    return getattr(tool(module), function)  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    verb = vars(options).pop("verb")
    record = record_exit_code if verb in STAGES else lambda _: None
    record(KILLED)  # this remains if the stage is killed
    code = UNCAUGHT
    try:
        code = run(verb, vars(options))
    finally:
        record(code)
    return code


def run(verb: str, options: dict[str, Any]) -> int:
    """Run `verb` with the values of its arguments, and return the exit code. Print an error that the user can fix."""
    try:
        code = command(verb)(**options)
        sys.stdout.flush()  # an error of writing is handled like one of the verb
    except Refusal as refusal:
        return print_refusal(refusal)
    except Interrupted as interrupted:
        if STARTED_BY_TORCHRUN in os.environ:
            return interrupted.exit_code  # its agent says it for all processes
        return print_error(str(interrupted), interrupted.exit_code)
    except KeyboardInterrupt:
        return print_error("interrupted", INTERRUPTED)
    except (Exception, SystemExit) as error:
        return print_failure(error)
    return code or 0


def reader_has_ended() -> bool:
    """Return True if stdout is a pipe that nothing reads any more, as after `| head -1`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def print_os_error(error: OSError) -> int | None:
    """Print an OS error that the user can fix, with the remedy, and return the exit code. Return None for any other OS error.

    If only the reader of stdout has ended, as after `| head -1`, print nothing.
    """
    if isinstance(error, BrokenPipeError) and reader_has_ended():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python would fail again when it flushes at its end
        return READER_ENDED
    if error.errno not in FIXABLE:
        return None
    exit_code = (Unavailable if error.errno in (errno.ENOSPC, errno.EDQUOT) else Refusal).exit_code
    return print_error(f"{error.filename or 'the output or a temporary file'}: {FIXABLE[error.errno]}", exit_code)


def print_failure(error: BaseException) -> int:
    """Print an OS error that the user can fix, where the code of a model, loss, metric, transform or source has raised `error`, or which package is
    missing. Return the exit code. Raise any other error again.
    """
    if isinstance(error, OSError) and (code := print_os_error(error)) is not None:
        return code
    if refusal := failed_choice(error):
        return print_refusal(refusal)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("pipeline"):
        remedy = "`make setup`, then `source .venv/bin/activate`"
        return print_error(f"the package {error.name} is not installed for {sys.executable}: {remedy}", UNCAUGHT)
    raise error


def print_refusal(refusal: Refusal) -> int:
    return print_error(str(refusal), refusal.exit_code)


def print_error(text: str, code: int) -> int:
    lines = text.splitlines()
    for line in lines[:MAX_LINES]:
        print(f"error: {shown(line, MAX_SHOWN)}", file=sys.stderr)
    if len(lines) > MAX_LINES:
        print(f"error: ... and {len(lines) - MAX_LINES} more", file=sys.stderr)
    return code


if __name__ == "__main__":
    set_up_libraries()
    exit_code = main()
    if exit_code == 0 and os.environ.get("DVC_STAGE"):
        os._exit(0)  # DVC records the inputs as they are now: Python's cleanup would leave more time to change them unseen
    sys.exit(exit_code)
