"""`compare`: what differs between models, and whether their scores differ by more than chance. `promote`: give an alias to a model that is no worse."""

from pathlib import Path

from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal


def run(first: str, others: list[str], markdown: bool, ensemble: bool) -> None:
    """Print what differs between the models, their metrics, and a paired test of each with the first. Nothing in the checkout is written.

    `first` and `others` name the models; see `models.read`. If they name searches that repeat a training, print a paired test of their
    metrics. With `markdown`, print Markdown for a pull request. With `ensemble`, also test all models as one.
    """
    from pipeline.tools.compare import comparing, series  # late: torch takes seconds to import, and `--help` does not need it

    names = [first, *others]
    environment = Environment.read()
    found = [series.Series.find(name, environment.dvc_root or Path()) for name in names]
    repeated = [each for each in found if each]
    if repeated and len(repeated) < len(found):
        raise Refusal(f"compare: {repeated[0].name} is a search over seeds or folds: name only such searches, or only models")
    if repeated and ensemble:
        raise Refusal("compare: --ensemble takes the names of models: name the models of the trainings instead of their search")
    if repeated:
        blocks = series.compare(repeated, Paths(), environment)
    else:
        blocks = comparing.blocks(comparing.compare(names, Paths(), environment, with_ensemble=ensemble))
    print(comparing.rendered(blocks, markdown=markdown), flush=True)


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
