"""Take the screenshots of the MLflow UI in docs/images: `make screenshots`.

Trains five small models in a clone of the last commit, serves the UI as `make ui` does, and drives the Chromium of the system.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from playwright.sync_api import sync_playwright
from ruamel.yaml import YAML

from pipeline.core.yaml_document import Document
from tests.conftest import changed
from tests.imports import TOP

IMAGES = TOP / "docs/images"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
EXPERIMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"model.width": 32, "optimizer.learning_rate": 5e-3},
    {"optimizer.learning_rate": 1e-2, "augment.mixup": 0.2},
    {"train.batch_size": 128, "train.micro_batch_size": 128, "seed": 2},
    {"model": {"name": "mlp", "weights": None, "width": 128, "depth": 2, "dropout": 0.1}, "optimizer.learning_rate": 2e-3},
)
AS_A_USER = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "PIPELINE_"))}
"""Without the bounds that the tests set for themselves."""
SIZE = {"width": 1600, "height": 900}
DRAWN_MS = 15_000
"""The UI asks its server again and again, so there is no moment at which the network is idle."""


def main() -> None:
    if CHROMIUM is None:
        sys.exit("error: no Chromium is installed: `apt-get install chromium`, or name one by CHROMIUM=/path")
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "pipeline"
        train(checkout)
        photograph(checkout)


def train(checkout: Path) -> None:
    """Clone the last commit and train a model for each of EXPERIMENTS there."""
    subprocess.run(["git", "clone", "--quiet", TOP, checkout], check=True)
    (checkout / ".venv").symlink_to(TOP / ".venv")
    params = Document.read(checkout / "params.yaml").data
    for changes in EXPERIMENTS:
        with (checkout / "params.yaml").open("w", encoding="utf-8") as file:
            YAML().dump(changed(deepcopy(params), changes), file)
        subprocess.run(["dvc", "repro", "--quiet"], cwd=checkout, check=True, env=AS_A_USER)


def photograph(checkout: Path) -> None:
    with served(checkout) as origin, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE).new_page()
        for name, address in addresses(checkout, origin).items():
            page.goto("about:blank")  # another fragment alone would not load the page anew
            page.goto(address)
            page.wait_for_timeout(DRAWN_MS)
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"docs/images/{name}.png", flush=True)
        browser.close()


@contextmanager
def served(checkout: Path) -> Iterator[str]:
    """The UI of a checkout, at an address that ends with its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pipeline", "ui", "--port", str(port)]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            print(process.stdout.readline(), end="", flush=True)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)


def addresses(checkout: Path, origin: str) -> dict[str, str]:
    """Table, charts, comparison of two runs, one run and its model, by the names of their pictures."""
    client = MlflowClient(f"sqlite:///{checkout}/mlflow.db")
    experiment = client.get_experiment_by_name("pipeline")
    assert experiment
    runs = client.search_runs([experiment.experiment_id], order_by=["metrics.`test/accuracy` DESC"])
    (model,) = client.search_logged_models([experiment.experiment_id], filter_string=f"source_run_id = '{runs[0].info.run_id}'")
    place = f"{origin}/#/experiments/{experiment.experiment_id}"
    compared = json.dumps([run.info.run_id for run in runs[:3]])
    return {
        "ui-table": f"{origin}/compare",
        "ui-charts": f"{origin}/compare?charts",
        "ui-comparison": f'{origin}/#/compare-runs?runs={compared}&experiments=["{experiment.experiment_id}"]',
        "ui-run": f"{place}/runs/{runs[0].info.run_id}",
        "ui-model": f"{place}/models/{model.model_id}",
    }


if __name__ == "__main__":
    main()
