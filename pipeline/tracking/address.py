"""The tracking address: where MLflow is, and what of it may be shown."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, urlsplit

from pipeline.io import files
from pipeline.runtime.environment import Environment

CERTAIN = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
SECRET = re.compile("password|passwd|token|secret|credential|(access|account|api|storage)_?key|connection_string", re.IGNORECASE)
SHORTEST = 8  # of a variable that only sounds like a secret: `1` or `true` is none, and stands in every text


@dataclass(frozen=True)
class Address:
    """`given` may hold a password; nothing else here does but `secrets`."""

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
        """User and password of a server's address."""
        if self.is_server and self._parts.password is not None:
            return unquote(self._parts.username or ""), unquote(self._parts.password)
        return None

    @property
    def for_mlflow(self) -> str:
        """A server's without credentials (they go by variables, so that no message repeats them); a relative SQLite file is one of the root."""
        if self.credentials:
            return self._parts._replace(netloc=self._parts.netloc.rpartition("@")[2]).geturl()
        scheme, separator, path = self.given.partition(":///")
        if scheme.startswith("sqlite") and path and not path.startswith("/"):
            return f"{scheme}{separator}{self.root / path}"
        return self.given

    @property
    def shown(self) -> str:
        """The address of a server as it may be printed: without user, password, token and query."""
        return self._parts._replace(netloc=self._parts.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")

    @property
    def key(self) -> str:
        """Names the store in `delivered.json`; the same with another password."""
        bare = urlsplit(self.for_mlflow)
        return files.digest_of(bare._replace(netloc=bare.netloc.rpartition("@")[2]).geturl())[:16]

    @property
    def secrets(self) -> list[str]:
        """Longest first, each as it may stand in a text."""
        return sorted({form for secret in self._secrets() if secret for form in forms(secret)}, key=len, reverse=True)

    def _secrets(self) -> Iterator[str]:
        # an address with one name and no password holds a token in its place
        yield self._parts.password or (self._parts.username if self.is_server else None) or ""
        yield from (value for name, value in parse_qsl(self._parts.query) if SECRET.search(name))
        yield from (value for name, value in os.environ.items() if name in CERTAIN or (SECRET.search(name) and len(value) >= SHORTEST))

    def redacted(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def forms(secret: str) -> set[str]:
    """As it is, as it is without percent signs, and as addresses and JSON write it."""
    plain = unquote(secret)
    return {secret, plain, quote(plain), quote(plain, safe=""), json.dumps(plain)[1:-1], quote_plus(plain)}
