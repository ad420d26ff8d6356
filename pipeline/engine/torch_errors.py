"""Turns torch errors that the user can fix into Refusals that name the parameter to change."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engine.oom import is_out_of_memory
from pipeline.refusal import Refusal

REMEDIES = {
    "Expected more than 1 value per channel": "train.micro_batch_size: BatchNorm has one value a channel left to average over: write a larger one",
    "does not have a deterministic implementation": "train.deterministic: write `false`, or choose a model without this operation",
}


@contextmanager
def in_words(*, size: str) -> Iterator[None]:
    """Raise Refusal, with the first line of torch's error, where there is a remedy; `size` names the parameter to lower after an OOM."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        for remedy in remedies(error, size):
            raise Refusal(f"{remedy} ({str(error).splitlines()[0]})") from error
        raise


def remedies(error: Exception, size: str) -> Iterator[str]:
    """Yield the remedies that apply to `error`."""
    if isinstance(error, RuntimeError) and is_out_of_memory(error):
        yield f"{size}: the memory ran out where no step can be repeated: write a smaller one, or free what others use"
    yield from (remedy for sign, remedy in REMEDIES.items() if sign in str(error))
