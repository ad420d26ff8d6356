"""The manifests in deploy/kubernetes, and the commands of torchrun: valid, hardened, and in agreement with the Dockerfile, compose.yaml, the code and the docs."""

import json
import re
import subprocess

import kubernetes_validate
import pytest
from torch.distributed.run import get_args_parser

from pipeline.container import __main__ as entry_point
from pipeline.container import checkout
from pipeline.core.environment import Environment
from pipeline.core.interruption import KILLED
from pipeline.core.refusal import Refusal, Unavailable
from tests.deploy import manifests
from tests.deploy.manifests import FILES, all_containers, compose, containers, documents, jobs, objects, option, pods
from tests.imports import TOP

OLDEST = "1.33"
"""The first version in which every field that the manifests use is stable."""


def test_every_manifest_is_valid_and_a_misspelt_key_and_a_wrong_type_would_be_found() -> None:
    for version in (OLDEST, "1.37"):
        for document in (document for path in FILES for document in documents(path)):
            kubernetes_validate.validate(document, version, strict=True)
    for place, key, value in [("spec", "backofLimit", 6), ("spec", "backoffLimit", "six"), ("template", "restartPolicy", "Never")]:
        (job,) = documents(manifests.KUBERNETES / "job.yaml")
        (job["spec"] if place == "spec" else job["spec"]["template"])[key] = value
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(job, OLDEST, strict=True)


