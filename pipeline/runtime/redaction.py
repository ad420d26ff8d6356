"""Replaces secrets in text and in all output of the program by `***`."""

import contextlib
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO
from urllib.parse import quote, quote_plus, unquote

from pipeline.refusal import Refusal

CERTAIN = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables whose values are secrets, whatever their length."""
SECRET = re.compile("password|passwd|token|secret|credential|(access|account|api|storage)_?key|connection_string", re.IGNORECASE)
"""Matches names of environment variables, and of parameters in the query of an address, whose values are secrets."""
SHORTEST = 8
"""The minimum length of a secret in a variable that is not in `CERTAIN`. Replacing a value such as `1` or `true` would garble any text."""


def redacted(text: str, secrets: Sequence[str]) -> str:
    """Return the text with every string in `secrets` replaced by `***`. `secrets` is a list that `forms` returned."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def secrets_of_environment() -> list[str]:
    """Return the values of the environment variables whose names mark them as secret."""
    return [value for name, value in os.environ.items() if name in CERTAIN or (SECRET.search(name) and len(value) >= SHORTEST)]


def forms(secrets: Iterable[str]) -> list[str]:
    """Return the secrets in every form in which a text may contain them, longest first.

    The forms of a secret are: as given, percent-decoded, escaped for JSON, and percent-encoded in three ways, which treat `/` and the space
    differently.
    """
    found = set()
    for secret in filter(None, secrets):
        plain = unquote(secret)
        found |= {secret, plain, quote(plain), quote(plain, safe=""), json.dumps(plain)[1:-1], quote_plus(plain)}
    return sorted(found, key=len, reverse=True)


class RedactedStream(io.TextIOBase):
    """A text stream that writes to another stream, with every secret replaced by `***`."""

    def __init__(self, stream: TextIO, secrets: Sequence[str]) -> None:
        self._stream = stream
        self._secrets = secrets

    def write(self, text: str) -> int:
        self._stream.write(redacted(text, self._secrets))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def redacted_output(secrets: Sequence[str]) -> Iterator[None]:
    """Replace `secrets` by `***` in everything that is printed inside the block. `secrets` is a list that `forms` returned.

    If the block raises an Exception other than Refusal, print its traceback without the secrets, and raise SystemExit(1) in its place.
    Otherwise, the interpreter would print the traceback with the secrets.
    """
    with (
        contextlib.redirect_stdout(RedactedStream(sys.stdout, secrets)),
        contextlib.redirect_stderr(RedactedStream(sys.stderr, secrets)),
    ):
        try:
            yield
        except Refusal:
            raise
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None
