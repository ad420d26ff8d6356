"""`python -m pipeline verify`: compute the metadata and metrics of a model again, and print the first difference from what is recorded."""

from pipeline.paths import Paths
from pipeline.runtime.environment import Environment


def run(subject: str, retrain: bool) -> int:
    """Compare what a model file or a run records with this checkout, and print each comparison. `subject` names the model file or the run.

    The comparisons are of the data, the code, the lock file, the parameters, the machine and the scores; for a run, also of the commit.
    With `retrain`, also train again in a temporary folder and compare the new model file. Return 1 at the first difference, or 0 if there
    is none. If other code trained the model, `retrain` continues after each difference, because the weights may be equal nevertheless.
    Nothing in the checkout is written.
    The last line says `identical` only if the training was repeated, and otherwise what was compared.
    """
    from pipeline.tracking import subject as subjects  # late: torch takes seconds to import, and `--help` does not need it
    from pipeline.verification.checks import comparisons

    paths, environment, equal, different = Paths(), Environment.read(), list[str](), list[str]()
    for comparison in comparisons(subjects.find(subject, paths, environment), paths, environment, retrain=retrain):
        result = "differs" if comparison.difference else "equal"
        print(f"verify: {comparison.name:8} {result:7}  {comparison.description}", flush=True)
        if comparison.difference:
            print(f"differs: {comparison.name}: {comparison.difference}")
            different.append(comparison.name)
            if not (retrain and "code" in different):
                return 1
        else:
            equal.append(comparison.name)
    if different:
        print(f"differs: {', '.join(different)}; all else is equal")
        return 1
    untrained = f"equal: {', '.join(equal)}; nothing was trained: `--retrain` trains again and compares the weights"
    print("identical" if retrain else untrained)
    return 0
