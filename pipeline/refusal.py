"""The one exception that means: the user can mend this."""


class Refusal(ValueError):
    """Bad input, in words that name the place and the remedy; shown without a traceback, with exit code 2."""
