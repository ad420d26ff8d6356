"""Docker: a program in its place answers as the engine does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs.utilization import Gpu
from pipeline.tools.doctor import resources
from pipeline.tools.doctor.finding import Context

MakeContext = Callable[..., Context]
H200 = Gpu("NVIDIA H200", 1, 1, (9, 0))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a program in the place of Docker, which prints this information and ends with this exit code."""

    def put(info: dict[str, Any], code: int = 0, first: str = "") -> None:
        program = tmp_path / "docker"
        program.write_text(f"#!/bin/sh\n{first}\ncat <<'END'\n{json.dumps(info)}\nEND\nexit {code}\n", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("DOCKER", str(program))

    monkeypatch.setattr("shutil.which", lambda name, which=resources.shutil.which: None if name.startswith("nvidia") else which(name))
    return put


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "`sudo systemctl start docker`"),
        ("permission denied while trying to connect to the Docker daemon socket", "`sudo usermod -aG docker $USER`, then log in again"),
    ],
)
def test_an_engine_that_cannot_be_reached(make_context: MakeContext, engine: Callable[..., None], message: str, remedy: str) -> None:
    for code in (0, 1):  # old programs end with 0
        engine({"ServerErrors": [message]}, code)
        finding = resources.docker(make_context())
        assert (finding.status, message in finding.text, finding.remedy) == ("warning", True, remedy)


def test_an_engine_that_hangs(make_context: MakeContext, engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "LIMIT_S", 0.2)
    engine({}, first="exec sleep 60")
    finding = resources.docker(make_context())
    assert (finding.status, "does not answer within" in finding.text) == ("warning", True)


def test_gpus_need_the_toolkit(make_context: MakeContext, engine: Callable[..., None]) -> None:
    engine({"ServerVersion": "28.2.2", "Runtimes": {"runc": {}}})
    assert resources.docker(make_context()).text == "Docker 28.2.2"
    finding = resources.docker(make_context(H200))
    assert (finding.status, "nvidia-ctk runtime configure" in finding.remedy) == ("warning", True)
    for has in ({"Runtimes": {"nvidia": {}}}, {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}):
        engine({"ServerVersion": "28.2.2", **has})
        assert resources.docker(make_context(H200)).status == "ok"
