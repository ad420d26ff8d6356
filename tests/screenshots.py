"""Take the screenshots of the MLflow UI and of the report in docs/images: `make screenshots`.

Trains five small models in a clone of the last commit, serves the UI as `make ui` does, and drives the Chromium of the system.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import PIL.Image
from playwright.sync_api import ViewportSize, sync_playwright
from ruamel.yaml import YAML

from pipeline.core.yaml_document import Document
from tests.conftest import changed
from tests.forking import free_port
from tests.imports import TOP

IMAGES = TOP / "docs/images"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
EXPERIMENTS: tuple[dict[str, Any], ...] = (
    {"model": {"name": "mlp", "weights": None, "width": 128, "depth": 2, "dropout": 0.1}, "optimizer.learning_rate": 2e-3},
    {"train.batch_size": 128, "train.micro_batch_size": 128, "seed": 2},
    {"optimizer.learning_rate": 1e-2, "augment.mixup": 0.2},
    {"model.width": 32, "optimizer.learning_rate": 5e-3},
    {},
)
AS_A_USER = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "PIPELINE_"))}
"""Without the bounds that the tests set for themselves."""
SIZE, REPORT_SIZE = ViewportSize(width=1600, height=900), ViewportSize(width=1400, height=1500)
DRAWN_MS = 15_000
"""The UI asks its server again and again, so there is no moment at which the network is idle."""


def main() -> None:
    if CHROMIUM is None:
        sys.exit("error: no Chromium is installed: `apt-get install chromium`, or name one by CHROMIUM=/path")
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "pipeline"
        subprocess.run(["git", "clone", "--quiet", TOP, checkout], check=True)
        (checkout / ".venv").symlink_to(TOP / ".venv")
        train(checkout, Path("params.yaml"), EXPERIMENTS)
        photograph(checkout)
        photograph_report(checkout, "report-digits")


def train(checkout: Path, file_of_params: Path, experiments: tuple[dict[str, Any], ...]) -> None:
    """Train a model in the checkout for each of `experiments`, which are changes of a file of parameters."""
    params = Document.read(checkout / file_of_params).data
    for changes in experiments:
        with (checkout / "params.yaml").open("w", encoding="utf-8") as file:
            YAML().dump(changed(deepcopy(params), changes), file)
        subprocess.run(["dvc", "repro", "--quiet"], cwd=checkout, check=True, env=AS_A_USER)


def photograph(checkout: Path) -> None:
    with served(checkout) as origin:
        screenshot(f"{origin}/compare", "ui-table", SIZE, wait_ms=DRAWN_MS)


def photograph_report(checkout: Path, name: str) -> None:
    """Take the beginning of the report of the model that the checkout trained last."""
    subprocess.run([sys.executable, "-m", "pipeline", "report"], cwd=checkout, check=True, env=AS_A_USER)
    screenshot((checkout / "reports/report.html").as_uri(), name, REPORT_SIZE)
    whole = PIL.Image.open(IMAGES / f"{name}.png").convert("RGB")  # with a palette, the file has a third of the size
    whole.quantize(256, PIL.Image.Quantize.MAXCOVERAGE).save(IMAGES / f"{name}.png", optimize=True)


def screenshot(address: str, name: str, size: ViewportSize, *, wait_ms: int = 0) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport=size).new_page()
        page.goto(address)
        page.wait_for_timeout(wait_ms)
        page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()
    print(f"docs/images/{name}.png", flush=True)


@contextmanager
def served(checkout: Path) -> Iterator[str]:
    """The UI of a checkout, at an address that ends with its port."""
    port = free_port()
    command = [sys.executable, "-m", "pipeline", "ui", "--port", str(port)]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            print(process.stdout.readline(), end="", flush=True)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
