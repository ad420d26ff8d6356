"""The MLflow server of compose.yaml on a real PostgreSQL, and a training that reports to it while it is restarted."""

import ipaddress
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import requests

from pipeline.runs import events
from tests.container import docker, postgres
from tests.container.docker import HOME, inspect, wait_for_output
from tests.forking import free_port
from tests.imports import TOP
from tests.repository import client, runs

pytestmark = pytest.mark.container

COMPOSE = os.environ.get("COMPOSE", "docker compose").split()
PROJECT = f"pipeline-test-{uuid.uuid4().hex[:8]}"


class Served(NamedTuple):
    address: str
    container: str
    password: str
    compose: Callable[..., str]


def compose(folder: Path, settings: dict[str, str], *words: str) -> str:
    """Return the output of Compose for the project in `folder`."""
    done = subprocess.run(
        [*COMPOSE, "--project-name", PROJECT, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "IMAGE": docker.IMAGE, **settings},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def composed(engine: str) -> None:
    try:
        subprocess.run([*COMPOSE, "version"], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(f"engine {engine} has no `{' '.join(COMPOSE)}`: install Compose, or set COMPOSE")


@pytest.mark.usefixtures("composed")
def test_the_compose_file_is_valid_and_isolates_database_and_secrets(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    text = compose(TOP, {}, "--profile", "gpu", "--profile", "cpu", "config")
    services = YAML(typ="safe", pure=True).load(text[text.index("services:") :])["services"]
    assert set(services) == {"trainer", "trainer-cpu", "mlflow", "postgres"}
    assert "5000" in json.dumps(services["mlflow"]["ports"])
    assert "127.0.0.1" in json.dumps(services["mlflow"]["ports"]), "open to other machines only if the user sets MLFLOW_BIND"
    assert "nvidia" in json.dumps(services["trainer"]["deploy"])
    assert "deploy" not in services["trainer-cpu"]
    holders = {name for name, service in services.items() if "postgres" in json.dumps(service.get("secrets", []))}
    assert holders == {"mlflow", "postgres"}
    networks = {name: set(service["networks"]) for name, service in services.items()}
    assert not networks["postgres"] & (networks["trainer"] | networks["trainer-cpu"])
    assert all(networks[name] & networks["mlflow"] for name in services)
    assert "@sha256:" in services["postgres"]["image"]
    assert all("PASSWORD" not in name or name.endswith("_FILE") for service in services.values() for name in service["environment"])


@pytest.fixture(scope="module")
def served(composed: None, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start the service `mlflow` of compose.yaml; its PostgreSQL runs on this machine, which the engine's bridge network reaches."""
    folder = tmp_path_factory.mktemp("composed")
    (bridge,) = json.loads(docker.docker("network", "inspect", "bridge"))
    gateway = str(ipaddress.ip_network(bridge["IPAM"]["Config"][0]["Subnet"])[1])
    port = free_port()
    with postgres.server(folder / "postgres", address=gateway) as store:
        (folder / "compose.yaml").write_bytes((TOP / "compose.yaml").read_bytes())
        (folder / "secrets").mkdir()
        (folder / "secrets/postgres").write_text(store.password + "\n", encoding="utf-8")
        settings = {"STORE_HOST": gateway, "STORE_PORT": str(store.port), "MLFLOW_PORT": str(port), "IMAGE": image}
        call = partial(compose, folder, settings)
        call("up", "--detach", "--no-deps", "mlflow")
        try:
            name = call("ps", "-q", "mlflow").split()[-1]
            wait_until_healthy(name)
            yield Served(f"http://127.0.0.1:{port}", name, store.password, call)
        finally:
            call("--profile", "cpu", "down", "--volumes")


def wait_until_healthy(name: str, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while inspect(name)["State"]["Health"]["Status"] != "healthy":
        assert time.monotonic() < deadline, docker.docker("logs", name)
        time.sleep(0.5)


def test_a_training_reports_to_the_server_and_a_restart_of_it_loses_nothing(served: Served, tmp_path: Path) -> None:
    trainer = served.compose("--profile", "cpu", "run", "--detach", "--no-deps", *docker.ONE_THREAD, "trainer-cpu").split()[-1]
    try:
        wait_for_output(trainer, "train: step 50 ")
        docker.docker("restart", "--time", "1", served.container)
        assert docker.docker("wait", trainer).strip() == "0", docker.docker("logs", trainer)
        docker.docker("cp", f"{trainer}:{HOME}/.pipeline/journal", str(tmp_path))
        assert served.password not in json.dumps(inspect(trainer)) + docker.docker("logs", trainer)
    finally:
        docker.docker("rm", "--force", trainer)
    lines = [line for path in tmp_path.rglob(events.EVENTS) for line in events.read(path) if line.kind == "metrics"]
    points = sum(len(line.fields["values"]) for line in lines)
    (found,) = runs(served.address)
    assert found.info.status == "FINISHED"
    store = client(served.address)
    history = [point for name in found.data.metrics for point in store.get_metric_history(found.info.run_id, name)]
    assert len([point for point in history if not point.key.startswith("system/")]) == points > 100
    assert store.list_artifacts(found.info.run_id)


def test_the_server_answers_only_this_machine_and_shows_no_password(served: Served) -> None:
    assert requests.get(f"{served.address}/version", timeout=60).status_code == 200
    search = f"{served.address}/api/2.0/mlflow/experiments/search?max_results=1"
    assert requests.get(search, headers={"Host": "evil.example"}, timeout=60).status_code == 403
    assert served.password not in json.dumps(inspect(served.container)) + docker.docker("logs", served.container)
