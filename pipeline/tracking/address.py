"""The address of the MLflow server or database, and the redaction of its secrets."""

import contextlib
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, urlsplit

from pipeline.io import files
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment

# Environment variables whose values are secrets, whatever their length.
CERTAIN = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
SECRET = re.compile("password|passwd|token|secret|credential|(access|account|api|storage)_?key|connection_string", re.IGNORECASE)
# The minimum length of a secret in a variable that matches SECRET and is not in CERTAIN: replacing `1` or `true` would garble every text.
SHORTEST = 8


@dataclass(frozen=True)
class Address:
    """A tracking address. `given` is the address as the user wrote it; a relative SQLite path in it is relative to `root`.

    `given`, `credentials` and `secrets` may contain a password, and so may `for_mlflow` if the address is that of a database.
    """

    given: str
    root: Path

    @classmethod
    def of(cls, environment: Environment) -> "Address":
        return cls(environment.tracking_address, environment.root.resolve())

    @cached_property
    def _parts(self) -> SplitResult:
        return urlsplit(self.given)

    @property
    def is_server(self) -> bool:
        return self._parts.scheme in {"http", "https", "databricks"} or self.given.startswith("databricks")

    @property
    def credentials(self) -> tuple[str, str] | None:
        """Return user and password in this address; None if it has no password, or is not that of a server."""
        if self.is_server and self._parts.password is not None:
            return unquote(self._parts.username or ""), unquote(self._parts.password)
        return None

    @property
    def for_mlflow(self) -> str:
        """Return the address to pass to MLflow.

        A server's address is returned without user and password, so that no message contains them: MLflow reads them from environment
        variables. In the address of a SQLite database, a relative path is resolved against `root`.
        """
        if self.credentials:
            return without_user(self.given).geturl()
        scheme, separator, path = self.given.partition(":///")
        if scheme.startswith("sqlite") and path and not path.startswith("/"):
            return f"{scheme}{separator}{self.root / path}"
        return self.given

    @property
    def shown(self) -> str:
        """Return the address of a server for printing, without user, password, token and query."""
        return without_user(self.given)._replace(query="", fragment="").geturl().rstrip("/")

    @property
    def key(self) -> str:
        """Return the key of this store in `delivered.json`: a digest of the address without the user and password before its host."""
        return files.digest_of(without_user(self.for_mlflow).geturl())[:16]

    @property
    def secrets(self) -> list[str]:
        """Return all secrets of the address and of the environment, each in all encodings that `forms` returns, longest first."""
        # If a server's address has a user name but no password, the user name is a token.
        found = [self._parts.password or (self._parts.username if self.is_server else None) or ""]
        found += [value for name, value in parse_qsl(self._parts.query) if SECRET.search(name)]
        found += [value for name, value in os.environ.items() if name in CERTAIN or (SECRET.search(name) and len(value) >= SHORTEST)]
        return sorted({form for secret in found if secret for form in forms(secret)}, key=len, reverse=True)

    def redacted(self, text: str) -> str:
        """Return the text with every secret replaced by `***`."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def without_user(address: str) -> SplitResult:
    """Return the parts of an address without the user and password before its host."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2])


def forms(secret: str) -> set[str]:
    """Return the encodings of a secret: as given, percent-decoded, percent-encoded in the three usual ways, and escaped for JSON."""
    plain = unquote(secret)
    return {secret, plain, quote(plain), quote(plain, safe=""), json.dumps(plain)[1:-1], quote_plus(plain)}


class RedactedStream(io.TextIOBase):
    """A text stream that writes to another stream, with the secrets in the text replaced by `***`."""

    def __init__(self, stream: TextIO, address: Address) -> None:
        self._stream = stream
        self._address = address

    def write(self, text: str) -> int:
        self._stream.write(self._address.redacted(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def redacted_output(address: Address) -> Iterator[None]:
    """Redact secrets in everything that is printed inside the block, also by MLflow and its libraries.

    An uncaught exception is printed here and ends the program with code 1, because the interpreter would print it unredacted. A Refusal
    is not printed here but passed on.
    """
    with (
        contextlib.redirect_stdout(RedactedStream(sys.stdout, address)),
        contextlib.redirect_stderr(RedactedStream(sys.stderr, address)),
    ):
        try:
            yield
        except Refusal:
            raise
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None
