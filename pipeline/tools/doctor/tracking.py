"""Checks the MLflow server or database. No training depends on it, so the worst status is `warning`."""

import os
import re
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from pipeline.core.untrusted import shown
from pipeline.runs.mlflow.address import Address, without_user
from pipeline.runs.mlflow.store import UNNAMED, deleted_message, restoring
from pipeline.tools.doctor.finding import Context, Finding, ok, warning

if TYPE_CHECKING:
    from requests import Response

    from pipeline.core.environment import Environment

LIMIT_S, LEAST_S, LOCKED_S = 1.6, 0.3, 1.0
OF_PROXIES = (407, 502, 503, 504)
"""Statuses with which a proxy answers in place of the server."""
OF_CLIENT = (
    *("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_WORKSPACE", "MLFLOW_TRACKING_INSECURE_TLS"),
    *("MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
)
"""With one of these variables, only MLflow's client can send the requests that a server expects."""
API = "/api/2.0/mlflow/experiments/search?max_results=1"
VERSION = re.compile(r"(\d+)\.\d+(\.\w+)*")
LATER = "a training runs nevertheless, and `python -m pipeline sync` sends its record later"
UNSET = "or `unset MLFLOW_TRACKING_URI` for a database in this folder"


def tracking(context: Context) -> Finding:
    """Check that the MLflow server answers and is not too old, or that the database can be read."""
    if not context.environment.tracking:
        return ok("off (PIPELINE_TRACKING)")
    address = Address.of(context.environment)
    is_clients = address.is_server and any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in OF_CLIENT)
    if address.given.startswith("databricks") or is_clients:
        return ok(f"{address.shown}, which was not examined")
    return (of_server if address.is_server else of_database)(address, context.environment)


def of_server(address: Address, environment: "Environment") -> Finding:
    """Request the experiments and the version of the server at `address`, and the experiment that runs go to."""
    end_s = time.monotonic() + LIMIT_S
    import requests

    try:
        answer = request(address, API, end_s)
        if answer.status_code != 200:
            return of_status(address, answer)
        finding = of_version(address, request(address, "/version", end_s).text.strip())
        number, name = environment.mlflow_experiment_id, experiment_name(environment)
        query = f"get?experiment_id={quote(number)}" if number else f"get-by-name?experiment_name={quote(name)}"
        answer = request(address, f"/api/2.0/mlflow/experiments/{query}", end_s)
    except requests.Timeout:
        text = f"{address.shown} does not answer{through_proxy(address)} within {LIMIT_S:g} s; {LATER}"
        return warning(text, without_proxy(address) or f"look at the log of the server, {UNSET}")
    except (requests.RequestException, OSError) as error:
        text = f"{address.shown} does not answer{through_proxy(address)} ({shown(address.redacted(reason(error)), 120)}); {LATER}"
        return warning(text, without_proxy(address) or f"start the server, {UNSET}")
    experiment = answer.json().get("experiment", {}) if answer.status_code == 200 and finding.status == "ok" else {}
    is_deleted = experiment.get("lifecycle_stage") == "deleted"
    return of_deleted(address, environment, experiment["experiment_id"], experiment["name"]) if is_deleted else finding


def experiment_name(environment: "Environment") -> str:
    """Return the name of the experiment to which the next run goes, unless MLFLOW_EXPERIMENT_ID is set."""
    try:
        from pipeline.core.yaml_document import Document
        from pipeline.runs.run_description import experiment

        return environment.mlflow_experiment_name or experiment(Document.read(environment.root / "params.yaml").data)
    except Exception:  # params.yaml is missing or invalid, or a library is not installed: other checks say so
        return UNNAMED


def through_proxy(address: Address) -> str:
    """Return which proxy the requests to the server go through, for a message; "" without a proxy. MLflow uses the same one."""
    from requests.utils import get_environ_proxies, select_proxy

    proxy = select_proxy(address.for_mlflow, get_environ_proxies(address.for_mlflow))
    return f" through the proxy {without_user(proxy)._replace(query='', fragment='').geturl()}" if proxy else ""


def without_proxy(address: Address) -> str:
    """Return the remedy if a server does not answer through a proxy; "" without a proxy."""
    host = urlsplit(address.for_mlflow).hostname
    remedy = f'`export no_proxy="${{no_proxy:-$NO_PROXY}},{host}"` if this server is reached without the proxy, else correct the proxy'
    return remedy if through_proxy(address) else ""


