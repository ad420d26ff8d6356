"""The development container is a stage of the Dockerfile."""

import json
import re

from tests.imports import TOP


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
