"""Counts with their noun, such as `1 step` and `2 steps`."""


def counted(count: int, noun: str, style: str = "") -> str:
    """Return the count and the noun in singular or plural, such as `1 class` or `10 classes`. `style` formats the number; `,` groups it."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:{style}} {noun}{ending}"
