"""The address of the MLflow server or database, and the secrets that all output of the program shows as `***`."""

import contextlib
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, urlsplit

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal

CERTAIN = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables whose values are secrets, whatever their length."""
SECRET = re.compile("password|passwd|token|secret|credential|(access|account|api|storage)_?key|connection_string", re.IGNORECASE)
"""Matches names of environment variables, and of parameters in the query of an address, whose values are secrets."""
PREFIX = "tracking: "
"""Begins each message of tracking: at the end of a stage, the last one in `mirror.log` is printed again."""
SHORTEST = 8
"""The minimum length of a secret in a variable that is not in `CERTAIN`. Replacing a value such as `1` or `true` would garble any text."""


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
    """A text stream that writes to another stream, without the secrets that the tracking address and the environment hold."""

    def __init__(self, stream: TextIO, address: "Address") -> None:
        self._stream, self._address = stream, address

    def write(self, text: str) -> int:
        self._stream.write(self._address.redacted(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def redacted_output(address: "Address") -> Iterator[None]:
    """Replace the secrets that the tracking address and the environment hold by `***` in everything that is printed inside the block.

    If the block raises an Exception other than Refusal, print its traceback without the secrets, and raise SystemExit(1) in its place.
    Otherwise, the interpreter would print the traceback with the secrets.
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


@dataclass(frozen=True)
class Address:
    """The address of an MLflow server or database. `given` is the address as the user wrote it.

    If the address has a relative path of a SQLite file, this path starts at the folder `root`. Never print `given`, `credentials`, `secrets`
    or `for_mlflow`: they may contain a password or token.
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
        """Return the user and the password in the address of a server. Return None for a database, and for an address without password."""
        if self.is_server and self._parts.password is not None:
            return unquote(self._parts.username or ""), unquote(self._parts.password)
        return None

    @property
    def for_mlflow(self) -> str:
        """Return the address to pass to MLflow. The path of a SQLite database is made absolute, and `postgresql://` names its driver.

        If the address of a server has a password, it is returned without user and password, so that no message of MLflow contains them.
        MLflow then reads user and password from environment variables. A user without a password is not removed.
        """
        # SQLAlchemy 2.1 would choose psycopg 3, but requirements.lock has psycopg2
        return re.sub("^postgresql://", "postgresql+psycopg2://", self._absolute)

    @property
    def _absolute(self) -> str:
        """Return the address for MLflow, but with the driver of the database as in `given`, or without one."""
        if self.credentials:
            return without_user(self.given).geturl()
        scheme, separator, path = self.given.partition(":///")
        if scheme.startswith("sqlite") and path and not path.startswith("/"):
            return f"{scheme}{separator}{self.root / path}"
        return self.given

    @property
    def shown(self) -> str:
        """Return the address of the server or database for printing, without user, password, token and query."""
        if self.given.startswith("sqlite"):  # `geturl` drops slashes of its path
            return self.given.partition("?")[0]
        return without_user(self.given)._replace(query="", fragment="").geturl().rstrip("/")

    @property
    def key(self) -> str:
        """Return a digest of the address without user and password.

        It is the key of this server or database in `delivered.json`, which records how much of a run each of them has received.
        """
        return files.digest_of(without_user(self._absolute).geturl())[:16]

    @property
    def secrets(self) -> list[str]:
        """Return all secrets in the address, and the values of all environment variables whose names mark them as secret.

        The list has each secret in all forms in which it may be printed, such as percent-encoded.
        """
        # If a server's address has a user name but no password, the user name is a token.
        found = [self._parts.password or (self._parts.username if self.is_server else None) or ""]
        found += [value for name, value in parse_qsl(self._parts.query) if SECRET.search(name)]
        found += [value for name, value in os.environ.items() if name in CERTAIN or (SECRET.search(name) and len(value) >= SHORTEST)]
        return forms(found)

    def redacted(self, text: str) -> str:
        """Return the text with every secret replaced by `***`."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def say(self, message: str, *, failed: bool = False) -> None:
        """Print a message of tracking as one line, without secrets: to stderr if something has `failed`, else to stdout."""
        with contextlib.suppress(OSError, ValueError):  # a full disk, a broken pipe, a closed stream
            line = self.redacted(f"{PREFIX}{message}").replace("\n", " ")
            print(line, file=sys.stderr if failed else sys.stdout, flush=True)


def without_user(address: str) -> SplitResult:
    """Return the parts of an address without the user and password before its host."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2])
