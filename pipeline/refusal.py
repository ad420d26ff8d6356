"""The exceptions for errors that the user can fix."""


class Refusal(ValueError):
    """Raised for bad input. The message says where the error is and how to fix it. The message is shown without a traceback; the exit code is 2."""


class Unavailable(Refusal):
    """Raised if the same command may succeed later: another job holds a lock, or a server does not answer. The exit code is 69.

    A scheduler may try again after 69, but not after 2.
    """
