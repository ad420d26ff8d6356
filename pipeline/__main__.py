"""The command line `python -m pipeline VERB`: parse the arguments, import the verb's module and call its `run`."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from pipeline.io.untrusted import shown
from pipeline.refusal import Refusal
from pipeline.runtime.interruption import STARTED_BY_TORCHRUN, Interrupted, record_exit_code

VERBS = {
    "repro": "run check, `dvc repro` and summary; no other container can use the checkout meanwhile",
    "prepare": "stage: write data/prepared/ from the source",
    "train": "stage: train on data/prepared/ and write models/model.safetensors",
    "evaluate": "stage: evaluate the model file on the test split",
    "predict": "predict images or texts, in files, folders or archives, with a trained model",
    "check": "validate params.yaml, the environment and the machine before anything runs",
    "summary": "print the result, and record its run if it is missing in MLflow",
    "verify": "recompute what a model file or run records, and report the first difference",
    "generate": "continue a text with a language model",
    "export": "write a model for ONNX Runtime, PyTorch or C++, and compare its outputs with those of the model",
    "preset": "copy a preset to params.yaml",
    "ui": "serve the MLflow UI, opened at the comparison of the runs",
    "sync": "send to MLflow what it has not received of the journals",
    "schema": "write params.schema.json and docs/parameters.md",
}
MODEL = {"nargs": "?", "default": "models/model.safetensors", "metavar": "MODEL|RUN"}
ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "verify": {
        "subject": {**MODEL, "help": "a model file (default: %(default)s), or a run: the name of its journal folder or its id in MLflow"},
        "--retrain": {"action": "store_true", "help": "also retrain, and compare every byte"},
    },
    "generate": {
        "model": {"metavar": "MODEL", "help": "a model file, a run, models:/NAME@ALIAS or models:/NAME/VERSION"},
        "--prompt": {"default": "", "help": "the text to continue (default: none, the model begins a new text)"},
        "--temperature": {
            "type": float,
            "default": 1.0,
            "help": "below 1, probable tokens become more probable; 0 always takes the most probable (default: %(default)s)",
        },
        "--top-k": {"type": int, "help": "draw from this many most probable tokens only"},
        "--top-p": {"type": float, "help": "draw from the most probable tokens only whose probabilities together reach this share"},
        "--seed": {"type": int, "default": 1, "help": "the same seed gives the same text (default: %(default)s)"},
        "--length": {"type": int, "default": 256, "help": "the largest number of tokens to generate (default: %(default)s)"},
    },
    "predict": {
        "model": {"metavar": "MODEL", "help": "a model file, a run, models:/NAME@ALIAS or models:/NAME/VERSION"},
        "inputs": {
            "nargs": "+",
            "metavar": "INPUT",
            "help": "an image, a text file (each line is an input), a folder, a zip or tar archive, an .npy array, or - for standard input",
        },
        "--batch-size": {"type": int, "default": 64, "metavar": "N", "help": "inputs per forward pass (default: %(default)s)"},
        "--top-k": {"type": int, "default": 3, "metavar": "K", "help": "name the K most likely classes (default: %(default)s)"},
    },
    "export": {
        "subject": {**MODEL, "help": "a model file (default: %(default)s), or a run, as for verify"},
        "--format": {"required": True, "choices": ("onnx", "pt2", "aoti"), "help": "ONNX, a program of torch.export, or compiled for C++"},
        "--output": {"metavar": "PATH", "help": "the file to write (default: beside the model file, such as models/model.onnx)"},
    },
    "preset": {"name": {}},
    "ui": {
        "--host": {"default": "127.0.0.1", "help": "default: %(default)s; use 0.0.0.0 in a container"},
        "--port": {"type": int, "default": 5000, "help": "default: %(default)s"},
    },
    "sync": {"--follow": {"metavar": "JOURNAL", "help": "send one journal until its stage has ended; every stage starts this by itself"}},
}
BAD_INPUT = 2
INTERRUPTED = 130
MAX_LINES, MAX_SHOWN = 20, 2000
MOUNTED = "cannot be replaced, because it is a mount point or belongs to another user: change the original file, or mount its folder"
FIXABLE = {
    errno.ENOSPC: "the disk is full: free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again",
    errno.EBUSY: MOUNTED,
    errno.EPERM: MOUNTED,
    errno.EROFS: "the file system is read-only: run in a writable folder",
    errno.EACCES: "permission denied: run as the owner of this folder, or change its permissions",
    **dict.fromkeys(
        (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP),
        "the file system does not support file locks (flock): use one that does, such as a local disk",
    ),
}
NO_INODES = "the file system has no inodes left: remove files that are not needed, and run the same command again"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="A reproducible training pipeline.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, purpose in VERBS.items():
        subparser = verbs.add_parser(verb, help=purpose, description=purpose)
        for argument, settings in ARGUMENTS.get(verb, {}).items():
            subparser.add_argument(argument, **settings)
    return parser.parse_args(arguments)


def command(verb: str) -> Callable[..., int | None]:
    """Return the function that runs `verb`, the first word of the command line. It calls `run` in `commands/VERB.py`; for the stages
    prepare, train and evaluate, it calls `run` in `commands/stage.py`.
    """
    if verb in ("prepare", "train", "evaluate"):
        return lambda: import_module("pipeline.commands.stage").run(verb)
    return import_module(f"pipeline.commands.{verb}").run  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    verb = vars(options).pop("verb")
    try:
        return command(verb)(**vars(options)) or 0
    except Refusal as refusal:
        return print_error(str(refusal), BAD_INPUT)
    except Interrupted as interrupted:
        if STARTED_BY_TORCHRUN in os.environ:
            return interrupted.exit_code  # its agent says and records it for all processes
        record_exit_code(interrupted.exit_code)
        return print_error(str(interrupted), interrupted.exit_code)
    except KeyboardInterrupt:
        return print_error("interrupted", INTERRUPTED)
    except OSError as error:
        return print_os_error(error)


def print_os_error(error: OSError) -> int:
    """Print an OS error that the user can fix, with the remedy, and return the exit code. Raise any other OS error again."""
    if error.errno not in FIXABLE:
        raise error
    message = NO_INODES if error.errno == errno.ENOSPC and lacks_inodes(error.filename) else FIXABLE[error.errno]
    return print_error(f"{error.filename or 'writing'}: {message}", BAD_INPUT)


def lacks_inodes(path: str | None) -> bool:
    """Return True if the file system of `path` has free space but no free inodes, so that no file can be created.

    Return False if this cannot be determined. If `path` is None, the file system is that of the working directory.
    """
    try:
        status = os.statvfs(os.path.dirname(path or "") or ".")  # noqa: PTH120  # avoids the import of pathlib
    except OSError:
        return False
    return status.f_files > 0 and status.f_favail == 0 and status.f_bavail > 0


def print_error(text: str, code: int) -> int:
    lines = text.splitlines()
    for line in lines[:MAX_LINES]:
        print(f"error: {shown(line, MAX_SHOWN)}", file=sys.stderr)
    if len(lines) > MAX_LINES:
        print(f"error: ... and {len(lines) - MAX_LINES} more", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
