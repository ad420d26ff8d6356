"""Try what only a machine with a GPU can show of the image, and print a table: `make gpu-acceptance`. It needs Docker, the NVIDIA Container Toolkit and five minutes."""

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DOCKER, IMAGE = os.environ.get("DOCKER", "docker"), os.environ.get("IMAGE", "pipeline")
GPU = os.environ.get("GPUS", "--gpus all").split()  # GPUS= tries the script itself on a machine without one
FLAGS = "--user 54321:54321 --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network none --pids-limit 2048"
HARDENED = FLAGS.split()
HOME = "/home/pipeline"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DOCKER, "run", "--rm", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False
    )


def prints(pattern: str, *words: str, code: int = 0) -> Callable[[], str]:
    """Return a trial that runs a container and returns "" if its exit code and output are as expected, else both of them."""

    def attempt() -> str:
        done = run(*words)
        return "" if done.returncode == code and re.search(pattern, done.stdout) else f"exit {done.returncode}\n{done.stdout}"

    return attempt


@contextmanager
def volume() -> Iterator[tuple[str, str]]:
    """Yield the flags of a new volume; remove it after the block."""
    name = f"pipeline-acceptance-{uuid.uuid4().hex[:8]}"
    try:
        yield "--volume", f"{name}:{HOME}"
    finally:
        subprocess.run([DOCKER, "volume", "rm", "--force", name], check=False, capture_output=True)


@contextmanager
def volume_with(edit: str) -> Iterator[tuple[str, str]]:
    """Yield the flags of a volume whose parameters are changed by a sed script."""
    with volume() as flags:
        run(*flags, IMAGE, "check")
        run(*flags, "--entrypoint", "sed", IMAGE, "-i", edit, f"{HOME}/params.yaml")
        yield flags


def compiled() -> str:
    with volume_with("s/compile: .*/compile: default/") as flags:
        return prints(r"params.yaml was edited[\s\S]*test accuracy", *GPU, *flags, IMAGE)()


def stopped() -> str:
    """Stop a long training with `docker stop`, then run the volume again."""
    with volume_with("s/epochs: .*/epochs: 400/") as flags:
        name = output("run", "--detach", *GPU, *flags, IMAGE)
        try:
            deadline = time.monotonic() + 60
            while "train: step 50 " not in output("logs", name) and time.monotonic() < deadline:
                time.sleep(0.1)
            output("stop", name)
            code = output("inspect", "--format", "{{.State.ExitCode}}", name)
        finally:
            output("rm", "--force", name)
        again = prints(r"resuming after step[\s\S]*test accuracy", *GPU, *flags, IMAGE)()
        return again if code == "143" else f"docker stop ended with {code}, not 143\n{again}"


def output(*words: str) -> str:
    return subprocess.run([DOCKER, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout.strip()


TRIALS: dict[str, Callable[[], str]] = {
    "--gpus all: the default job trains on the GPU": prints(r"training on cuda.*[\s\S]*test accuracy", *GPU, IMAGE),
    "--gpus device=0: one GPU by its number": prints(r"training on cuda", "--gpus", "device=0", IMAGE, "check"),
    "PIPELINE_DEVICE=cuda:0": prints(r"training on cuda:0", *GPU, "--env", "PIPELINE_DEVICE=cuda:0", IMAGE, "check"),
    "PIPELINE_DEVICE=cuda:99 is refused": prints(r"numbered from 0", *GPU, "--env", "PIPELINE_DEVICE=cuda:99", IMAGE, "check", code=2),
    "precision auto is bf16": prints(r"in bf16", *GPU, IMAGE, "check"),
    "without --gpus all the reason is printed": prints(r"not used: the GPU is not available in this container.*--gpus all", IMAGE, "check"),
    "train.compile: default": compiled,
    "all hardened flags": prints(r"training on cuda[\s\S]*test accuracy", *GPU, *HARDENED, IMAGE),
    "docker stop, and on to the end": stopped,
}


def main() -> int:
    failed = 0
    for name, trial in TRIALS.items():
        begin = time.monotonic()
        failure = trial()
        failed += bool(failure)
        print(f"{'FAILED' if failure else 'ok':<8}{time.monotonic() - begin:6.0f} s  {name}", flush=True)
        if failure:
            print(failure, file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
