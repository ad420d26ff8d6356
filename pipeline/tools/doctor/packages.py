"""Checks Python and the installed packages, without importing them."""

import re
import sys
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
    wanted, installed = locked(path), installed_versions()
    found = {name: installed.get(normalized(name)) for name in wanted}
    missing = [name for name, version in found.items() if version is None]
    different = [f"{name} {version} (not {wanted[name]})" for name, version in found.items() if version not in (None, wanted[name])]
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


def locked(lock: Path) -> dict[str, str]:
    """Return the versions in a lock file by name, for the packages whose markers hold for this Python and platform."""
    from packaging.markers import Marker

    entries = ENTRY.findall(lock.read_text(encoding="utf-8"))
    return {name: version for name, version, marker in entries if not marker or Marker(marker.strip()).evaluate()}


def installed_versions() -> dict[str, str]:
    """Return the versions of all installed packages by normalized name, from the names of their `.dist-info` folders, or of their
    `.egg-info` if a package was built from its source by an old setuptools.

    `importlib.metadata.version` would read and parse a file of each package, which takes twenty times as long.
    """
    found: dict[str, str] = {}
    for folder in filter(Path.is_dir, map(Path, dict.fromkeys(sys.path))):
        for path in (*folder.glob("*.dist-info"), *folder.glob("*.egg-info")):
            name, _, rest = path.stem.partition("-")
            found.setdefault(normalized(name), rest.partition("-")[0])  # an .egg-info may end in the version of Python
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