def request(address: Address, path: str, end_s: float) -> "Response":
    """Send a GET request with the credentials that MLflow's client would send. Its timeout ends at `end_s` on the monotonic clock.

    Raises exceptions of `requests`.
    """
    import requests

    headers, auth = {}, address.credentials
    if auth is None and (user := os.environ.get("MLFLOW_TRACKING_USERNAME")):
        auth = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    if auth is None and (token := os.environ.get("MLFLOW_TRACKING_TOKEN")):
        headers["Authorization"] = f"Bearer {token}"
    remaining_s = max(LEAST_S, end_s - time.monotonic())
    return requests.get(address.for_mlflow.rstrip("/") + path, headers=headers, auth=auth, timeout=remaining_s)


def of_status(address: Address, answer: "Response") -> Finding:
    """Return the finding for a server whose `answer` has another status than 200."""
    host = address.shown.partition("://")[2].partition("/")[0]
    text = f"{address.shown} answers {answer.status_code}{through_proxy(address)}"
    if answer.status_code in OF_PROXIES and (remedy := without_proxy(address)):
        return warning(f"{text}; {LATER}", remedy)
    if answer.status_code == 403 and "host header" in answer.text.lower():
        remedy = f"start the server with `mlflow server --allowed-hosts {host},localhost:*` and what it allows now"
        return warning(f"{text}, because it does not allow the host name {host}; {LATER}", remedy)
    if answer.status_code in (401, 403):
        remedy = "`export MLFLOW_TRACKING_USERNAME=... MLFLOW_TRACKING_PASSWORD=...`, or MLFLOW_TRACKING_TOKEN, of a user with permission"
        return warning(f"{text}: it does not permit this user; {LATER}", remedy)
    if answer.status_code == 404:
        return warning(f"{text}: it is no MLflow server, or serves MLflow at another path", "correct MLFLOW_TRACKING_URI")
    return warning(f"{text}: {shown(answer.text, 80)}; {LATER}", "look at the log of the server")


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


def of_deleted(address: Address, environment: "Environment", number: str | int, name: str) -> Finding:
    return warning(f"{deleted_message(address, name)}; {LATER}", restoring(environment, "experiment", number))


def of_database(address: Address, environment: "Environment") -> Finding:
    """Read from the database whether the experiment that runs go to was deleted. A SQLite file is not changed."""
    from sqlalchemy import URL, create_engine, text
    from sqlalchemy.exc import SQLAlchemyError

    place, remedy = address.shown, f"start the database, {UNSET}"
    url: str | URL = address.for_mlflow
    options: dict[str, float] = {"connect_timeout": 2}
    if address.given.startswith("sqlite"):
        database = Path(address.for_mlflow.partition(":///")[2])
        if not database.exists():
            return ok(f"{database}, which the first run will make")
        place, options = str(database), {"timeout": LOCKED_S}
        url = URL.create("sqlite", database=database.as_uri(), query={"mode": "ro", "uri": "true"})  # a text would be decoded
        remedy = f"`fuser {database}` if a process locks it, else `mv {database} {database}.damaged`, and restore a backup or `python -m pipeline sync`"
    number, name = environment.mlflow_experiment_id, experiment_name(environment)
    query = "SELECT experiment_id, name FROM experiments WHERE lifecycle_stage = 'deleted' AND (experiment_id = :number OR name = :name)"
    try:
        with closing(create_engine(url, connect_args=options).connect()) as connection:
            row = connection.execute(text(query), {"number": number, "name": None if number else name}).fetchone()
    except ImportError as error:
        driver = "name an installed driver in MLFLOW_TRACKING_URI, as in postgresql+psycopg2://, or install this one"
        return warning(f"{address.shown} needs the package {error.name}; {LATER}", driver)
    except SQLAlchemyError as error:
        return warning(f"{place}: {shown(address.redacted(reason(error)), 160)}; {LATER}", remedy)
    return of_deleted(address, environment, *row) if row else ok(place)


def reason(error: BaseException) -> str:
    """Return the text of the innermost cause of an error of requests or SQLAlchemy. The text of the error itself names objects in memory."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return str(getattr(error, "strerror", None) or error).strip().splitlines()[0]
