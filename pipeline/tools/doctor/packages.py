"""Checks Python and the installed packages, without importing them."""

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pipeline.core.environment import Paths
from pipeline.core.refusal import listed
from pipeline.tools.doctor.finding import Context, Finding, ok, problem, warning

ENTRY = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[.*?\])?==([^\s;]+)(?:\s*;\s*([^\\\n]+))?", re.MULTILINE)
ONLY_ON_GPUS = ("nvidia-", "cuda-", "triton")
MOST_NAMED = 3
ACTIVATE = "`source .venv/bin/activate`"
INSTALL = "`rm -f .venv/.locked; make setup`, or `make image` for the container"


def python(context: Context) -> Finding:
    """Check that this Python is that of the checkout's virtual environment, if there is one."""
    text = f"{'.'.join(map(str, sys.version_info[:3]))} in {sys.prefix}"
    if is_outside_venv(context.top):
        return warning(f"{text} is not the virtual environment of this checkout", ACTIVATE)
    return ok(text)


def lock(context: Context) -> Finding:
    """Compare the installed packages with requirements.lock. The status is `problem` if a package is missing.

    If only packages that torch needs on GPUs are missing, as with a CPU build of torch, the status is `warning`.
    """
    path, remedy = Paths(context.top).lock, ACTIVATE if is_outside_venv(context.top) else INSTALL
    if not path.is_file():
        return problem(f"{path} is missing, and every stage depends on it", "`git checkout requirements.lock`")
    wanted = locked(path)
    missing, different = compared(wanted)
    needed = [name for name in missing if not name.startswith(ONLY_ON_GPUS)]
    parts = [f"{listed(missing, MOST_NAMED)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
    parts += [f"{listed(different, MOST_NAMED)} differ{'s' if len(different) == 1 else ''} from it"] if different else []
    if parts:
        text = f"of {len(wanted)} packages of {path}, {', and '.join(parts)}"
        return Finding("problem" if needed else "warning", text, remedy)
    return ok(f"all {len(wanted)} packages of {path} are installed in its versions")


def is_outside_venv(top: Path) -> bool:
    """Return True if the checkout has a virtual environment, but this Python is another one."""
    return (top / ".venv/bin/python").exists() and (top / ".venv").resolve() != Path(sys.prefix).resolve()


def compared(wanted: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of the packages of `wanted` that are missing, and a text about each that is installed in another version."""
    missing, different = list[str](), list[str]()
    for name, version in wanted.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
        else:
            different += [f"{name} {installed} (not {version})"] if installed != version else []
    return missing, different


def locked(lock: Path) -> dict[str, str]:
    """Return the versions in a lock file by name, for the packages whose markers hold for this Python and platform."""
    from packaging.markers import Marker

    entries = ENTRY.findall(lock.read_text(encoding="utf-8"))
    return {name: version for name, version, marker in entries if not marker or Marker(marker.strip()).evaluate()}
