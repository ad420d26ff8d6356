"""Read what the files in `deploy/` and the container agree on."""

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.imports import TOP

KUBERNETES = TOP / "deploy/kubernetes"
SLURM = TOP / "deploy/slurm/train.sbatch"
DOCS = TOP / "docs/clusters.md"
FILES = sorted(path.relative_to(TOP) for path in KUBERNETES.rglob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all((TOP / path).read_text(encoding="utf-8")))


def objects(kind: str) -> list[dict[str, Any]]:
    return [document for path in FILES for document in documents(path) if document["kind"] == kind]


def jobs() -> dict[str, dict[str, Any]]:
    return {job["metadata"]["name"]: job["spec"] for job in objects("Job")}


def pods() -> dict[str, dict[str, Any]]:
    """Return the specification of the pods of each Job, by the name of the Job."""
    return {name: job["template"]["spec"] for name, job in jobs().items()}


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod in the order in which they run."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def all_containers() -> list[dict[str, Any]]:
    return [container for pod in pods().values() for container in containers(pod)]


def compose() -> dict[str, Any]:
    """Return the service `trainer` of compose.yaml."""
    return dict(YAML(typ="safe", pure=True).load((TOP / "compose.yaml").read_text(encoding="utf-8"))["services"]["trainer"])


def torchrun_of_the_job() -> list[str]:
    (words,) = [container["args"] for container in all_containers() if container.get("args", [""])[0] == "torchrun"]
    return list(words)


def torchrun_of_the_script() -> list[str]:
    """Return the words of the torchrun command in the Slurm script, with its shell variables."""
    text = SLURM.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"python -m pipeline.tools.torchrun (--.*?-m pipeline train)", text)
    assert found, SLURM
    return ["torchrun", *found[1].split()]


def option(words: list[str], name: str) -> str:
    """Return the value of an option `--NAME=VALUE`, which must be there once."""
    (value,) = [word.removeprefix(f"--{name}=") for word in words if word.startswith(f"--{name}=")]
    return value
