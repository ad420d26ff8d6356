"""Errors of torch that the user can mend, in the words of the parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.refusal import Refusal

REMEDIES = {
    "Expected more than 1 value per channel": "train.micro_batch_size: BatchNorm has one value a channel left to average over: write a larger one",
    "out of memory": "train.micro_batch_size: the memory ran out outside of the forward and backward, which alone could be repeated: write a smaller one",
    "does not have a deterministic implementation": "train.deterministic: write `false`, or choose a model without this operation",
}


@contextmanager
def in_words() -> Iterator[None]:
    """Raises Refusal, which quotes the first line of torch's error, for those that have a remedy."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        for sign, remedy in REMEDIES.items():
            if sign in str(error):
                raise Refusal(f"{remedy} ({str(error).splitlines()[0]})") from error
        raise
