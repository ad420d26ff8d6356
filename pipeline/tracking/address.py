"""The address of the MLflow server or database."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pipeline.io import files
from pipeline.runtime import redaction
from pipeline.runtime.environment import Environment


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
