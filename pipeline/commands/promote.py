"""`python -m pipeline promote`: register a model, and give it an alias if it is no worse than the model that has it now."""

from pipeline.paths import Paths
from pipeline.runtime.environment import Environment


def run(subject: str, name: str, alias: str, force: bool) -> int:
    """Register the model `subject` as a version of `name`. Give this version `alias` if `force` is True, or if it is no worse than the model
    that has the alias now.

    Print the paired test and the result. Return 1 if the model did not get the alias, else 0.
    """
    from pipeline.comparison import rendering  # late: torch takes seconds to import, and `--help` does not need it
    from pipeline.comparison.promotion import promote

    promotion = promote(subject, name, alias, Paths(), Environment.read(), force=force)
    if promotion.test:
        print(rendering.test_text(promotion.test, f"{name}@{alias}", "new") + "\n")
    version = f"{name} version {promotion.version}"
    given = f"{version} is {name}@{alias}" if promotion.has_alias else f"{version} is registered, but is not {name}@{alias}"
    print(f"promote: {given}: {promotion.text}")
    return 0 if promotion.has_alias else 1
