"""The commands of torchrun in deploy/ and in the docs agree; the development container; another build of PyTorch."""

import json
import re
import subprocess
from pathlib import Path

from torch.distributed.run import get_args_parser

from tests.deploy import manifests
from tests.deploy.manifests import option
from tests.imports import TOP

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


def test_the_image_leaves_out_the_same_libraries_of_cuda_13_and_12(tmp_path: Path) -> None:
    (command,) = [
        line.strip().removeprefix("&& ").removesuffix("\\") for line in (TOP / "Dockerfile").read_text().splitlines() if "libnvperf" in line
    ]
    kept, removed = ("libcusolver.so.11", "libcupti.so.12"), ("libcusolverMg.so.11", "libnvperf_host.so", "libpcsamplingutil.so")
    for folder in (tmp_path / "nvidia/cu13/lib", tmp_path / "nvidia/cusolver/lib"):
        folder.mkdir(parents=True)
        for name in kept + removed:
            (folder / name).touch()
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        assert {path.name for path in folder.iterdir()} == set(kept)
