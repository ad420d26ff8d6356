"""The exception for errors that the user can fix."""


class Refusal(ValueError):
    """Raised for bad input. The message names the place and the remedy; it is shown without a traceback, and the exit code is 2."""
