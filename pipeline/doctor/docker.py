"""Checks whether Docker answers, and whether it can give a container the GPUs."""

import json
import os
import shutil
import subprocess
from typing import Any

from pipeline.doctor.context import Context
from pipeline.doctor.finding import Finding
from pipeline.io.untrusted import shown

LIMIT_S = 1.6
TOOLKIT = "`sudo nvidia-ctk runtime configure --runtime=docker; sudo systemctl restart docker`, after the installation of the NVIDIA Container Toolkit"


def docker(context: Context) -> Finding:
    """Ask the Docker engine for its version and runtimes. Only `make image` and `make docker-repro` need it, so the worst status is `warning`."""
    program = os.environ.get("DOCKER", "docker")
    if not shutil.which(program):
        return Finding("docker", "ok", "not installed: only `make image` and `make docker-repro` need it")
    try:
        done = subprocess.run(
            [program, "info", "--format", "{{json .}}"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Finding("docker", "warning", f"the Docker engine does not answer within {LIMIT_S:g} s", "`sudo systemctl restart docker`")
    info = parsed(done.stdout)
    if done.returncode or info.get("ServerErrors"):
        reason = shown(" ".join([*(info.get("ServerErrors") or []), done.stderr.strip()]), 200)
        denied = "permission denied" in reason.lower()
        remedy = "`sudo usermod -aG docker $USER`, then log in again" if denied else "`sudo systemctl start docker`"
        return Finding("docker", "warning", f"the Docker engine cannot be used: {reason}", remedy)
    text = f"Docker {shown(info.get('ServerVersion', 'of unknown version'), 40)}"
    if not context.gpus.devices:
        return Finding("docker", "ok", text)
    if has_toolkit(info):
        return Finding("docker", "ok", f"{text} with the NVIDIA Container Toolkit")
    return Finding("docker", "warning", f"{text} without the NVIDIA Container Toolkit, so `--gpus all` fails", TOOLKIT)


def parsed(text: str) -> dict[str, Any]:
    try:
        info = json.loads(text)
    except ValueError:
        return {}
    return info if isinstance(info, dict) else {}


def has_toolkit(info: dict[str, Any]) -> bool:
    """Return True if Docker has NVIDIA's runtime or NVIDIA's CDI devices, or if NVIDIA's runtime hook is on the PATH."""
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or []]
    return (
        "nvidia" in (info.get("Runtimes") or {})
        or any(device.startswith("nvidia.com/gpu") for device in devices)
        or shutil.which("nvidia-container-runtime-hook") is not None
    )
