"""`python -m pipeline compare`: what differs between models, and whether their scores differ by more than chance."""

from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment


def run(first: str, others: list[str], markdown: bool) -> None:
    """Print what differs between the models, their metrics, and a paired test of each with the first. Nothing in the checkout is written.

    `first` and `others` name the models; see `comparison.models.read`. With `markdown`, print Markdown for a pull request.
    """
    from pipeline.comparison import rendering  # late: torch takes seconds to import, and `--help` does not need it
    from pipeline.comparison.comparing import compare

    names = [first, *others]
    if len(names) > rendering.MOST_MODELS:
        raise Refusal(f"compare: names {len(names)} models: name {rendering.MOST_MODELS} at most")
    comparison = compare(names, Paths(), Environment.read())
    print((rendering.markdown if markdown else rendering.text)(comparison), flush=True)
