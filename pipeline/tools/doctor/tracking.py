"""Checks the MLflow server or database. No training depends on it, so the worst status is `warning`."""

import os
import re
import sqlite3
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.untrusted import shown
from pipeline.runs.mlflow.address import Address
from pipeline.tools.doctor.finding import Context, Finding, ok, warning

if TYPE_CHECKING:
    from requests import Response

LIMIT_S, LEAST_S, LOCKED_S = 1.6, 0.3, 1.0
API = "/api/2.0/mlflow/experiments/search?max_results=1"
VERSION = re.compile(r"(\d+)\.\d+(\.\w+)*")
LATER = "a training runs nevertheless, and `python -m pipeline sync` sends its record later"
UNSET = "or `unset MLFLOW_TRACKING_URI` for a database in this folder"
PROXY = "(if a proxy stands in between: name the host in `no_proxy`)"


def tracking(context: Context) -> Finding:
    """Check that the MLflow server answers and is not too old, or that the database can be read."""
    if not context.environment.tracking:
        return ok("off (PIPELINE_TRACKING)")
    address = Address.of(context.environment)
    signed = os.environ.get("MLFLOW_TRACKING_AUTH") or os.environ.get("MLFLOW_TRACKING_AWS_SIGV4", "").lower() in ("true", "1")
    if address.given.startswith("databricks") or (address.is_server and signed):  # only MLflow's client can send such requests
        return ok(f"{address.shown}, which was not examined")
    check = of_server if address.is_server else of_sqlite if address.given.startswith("sqlite") else of_database
    return check(address)


def of_server(address: Address) -> Finding:
    """Request the experiments and the version of the server at `address`."""
    end_s = time.monotonic() + LIMIT_S
    import requests

    try:
        answer = request(address, API, end_s)
        return of_version(address, request(address, "/version", end_s).text.strip()) if answer.ok else of_status(address, answer)
    except requests.Timeout:
        return warning(f"{address.shown} does not answer within {LIMIT_S:g} s; {LATER}", f"look at the log of the server {PROXY}, {UNSET}")
    except (requests.RequestException, OSError) as error:
        text = f"{address.shown} does not answer ({shown(address.redacted(reason(error)), 120)}); {LATER}"
        return warning(text, f"start the server {PROXY}, {UNSET}")


def request(address: Address, path: str, end_s: float) -> "Response":
    """Send a GET request with the credentials that MLflow's client would send. Its timeout ends at `end_s` on the monotonic clock.

    Raises exceptions of `requests`.
    """
    import requests

    headers, auth, variables = {}, address.credentials, os.environ
    if auth is None and variables.get("MLFLOW_TRACKING_USERNAME"):
        auth = (variables["MLFLOW_TRACKING_USERNAME"], variables.get("MLFLOW_TRACKING_PASSWORD", ""))
    if auth is None and (token := variables.get("MLFLOW_TRACKING_TOKEN")):
        headers["Authorization"] = f"Bearer {token}"
    if workspace := variables.get("MLFLOW_WORKSPACE"):
        headers["X-MLFLOW-WORKSPACE"] = workspace
    insecure = variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1")
    verify = variables.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or not insecure
    return requests.get(
        address.for_mlflow.rstrip("/") + path,
        headers=headers,
        auth=auth,
        verify=verify,
        timeout=max(LEAST_S, end_s - time.monotonic()),
        cert=variables.get("MLFLOW_TRACKING_CLIENT_CERT_PATH") or None,
    )


def of_status(address: Address, answer: "Response") -> Finding:
    """Return the finding for a server whose `answer` has another status than 200."""
    host = address.shown.partition("://")[2].partition("/")[0]
    text = f"{address.shown} answers {answer.status_code}"
    if answer.status_code == 403 and "host header" in answer.text.lower():
        remedy = f"start the server with `mlflow server --allowed-hosts {host},localhost:*` and what it allows now"
        return warning(f"{text}, because it does not allow the host name {host}; {LATER}", remedy)
    if answer.status_code in (401, 403):
        remedy = "`export MLFLOW_TRACKING_USERNAME=... MLFLOW_TRACKING_PASSWORD=...`, or MLFLOW_TRACKING_TOKEN, of a user with permission"
        return warning(f"{text}: it does not permit this user; {LATER}", remedy)
    if answer.status_code == 404:
        return warning(f"{text}: it is no MLflow server, or serves MLflow at another path", "correct MLFLOW_TRACKING_URI")
    return warning(f"{text}: {shown(answer.text, 80)}; {LATER}", f"look at the log of the server {PROXY}")


def of_version(address: Address, version: str) -> Finding:
    """Compare the version of a server with that of the installed MLflow. A server of an older major version cannot store all that a run records."""
    client, match = metadata.version("mlflow"), VERSION.fullmatch(version)
    if not match:
        text = f"{address.shown} answers, but does not report a version of MLflow ({shown(version, 40)})"
        return warning(text, "correct MLFLOW_TRACKING_URI, if it is not the address of MLflow")
    text = f"{address.shown}, MLflow {version}"
    if int(match[1]) < int(client.partition(".")[0]):
        remedy = f"on the server: `pip install mlflow=={client}`, then `mlflow db upgrade` with the address of its database"
        return warning(f"{text} is too old for the installed MLflow {client}: runs would be incomplete", remedy)
    return ok(text)


def of_sqlite(address: Address) -> Finding:
    """Read the SQLite file, without changing it."""
    database = Path(address.for_mlflow.partition(":///")[2])
    if not database.exists():
        return ok(f"{database}, which the first run will make")
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=LOCKED_S)) as connection:
            connection.execute("SELECT name FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        if "locked" in str(error):
            return warning(f"{database} is locked by another process", f"`fuser {database}` names the process")
        remedy = f"`mv {database} {database}.damaged`, then restore a backup, or `python -m pipeline sync` to write a new one"
        return warning(f"{database} cannot be read ({error}); {LATER}", remedy)
    return ok(str(database))


def of_database(address: Address) -> Finding:
    """Connect to the database on a database server."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    try:
        create_engine(address.for_mlflow, connect_args={"connect_timeout": 2}).connect().close()
    except ImportError as error:
        remedy = "name an installed driver in MLFLOW_TRACKING_URI, as in postgresql+psycopg2://, or install this one"
        return warning(f"{address.shown} needs the package {error.name}; {LATER}", remedy)
    except SQLAlchemyError as error:
        return warning(f"{address.shown}: {shown(address.redacted(reason(error)), 160)}; {LATER}", f"start the database, {UNSET}")
    return ok(address.shown)


def reason(error: BaseException) -> str:
    """Return the text of the innermost cause of an error of requests or SQLAlchemy. The text of the error itself names objects in memory."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return str(getattr(error, "strerror", None) or error).strip().splitlines()[0]
