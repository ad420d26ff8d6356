"""Recompute the recorded metadata and metrics of a model, and print the first difference."""

from pipeline.paths import Paths
from pipeline.runtime.environment import Environment


def run(subject: str, retrain: bool) -> int:
    """Print each comparison; return 1 at the first difference, 0 if there is none. Writes nothing to the checkout."""
    from pipeline.verification.checks import Verification  # late: torch takes seconds to import, and `--help` does not need it
    from pipeline.verification.subject import Subject

    paths, environment = Paths(), Environment.read()
    verification = Verification(Subject.named(subject, paths, environment), paths, environment)
    for comparison in verification.comparisons(again=retrain):
        print(f"verify: {comparison.name:8} {'differs' if comparison.difference else 'equal':7}  {comparison.said}", flush=True)
        if comparison.difference:
            print(f"differs: {comparison.name}: {comparison.difference}")
            return 1
    print("identical")
    return 0
