"""`python -m pipeline verify`: recompute the recorded metadata and metrics of a model, and print the first difference."""

from pipeline.paths import Paths
from pipeline.runtime.environment import Environment


def run(subject: str, retrain: bool) -> int:
    """Compare `subject`, a model file or a run, and print each comparison. With `retrain`, also train again.

    Stops and returns 1 at the first difference; returns 0 if there is none. Writes nothing to the checkout.
    """
    from pipeline.tracking import subject as subjects  # late: torch takes seconds to import, and `--help` does not need it
    from pipeline.verification.checks import comparisons

    paths, environment = Paths(), Environment.read()
    for comparison in comparisons(subjects.find(subject, paths, environment), paths, environment, retrain=retrain):
        result = "differs" if comparison.difference else "equal"
        print(f"verify: {comparison.name:8} {result:7}  {comparison.description}", flush=True)
        if comparison.difference:
            print(f"differs: {comparison.name}: {comparison.difference}")
            return 1
    print("identical")
    return 0
