"""Run the properties of test_fuzz.py on random examples: `python -m tests.faults.fuzz SECONDS`."""

import os
import subprocess
import sys
import time

PROPERTIES = [sys.executable, "-m", "pytest", "-q", "-x", "tests/faults/test_fuzz.py"]


def main(longest_s: float) -> int:
    """Run until the time is over or a property fails. The printed seed repeats a failed round."""
    started_s, rounds = time.monotonic(), 0
    while time.monotonic() - started_s < longest_s:
        command = [*PROPERTIES, f"--hypothesis-seed={time.time_ns() % 2**32}"]
        if subprocess.run(command, env={**os.environ, "FUZZ": "random"}, check=False).returncode:
            print(f"failed: FUZZ=random {' '.join(command[1:])}")
            return 1
        rounds += 1
    print(f"{rounds} rounds in {time.monotonic() - started_s:.0f} s, every input was read or refused")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
