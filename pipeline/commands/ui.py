"""Serve the MLflow UI of this checkout with the comparison of its runs in front, or name the comparison of a remote server."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import warnings
import webbrowser
from typing import TYPE_CHECKING

from pipeline.environment import Environment
from pipeline.refusal import Refusal
from pipeline.tracking import comparison
from pipeline.tracking.store import Store

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104  # served there only where the user says so
# A shared view is lost when the page is reloaded. What the UI itself keeps in the browser is not: this page puts the view there.
PAGE = """<!doctype html><meta charset="utf-8"><title>Comparison of runs</title><script>
localStorage.setItem("MLflowLocalStorage-1.1-ExperimentPage-" + JSON.stringify([%(experiment)s]) + "-ReactComponentState", %(state)s);
localStorage.setItem("mlflow.workflowType_v1", JSON.stringify("machine_learning"));
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
location.replace("/#/experiments/" + %(experiment)s + "/runs?workflowType=machine_learning" + (location.search ? "&compareRunsMode=CHART" : ""));
</script>"""


def run(host: str, port: int) -> int:
    """Serve until interrupted. Raises Refusal where the port is taken; returns at once where MLFLOW_TRACKING_URI is a server."""
    store = Store(Environment.read())
    if store.address.is_server:
        show(f"{store.address.for_mlflow.rstrip('/')}/{comparison.link(store.experiment_id())}")
        return 0
    refuse_taken(host, port)
    serve(store, host, port)
    return 0


def refuse_taken(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = f"take another port, as in `make ui PORT={port + 1}`"
            raise Refusal(f"{host}:{port} cannot be served ({error.strerror}): {remedy}") from None


def serve(store: Store, host: str, port: int) -> None:
    """MLflow's own application, in this process, with one page more."""
    import uvicorn  # before MLflow's server, which looks for it among the imported modules
    from mlflow.server import constants

    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # for GenAI; costs 0.9 GiB and 32 processes
    _ = store.client  # creates the database
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = store.address.for_mlflow
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = (store.address.root / "mlruns").as_uri()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow imports what Starlette has deprecated
        from mlflow.server.fastapi_app import app
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    def compare(_request: "Request") -> "Response":
        return HTMLResponse(page(store))

    app.router.routes.insert(0, Route("/compare", compare))
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
    address = f"http://{LOOPBACK if host == EVERYWHERE else host}:{port}/compare"
    threading.Thread(target=announce, args=(server, address), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # the way in which people end it
        server.run()


def page(store: Store) -> str:
    """The page that opens the comparison. Its values are JSON in a script, where `<` could end the script."""
    experiment_id = store.experiment_id()
    comparison.update(store.client, experiment_id)
    held = store.client.get_experiment(experiment_id).tags[comparison.VIEW_TAG]
    state = json.dumps(comparison.unpacked(held))
    return PAGE % {"experiment": json.dumps(experiment_id), "state": json.dumps(state).replace("<", "\\u003c")}


def announce(server: "uvicorn.Server", address: str) -> None:
    while not server.started:
        time.sleep(0.1)
    show(address)


def show(address: str) -> None:
    """Print the address, and open it where there is a terminal with a desktop."""
    print(
        f"compare runs: {address}  (charts: {address}?charts)" if address.endswith("/compare") else f"compare runs: {address}", flush=True
    )
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(address)
