"""The exceptions for errors that the user can fix, and parts of their messages, such as `2 steps` or `a, b and 3 more`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class Refusal(ValueError):
    """Raised for bad input. The message says where the error is and how to fix it. The message is shown without a traceback; the exit code is 2."""


class Unavailable(Refusal):
    """Raised if the same command may succeed later: another job holds a lock, data were changed while a stage read them, or a server does not answer. The exit code is 69.

    A scheduler may try again after 69, but not after 2.
    """


def counted(count: int, noun: str, style: str = "") -> str:
    """Return the count and the noun in singular or plural, such as `1 class` or `10 classes`. `style` formats the number; `,` groups it."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:{style}} {noun}{ending}"


def listed(texts: Sequence[str], most: int, *, separator: str = ", ") -> str:
    """Return the first `most` of the texts, and how many more there are, such as `a, b and 3 more`."""
    more = f"{separator.strip(', ')} and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


@contextmanager
def rewording(reword: Callable[[str], str]) -> Iterator[None]:
    """Within this context, replace each line of a Refusal by what `reword` returns for it, such as the line with a prefix."""
    try:
        yield
    except Refusal as refusal:
        kind = Unavailable if isinstance(refusal, Unavailable) else Refusal
        raise kind("\n".join(map(reword, str(refusal).splitlines()))) from None