def test_a_pod_has_few_rights_like_the_containers_of_the_dockerfile_and_compose_yaml() -> None:
    uid, gid = map(int, re.findall(r"^USER (\d+):(\d+)$", (TOP / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[-1])
    trainer = compose()
    assert trainer["read_only"] is True
    assert trainer["security_opt"] == ["no-new-privileges:true"]
    rights = {"readOnlyRootFilesystem": True, "capabilities": {"drop": trainer["cap_drop"]}, "allowPrivilegeEscalation": False}
    for name, pod in pods().items():
        security = pod["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (uid, gid, gid), name
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert [container["securityContext"] for container in containers(pod)] == [rights] * len(containers(pod))


def test_a_pod_mounts_the_volume_where_the_image_keeps_its_folder() -> None:
    for pod in pods().values():
        kinds = {volume["name"]: set(volume) - {"name"} for volume in pod["volumes"]}
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
        assert claims == ["trainings"]
        for container in containers(pod):
            mounts = {mount["mountPath"]: kinds[mount["name"]] for mount in container["volumeMounts"]}
            assert mounts.pop(str(checkout.HOME)) == {"persistentVolumeClaim"}
            assert set(compose()["tmpfs"]) <= set(mounts)
            assert all(kind == {"emptyDir"} for kind in mounts.values())


def test_several_machines_share_a_volume_that_all_can_write() -> None:
    claims = {path.parent.name: documents(path)[0] for path in FILES if documents(path)[0]["kind"] == "PersistentVolumeClaim"}
    assert {claim["metadata"]["name"] for claim in claims.values()} == {"trainings"}
    assert {folder: claim["spec"]["accessModes"] for folder, claim in claims.items()} == {
        "kubernetes": ["ReadWriteOnce"],
        "several-machines": ["ReadWriteMany"],
    }


def test_the_image_is_named_after_the_makefile_and_the_version_and_comes_from_no_public_registry() -> None:
    name = re.findall(r"^IMAGE \?= (\S+)$", (TOP / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    version = re.findall(r'^version = "(.*)"$', (TOP / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    image = f"registry.example/{name[0]}:{version[0]}"
    assert {container["image"] for container in all_containers()} == {image}
    assert image in manifests.DOCS.read_text(encoding="utf-8")


def test_each_container_runs_what_the_entry_point_knows() -> None:
    commands = {
        name: [entry_point.commands_for(container.get("args", [])) for container in containers(pod)] for name, pod in pods().items()
    }
    assert not any("command" in container for container in all_containers()), "the image's entry point runs"
    assert commands["pipeline"] == [entry_point.REPRO]
    assert commands["pipeline-prepare"] == [((*entry_point.VERB, "check"),), (("dvc", "repro", "prepare"),)]
    assert commands["pipeline-train"][0][0][-3:] == ("-m", "pipeline", "train")
    assert commands["pipeline-evaluate"] == [(("dvc", "commit", "--force", "train"),), entry_point.REPRO]


def test_the_variables_are_those_that_the_code_reads() -> None:
    known = {field.validation_alias for field in Environment.model_fields.values()}
    named = {variable["name"] for container in all_containers() for variable in container.get("env", [])}
    assert {name for name in named if name.startswith(("PIPELINE_", "MLFLOW_"))} <= known
    assert {"PIPELINE_PROCESSES", "PIPELINE_THREADS"} <= named
    assert {reference["configMapRef"]["name"] for container in all_containers() for reference in container["envFrom"]} == {"pipeline"}


def test_a_pod_that_is_stopped_has_time_for_its_save() -> None:
    periods = {pod["terminationGracePeriodSeconds"] for pod in pods().values()}
    (period,) = periods
    shutdown_s = int(option(manifests.torchrun_of_the_job(), "shutdown-timeout"))
    assert period >= shutdown_s + 30
    assert period >= int(compose()["stop_grace_period"].removesuffix("s"))
    assert f"{period} s" in manifests.DOCS.read_text(encoding="utf-8")


def test_a_preempted_pod_is_replaced_once_it_has_ended_and_a_job_ends_at_once_on_bad_input_alone() -> None:
    """A preemption is no failure. A lock or a server may be free at the next try."""
    for job in jobs().values():
        assert job["podReplacementPolicy"] == "Failed"
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        assert job["podFailurePolicy"]["rules"] == [  # the first rule that matches decides
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [Refusal.exit_code]}},
        ]
    assert Refusal.exit_code not in (Unavailable.exit_code, KILLED, 1)


def test_the_pods_of_a_training_find_each_other() -> None:
    name = "pipeline-train"
    job, pod = jobs()[name], pods()[name]
    (service,), (policy,) = objects("Service"), objects("NetworkPolicy")
    words, (container,) = manifests.torchrun_of_the_job(), pod["containers"]
    host, _, port = option(words, "rdzv-endpoint").partition(":")
    assert host == f"{name}-0.{pod['subdomain']}.$(NAMESPACE).svc.cluster.local"
    assert container["env"][0] == {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["clusterIP"] == "None"
    assert [place["port"] for place in service["spec"]["ports"]] == [place["containerPort"] for place in container["ports"]] == [int(port)]
    own = {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == own
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": own}}]}]
    assert job["completionMode"] == "Indexed"
    assert int(option(words, "nnodes")) == job["completions"] == job["parallelism"]


def test_the_docs_name_every_file_and_none_that_is_missing() -> None:
    text = manifests.DOCS.read_text(encoding="utf-8")
    named = set(re.findall(r"deploy/[\w./-]+\w", text))
    assert [path for path in named if not (TOP / path).exists()] == []
    assert [path.name for path in FILES if path.name not in text] == []
    assert str(manifests.SLURM.relative_to(TOP)) in named


SAME = ("rdzv-backend", "max-restarts", "shutdown-timeout")
COMMANDS = (manifests.torchrun_of_the_job(), manifests.torchrun_of_the_script())


def test_torchrun_knows_every_option_and_runs_the_stage() -> None:
    for words in COMMANDS:
        arguments = get_args_parser().parse_args([word.replace('"', "") for word in words[1:]])
        assert arguments.module is True
        assert (arguments.training_script, arguments.training_script_args) == ("pipeline", ["train"])
        assert arguments.rdzv_backend == "c10d"


def test_the_commands_agree() -> None:
    text = manifests.DOCS.read_text(encoding="utf-8").replace("\\\n", " ")
    documented = re.findall(r"^python -m pipeline.tools.torchrun (--.*-m pipeline train)$", text, re.MULTILINE)
    assert documented
    commands = [*COMMANDS, *(line.split() for line in documented)]
    for name in SAME:
        assert len({option(words, name) for words in commands}) == 1, name


def test_the_development_container_is_a_stage_of_the_dockerfile_with_its_user() -> None:
    settings = json.loads((TOP / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    build = settings["build"]
    dockerfile = TOP / ".devcontainer" / build["dockerfile"]
    assert dockerfile.resolve() == TOP / "Dockerfile"
    assert (TOP / ".devcontainer" / build["context"]).resolve() == TOP
    (stage,) = re.findall(
        rf"^FROM system AS {build['target']}\n(.*?)^FROM", dockerfile.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert re.search(rf"useradd .* {settings['remoteUser']}$", stage, re.MULTILINE)
    assert {"make", "python3-venv"} <= set(stage.split())
    target = settings["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", (TOP / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


INDEX = "http://127.0.0.1:9/simple"


def test_make_hands_the_index_on() -> None:
    for words, found in (([f"PACKAGE_INDEX={INDEX}"], True), ([], False)):
        printed = subprocess.run(["make", "--dry-run", "lock", "image", *words], cwd=TOP, capture_output=True, text=True, check=True).stdout
        assert ("--upgrade-package torch --upgrade-package torchvision" in printed) == found
        assert (f"--build-arg PACKAGE_INDEX={INDEX}" in printed) == found
