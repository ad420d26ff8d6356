"""Checks whether DVC has a remote for data and results, and whether this remote can be reached."""

import os
import socket
from importlib import metadata
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from pipeline.doctor import dvc_config
from pipeline.doctor.context import Context
from pipeline.doctor.finding import Finding
from pipeline.tracking.address import without_user

LIMIT_S = 1.6
PORTS = {"http": 80, "https": 443, "webdav": 80, "webdavs": 443, "ssh": 22, "hdfs": 8020, "webhdfs": 9870}
HOSTS = {"s3": "s3.amazonaws.com", "gs": "storage.googleapis.com", "gdrive": "www.googleapis.com"}
PLUGINS = {scheme: f"dvc-{scheme}" for scheme in ("s3", "gs", "gdrive", "azure", "ssh", "oss", "webdav", "hdfs", "webhdfs")}
PLUGINS["webdavs"] = "dvc-webdav"
"""The packages that DVC needs for a kind of remote. They are not in requirements.lock."""


def remote(context: Context) -> Finding:
    """Check the default remote. Only `dvc push` and `dvc pull` need it, so the worst status is `warning`."""
    found = dvc_config.remote(context.top)
    if found is None:
        return Finding(
            "dvc remote", "ok", "none: data and results stay on this machine", "to share them: `dvc remote add --default NAME URL`"
        )
    name, settings = found
    url = settings.get("url", "")
    parts = urlsplit(url)
    if "://" not in url or parts.scheme == "file":
        return of_folder(name, context.top / ".dvc" / (parts.path if parts.scheme == "file" else url))
    text = f"{name}: {without_user(url)._replace(query='', fragment='').geturl()}"
    if (plugin := PLUGINS.get(parts.scheme)) and not is_installed(plugin):
        return Finding("dvc remote", "warning", f"{text} needs the package {plugin}", f"`uv pip install {plugin}`")
    return of_host(text, parts, settings)


def of_folder(name: str, folder: Path) -> Finding:
    """Check that the remote `name` in `folder` exists and can be written to."""
    folder = folder.resolve()
    text = f"{name}: {folder}"
    is_there = folder.is_dir()
    if not is_there and not folder.parent.is_dir():
        return Finding("dvc remote", "warning", f"{text} does not exist", f"mount it, or `dvc remote modify --local {name} url PATH`")
    if not os.access(folder if is_there else folder.parent, os.W_OK | os.X_OK):
        return Finding("dvc remote", "warning", f"{text} cannot be written, so `dvc push` fails", "get the permission to write there")
    return Finding("dvc remote", "ok", text if is_there else f"{text}, which `dvc push` will make")


def of_host(text: str, parts: SplitResult, settings: dict[str, str]) -> Finding:
    """Connect to the host of a remote by TCP, without sending anything.

    `text` names the remote, `parts` are those of its URL, and `settings` are DVC's. Behind a proxy, no connection is made, because a direct
    one would prove nothing.
    """
    endpoint = urlsplit(settings.get("endpointurl", "")) if settings.get("endpointurl") else None
    address = endpoint or (parts if parts.scheme in PORTS else None)
    host = address.hostname if address else HOSTS.get(parts.scheme)
    port = (address.port or PORTS.get(address.scheme, 443)) if address else 443
    has_proxy = bool(getproxies().keys() - {"no"})  # `no_proxy` alone, which many clusters set, is no proxy
    if host is None or (has_proxy and parts.scheme not in ("ssh", "hdfs")):
        return Finding("dvc remote", "ok", f"{text}, which was not examined", "`dvc status --cloud` connects to it")
    try:
        socket.create_connection((host, port), timeout=LIMIT_S).close()
    except OSError as error:
        reason = f"{host}:{port} does not answer ({error.strerror or error})"
        return Finding(
            "dvc remote",
            "warning",
            f"{text}: {reason}",
            "`dvc remote list` shows the addresses; start the server, or connect to its network",
        )
    return Finding("dvc remote", "ok", f"{text} answers; the permission was not examined")


def is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
