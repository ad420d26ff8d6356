"""The exception for errors that the user can fix."""


class Refusal(ValueError):
    """Raised for bad input. The message says where the error is and how to fix it. The message is shown without a traceback; the exit code is 2."""
