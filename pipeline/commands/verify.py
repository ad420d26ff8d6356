"""Say whether a model is what it claims to be, or the first thing that differs."""

from pipeline.paths import Paths
from pipeline.runtime.environment import Environment


def run(subject: str, retrain: bool) -> int:
    """Returns 1 at the first difference. Nothing of the checkout is written."""
    from pipeline.verification.checks import Verification  # late: torch takes seconds, and `--help` needs none
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
