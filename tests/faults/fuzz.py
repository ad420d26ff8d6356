"""The properties of test_fuzz.py on examples that no run has seen: `python -m tests.faults.fuzz SECONDS`."""

import os
import subprocess
import sys
import time


def main(longest_s: float) -> int:
    """Runs until the time is over or a property fails; the seed that is printed repeats a run."""
    started_s, rounds = time.monotonic(), 0
    while time.monotonic() - started_s < longest_s:
        seed = time.time_ns() % 2**32
        command = [sys.executable, "-m", "pytest", "-q", "-x", "tests/faults/test_fuzz.py", f"--hypothesis-seed={seed}"]
        if subprocess.run(command, env={**os.environ, "FUZZ": "random"}, check=False).returncode:
            print(f"failed: FUZZ=random {' '.join(command[1:])}")
            return 1
        rounds += 1
    print(f"{rounds} rounds in {time.monotonic() - started_s:.0f} s, nothing but answers")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
