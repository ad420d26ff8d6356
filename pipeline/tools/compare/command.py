"""`compare`: what differs between models, and whether their scores differ by more than chance. `promote`: give an alias to a model that is no worse."""

from pipeline.core.environment import Environment, Paths


def run(first: str, others: list[str], markdown: bool, ensemble: bool) -> None:
    """Print what differs between the models, their metrics, and a paired test of each with the first. Nothing in the checkout is written.

    `first` and `others` name the models; see `models.read`. With `markdown`, print Markdown for a pull request. With `ensemble`, also test all
    models as one.
    """
    from pipeline.tools.compare import comparing  # late: torch takes seconds to import, and `--help` does not need it

    found = comparing.compare([first, *others], Paths(), Environment.read(), with_ensemble=ensemble)
    print(comparing.rendered(comparing.blocks(found), markdown=markdown), flush=True)


def run_promote(subject: str, name: str, alias: str, force: bool) -> int:
    """Register the model `subject` as a version of `name`. Give this version `alias` if `force` is True, or if it is no worse than the model
    that has the alias now.

    Print the paired test and the result. Return 1 if the model did not get the alias, else 0.
    """
    from pipeline.tools.compare import comparing  # late: torch takes seconds to import, and `--help` does not need it
    from pipeline.tools.compare.promotion import promote

    promotion = promote(subject, name, alias, Paths(), Environment.read(), force=force)
    if promotion.test:
        print(comparing.test_text(promotion.test, f"{name}@{alias}", "new") + "\n")
    version = f"{name} version {promotion.version}"
    given = f"{version} is {name}@{alias}" if promotion.has_alias else f"{version} is registered, but is not {name}@{alias}"
    print(f"promote: {given}: {promotion.text}")
    return 0 if promotion.has_alias else 1
