"""The pods of deploy/kubernetes, run by Docker with the rights, mounts, variables and commands of the manifests."""

from typing import Any

import pytest

from tests.container import docker
from tests.container.docker import run, volume
from tests.deploy.manifests import containers, pods

pytestmark = pytest.mark.container

ALONE = {"--nnodes": "1", "--nproc-per-node": "2", "--rdzv-endpoint": "localhost:29400"}
"""The options of torchrun that are different where there is one machine and no GPU."""


def flags(pod: dict[str, Any], container: dict[str, Any], claim: str) -> list[str]:
    """Return the options of `docker run` that mean what the pod says; `claim` is the volume instead of the claim.

    The network is Docker's own, because torchrun needs a host name that resolves: as in a pod, it is in /etc/hosts.
    """
    security, rights = pod["securityContext"], container["securityContext"]
    words = ["--user", f"{security['runAsUser']}:{security['runAsGroup']}"]
    words += ["--read-only"] if rights["readOnlyRootFilesystem"] else []
    words += [] if rights["allowPrivilegeEscalation"] else ["--security-opt", "no-new-privileges"]
    words += [word for name in rights["capabilities"]["drop"] for word in ("--cap-drop", name)]
    claims = {entry["name"] for entry in pod["volumes"] if "persistentVolumeClaim" in entry}
    for mount in container["volumeMounts"]:
        path = mount["mountPath"]
        words += ["--volume", f"{claim}:{path}"] if mount["name"] in claims else ["--tmpfs", f"{path}:exec"]
    values = {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}
    return [*words, *(word for name, value in values.items() for word in ("--env", f"{name}={value}")), *docker.ONE_THREAD]


def on_one_machine(arguments: list[str]) -> list[str]:
    return [f"{name}={ALONE[name]}" if (name := word.partition("=")[0]) in ALONE else word for word in arguments]


def test_the_three_jobs_for_several_machines_prepare_train_and_evaluate_on_one_volume(image: str) -> None:
    output = {}
    with volume() as claim:
        for name in ("pipeline-prepare", "pipeline-train", "pipeline-evaluate"):
            for container in containers(pod := pods()[name]):
                output[container["name"]] = run(*flags(pod, container, claim), image, *on_one_machine(container.get("args", [])))
    assert list(output) == ["check", "prepare", "train", "commit", "evaluate"]
    assert "prepare: train: " in output["prepare"]
    assert "train: step " in output["train"]
    assert "Stage 'train' didn't change, skipping" in output["evaluate"]
    assert "test accuracy" in output["evaluate"]


def test_the_job_for_one_machine_runs_everything(image: str) -> None:
    (container,) = containers(pod := pods()["pipeline"])
    with volume() as claim:
        assert "test accuracy" in run(*flags(pod, container, claim), image, *container.get("args", []))
