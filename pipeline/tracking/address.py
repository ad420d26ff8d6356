"""The tracking address: where MLflow is, and what of it may be shown."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from pipeline import files
from pipeline.environment import Environment

SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


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
    def key(self) -> str:
        """Names the store in `delivered.json`; the same with another password."""
        bare = urlsplit(self.for_mlflow)
        return files.digest_of(bare._replace(netloc=bare.netloc.rpartition("@")[2]).geturl())[:16]

    @property
    def secrets(self) -> list[str]:
        """Longest first, as they may stand in a text."""
        found = {self._parts.password or "", unquote(self._parts.password or ""), *(os.environ.get(name, "") for name in SECRET_VARIABLES)}
        return sorted(found - {""}, key=len, reverse=True)

    def redacted(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text
