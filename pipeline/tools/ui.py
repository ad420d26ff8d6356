"""`ui`: serve the MLflow UI of this checkout, opened at the comparison of the runs."""

import contextlib
import os
import sys
import threading
import time
import warnings
import webbrowser
from typing import TYPE_CHECKING

from pipeline.core.environment import Environment
from pipeline.core.refusal import Refusal
from pipeline.runs.events import Cursor
from pipeline.runs.mlflow.address import redacted_output
from pipeline.runs.mlflow.store import Store
from pipeline.runs.record import runs_of

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104  # only if the user chooses it
LAST_PORT = 65_535


def run(host: str, port: int) -> int:
    """Serve the MLflow UI at `host` and `port` until interrupted. If MLFLOW_TRACKING_URI is the address of a server, only print the link to
    the comparison of the runs there.

    Raises Refusal if the server does not answer, or if there is no such port.
    """
    if not 0 < port <= LAST_PORT:
        raise Refusal(f"--port {port}: is no port: write a number from 1 to {LAST_PORT}")
    environment = Environment.read()
    store = Store(environment)
    with redacted_output(store.address):
        if store.address.is_server:
            with store.refusing(
                "MLFLOW_TRACKING_URI", f"{store.address.shown} does not answer", ": start the server, or unset the variable"
            ):
                show(f"{store.address.shown}/{runs_page(opened(store, environment))}")
        else:
            serve(store, environment, host, port)
    return 0


def opened(store: Store, environment: Environment) -> str:
    """Return the id of the experiment at which the UI opens: the one that the user has chosen, or else that of the newest run of this checkout.

    Without either, it is the experiment of the store that was changed last.
    """
    if environment.mlflow_experiment_name:
        return store.experiment_id(environment.mlflow_experiment_name)
    ids = [each.experiment_id for each in store.client.search_experiments(order_by=["last_update_time DESC"])]
    of_runs = (Cursor.load(run.folder, store.address.key).experiment_id for run in reversed(runs_of(environment.root)))
    return next((each for each in of_runs if each in ids), None) or next(iter(ids), "0")


def runs_page(experiment_id: str) -> str:
    """Return the address of an experiment's runs, relative to that of the MLflow UI: their comparison, or MLflow's own table if the file
    that writes the comparison was deleted.
    """
    try:
        from pipeline.runs.mlflow import comparison_view  # late: it has private keys of MLflow's UI, and everything else works without it
    except ImportError:
        return f"#/experiments/{experiment_id}/runs"
    return comparison_view.link(experiment_id)


def serve(store: Store, environment: Environment, host: str, port: int) -> None:
    """Serve MLflow's own application in this process, with the additional page `/compare`."""
    import uvicorn  # must precede MLflow's server, which checks sys.modules for it
    from mlflow.server import constants

    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = (
        "false"  # job execution serves only GenAI features, and takes 0.9 GiB and 32 processes
    )
    _ = store.client  # creates the database
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = store.address.for_mlflow
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = (store.address.root / "mlruns").as_uri()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow imports deprecated parts of Starlette
        from mlflow.server.fastapi_app import app
    from starlette.responses import HTMLResponse, RedirectResponse
    from starlette.routing import Route

    def compare(_request: "Request") -> "Response":
        try:
            from pipeline.runs.mlflow import comparison_view

            return HTMLResponse(comparison_view.page(store, opened(store, environment)))
        except Exception:  # for example a busy store, or a stored view in an unknown format: then open the shared view
            return RedirectResponse(f"/{runs_page(opened(store, environment))}")

    app.router.routes.insert(0, Route("/compare", compare))
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
    address = f"http://{LOOPBACK if host == EVERYWHERE else host}:{port}/compare"
    threading.Thread(target=announce, args=(server, address), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to stop the server
        server.run()


def announce(server: "uvicorn.Server", address: str) -> None:
    while not server.started:
        time.sleep(0.1)
    show(address)


def show(address: str) -> None:
    """Print the address. Open it in a browser if stdout is a terminal and a display is available."""
    print(
        f"compare runs: {address}  (charts: {address}?charts)" if address.endswith("/compare") else f"compare runs: {address}", flush=True
    )
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(address)
