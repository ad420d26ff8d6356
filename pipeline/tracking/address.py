"""The address of the MLflow server or database."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pipeline.io import files
from pipeline.runtime import redaction
from pipeline.runtime.environment import Environment


@dataclass(frozen=True)
class Address:
    """The address of an MLflow server or database. `given` is the address as the user wrote it. A relative SQLite path is relative to `root`.

    `given`, `credentials` and `secrets` may contain a password. So may `for_mlflow` if the address is that of a database.
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
        """Return the address to pass to MLflow, with an absolute path if it is that of a SQLite database.

        A server's address is returned without user and password, so that no message of MLflow contains them. MLflow reads them from
        environment variables instead.
        """
        if self.credentials:
            return without_user(self.given).geturl()
        scheme, separator, path = self.given.partition(":///")
        if scheme.startswith("sqlite") and path and not path.startswith("/"):
            return f"{scheme}{separator}{self.root / path}"
        return self.given

    @property
    def shown(self) -> str:
        """Return the address of the server or database for printing, without user, password, token and query."""
        return without_user(self.given)._replace(query="", fragment="").geturl().rstrip("/")

    @property
    def key(self) -> str:
        """Return a digest of the address without user and password, under which `delivered.json` lists this server or database."""
        return files.digest_of(without_user(self.for_mlflow).geturl())[:16]

    @property
    def secrets(self) -> list[str]:
        """Return all secrets in the address and in environment variables, in all forms in which they may be printed."""
        # If a server's address has a user name but no password, the user name is a token.
        found = [self._parts.password or (self._parts.username if self.is_server else None) or ""]
        found += [value for name, value in parse_qsl(self._parts.query) if redaction.SECRET.search(name)]
        found += redaction.secrets_of_environment()
        return redaction.forms(found)

    def redacted(self, text: str) -> str:
        """Return the text with every secret replaced by `***`."""
        return redaction.redacted(text, self.secrets)


def without_user(address: str) -> SplitResult:
    """Return the parts of an address without the user and password before its host."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2])
