"""Parse the kernel's mount table, to determine in which volume or folder a file lies and if it outlives the container."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")
VOLUME = re.compile(r"^(?:.*/volumes)?/([^/]+)/_data$")
CONTAINER = re.compile(r"/containers/([0-9a-f]{12})[0-9a-f]*/hostname$")


@dataclass(frozen=True)
class Mount:
    """A mount at `point`: `source` is the mounted path within the file system, `kind` the file system's type."""

    source: str
    point: Path
    kind: str

    @property
    def volume(self) -> str | None:
        """The name of the Docker volume, or None if the mount is not a Docker volume."""
        found = VOLUME.search(self.source)
        return found and found[1]

    @property
    def is_memory(self) -> bool:
        """True for a tmpfs of this container. A bind-mounted folder of a host's tmpfs has another `source` than "/"."""
        return self.kind == "tmpfs" and self.source == "/"

    @property
    def outlives_the_container(self) -> bool:
        return self.point != Path("/") and not self.is_memory


def holding(path: Path, table: str) -> Mount:
    """Return the mount that contains `path`: the innermost, and of several at one point the last, which hides the others."""
    return max((mount for mount in mounts(table) if path.is_relative_to(mount.point)), key=lambda mount: len(mount.point.parts))


def container(table: str) -> str | None:
    """Return the short id of this container for `docker cp`, or None. Its name is not visible from inside."""
    found = [match[1] for mount in mounts(table) if (match := CONTAINER.search(mount.source))]
    return found[0] if found else None


def mounts(table: str) -> Iterator[Mount]:
    """Yield the mounts of a table in the format of /proc/self/mountinfo, last one first."""
    for line in reversed(table.splitlines()):
        mounted, _, file_system = line.partition(" - ")
        _, _, _, source, point, *_ = mounted.split()
        yield Mount(unescaped(source), Path(unescaped(point)), file_system.split()[0])


def unescaped(text: str) -> str:
    r"""Replace the kernel's octal escapes, such as `\040` for a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], base=8)), text)
