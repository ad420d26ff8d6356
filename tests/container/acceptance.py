"""What only a machine with a GPU can show of the image: `make gpu-acceptance` tries each line and prints a table. It needs Docker, the NVIDIA Container Toolkit and five minutes."""

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


def says(pattern: str, *words: str, code: int = 0) -> Callable[[], str]:
    """Passes where the container exits so and says something that the pattern finds; what it said otherwise."""

    def attempt() -> str:
        done = run(*words)
        return "" if done.returncode == code and re.search(pattern, done.stdout) else f"exit {done.returncode}\n{done.stdout}"

    return attempt


@contextmanager
def volume() -> Iterator[tuple[str, str]]:
    """The flags of a volume that is gone after the block."""
    name = f"pipeline-acceptance-{uuid.uuid4().hex[:8]}"
    try:
        yield "--volume", f"{name}:{HOME}"
    finally:
        subprocess.run([DOCKER, "volume", "rm", "--force", name], check=False, capture_output=True)


@contextmanager
def changed(edit: str) -> Iterator[tuple[str, str]]:
    """A volume whose parameters a program of sed has changed."""
    with volume() as kept:
        run(*kept, IMAGE, "check")
        run(*kept, "--entrypoint", "sed", IMAGE, "-i", edit, f"{HOME}/params.yaml")
        yield kept


def compiled() -> str:
    with changed("s/compile: .*/compile: default/") as kept:
        return says(r"params.yaml was changed by hand[\s\S]*test accuracy", *GPU, *kept, IMAGE)()


def stopped() -> str:
    """`docker stop` in the middle of a training that is long enough, and the same volume again."""
    with changed("s/epochs: .*/epochs: 400/") as kept:
        name = output("run", "--detach", *GPU, *kept, IMAGE)
        try:
            deadline = time.monotonic() + 60
            while "train: step 50 " not in output("logs", name) and time.monotonic() < deadline:
                time.sleep(0.1)
            output("stop", name)
            code = output("inspect", "--format", "{{.State.ExitCode}}", name)
        finally:
            output("rm", "--force", name)
        again = says(r"going on after step[\s\S]*test accuracy", *GPU, *kept, IMAGE)()
        return again if code == "143" else f"docker stop ended with {code}, not 143\n{again}"


def output(*words: str) -> str:
    return subprocess.run([DOCKER, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout.strip()


TRIALS: dict[str, Callable[[], str]] = {
    "--gpus all: the default job trains on the GPU": says(r"training on cuda.*[\s\S]*test accuracy", *GPU, IMAGE),
    "--gpus device=0: one GPU by its number": says(r"training on cuda", "--gpus", "device=0", IMAGE, "check"),
    "PIPELINE_DEVICE=cuda:0": says(r"training on cuda:0", *GPU, "--env", "PIPELINE_DEVICE=cuda:0", IMAGE, "check"),
    "PIPELINE_DEVICE=cuda:99 is refused": says(r"numbered from 0", *GPU, "--env", "PIPELINE_DEVICE=cuda:99", IMAGE, "check", code=2),
    "precision auto is bf16": says(r"in bf16", *GPU, IMAGE, "check"),
    "without --gpus all it says so": says(r"not used: it is not available in this container.*--gpus all", IMAGE, "check"),
    "train.compile: default": compiled,
    "all hardened flags": says(r"training on cuda[\s\S]*test accuracy", *GPU, *HARDENED, IMAGE),
    "docker stop, and on to the end": stopped,
}


def main() -> int:
    failed = 0
    for name, trial in TRIALS.items():
        begin = time.monotonic()
        complaint = trial()
        failed += bool(complaint)
        print(f"{'FAILED' if complaint else 'ok':<8}{time.monotonic() - begin:6.0f} s  {name}", flush=True)
        if complaint:
            print(complaint, file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
