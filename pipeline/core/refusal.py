"""The exceptions for errors that the user can fix, and counts with their noun for messages, such as `1 step` and `2 steps`."""

from collections.abc import Sequence


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


def listed(names: Sequence[str], most: int) -> str:
    """Return the first `most` names with commas, and how many there are more, such as `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
