"""Prints the bill of materials (SBOM) of the image in which it runs, as JSON in CycloneDX's format: the packages of Python and of the distribution.

The Dockerfile runs this file by itself: it imports nothing of this project. It writes no time, so equal images have equal bills.
"""

import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

FIELDS = "${Package}\t${Version}\t${Architecture}\n"


def bill() -> dict[str, Any]:
    components = sorted([*of_python(), *of_distribution()], key=lambda component: component["purl"])
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def of_python() -> Iterator[dict[str, Any]]:
    """Yield the installed packages of Python, with the license that each declares as an SPDX expression, if it does."""
    for package in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", package.name).lower()  # as the lock file and the package index write it
        licenses = [{"expression": expression} for expression in package.metadata.get_all("License-Expression", [])]
        yield component(name, package.version, f"pkg:pypi/{name}@{quote(package.version)}") | ({"licenses": licenses} if licenses else {})


def of_distribution() -> Iterator[dict[str, Any]]:
    """Yield the installed packages of the distribution, Ubuntu or Debian."""
    system = platform.freedesktop_os_release()
    lines = subprocess.run(["dpkg-query", "--show", "--showformat", FIELDS], check=True, capture_output=True, text=True).stdout.splitlines()
    for name, version, architecture in (line.split("\t") for line in lines):
        distro = f"{system['ID']}-{system.get('VERSION_ID', 'unstable')}"
        yield component(name, version, f"pkg:deb/{system['ID']}/{quote(name)}@{quote(version)}?arch={architecture}&distro={distro}")


def component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    print(json.dumps(bill(), indent=1))
