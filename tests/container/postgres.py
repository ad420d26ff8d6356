"""Run Debian's PostgreSQL, with a password, for a test."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.container.docker import make_accessible
from tests.forking import free_port

PROGRAMS = Path("/usr/lib/postgresql")
INSTALL = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", "postgresql"]


class Postgres(NamedTuple):
    port: int
    password: str


def programs() -> Path:
    """Return the folder of `initdb` and `pg_ctl`, installing PostgreSQL if possible; skip the test if not."""
    if not list(PROGRAMS.glob("*/bin/initdb")):
        if not shutil.which("apt-get") or os.geteuid() != 0:
            pytest.skip("no PostgreSQL below /usr/lib/postgresql, and only root can install it")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True, env=quiet)
        subprocess.run(INSTALL, check=True, capture_output=True, env=quiet)
    return max(PROGRAMS.glob("*/bin/initdb")).parent


@contextmanager
def server(folder: Path, *, address: str) -> Iterator[Postgres]:
    """Run a new cluster in `folder` that listens only at `address`, with the role and database `mlflow`. PostgreSQL refuses to run as root."""
    folder_of_programs, password, port = programs(), secrets.token_hex(16), free_port()
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    folder.mkdir(parents=True)
    (folder / "password").write_text(password, encoding="utf-8")
    if as_user:
        for path in (folder, folder / "password"):
            shutil.chown(path, "postgres", "postgres")
        make_accessible(folder)
    control = [*as_user, str(folder_of_programs / "pg_ctl"), "--pgdata", str(folder / "data")]

    def call(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env={"PATH": os.environ["PATH"], "PGPASSWORD": password})

    files = ("-D", str(folder / "data"), "--pwfile", str(folder / "password"))
    call(*as_user, str(folder_of_programs / "initdb"), *files, "-U", "mlflow", "-A", "scram-sha-256")
    with (folder / "data/pg_hba.conf").open("a", encoding="utf-8") as rules:
        rules.write("host all all all scram-sha-256\n")
    options = f"-p {port} -c listen_addresses={address} -c unix_socket_directories={folder}"
    call(*control, "--wait", "--log", str(folder / "log"), "--options", options, "start")
    try:
        call(*as_user, str(folder_of_programs / "createdb"), "-h", address, "-p", str(port), "-U", "mlflow", "mlflow")
        yield Postgres(port, password)
    finally:
        if as_user:
            make_accessible(folder)  # another pytest that begins meanwhile closes the common parent of their folders to other users
        call(*control, "--wait", "--mode", "immediate", "stop")
