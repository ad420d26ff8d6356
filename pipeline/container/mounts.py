"""What becomes of a file when the container ends: the kernel's table of mounts says which volume or folder it lies in."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")
VOLUME = re.compile(r"^(?:.*/volumes)?/([^/]+)/_data$")
CONTAINER = re.compile(r"/containers/([0-9a-f]{12})[0-9a-f]*/hostname$")


@dataclass(frozen=True)
class Mount:
    """`source` is what of a file system stands at `point`, as a path in it; `kind` is the kind of the file system."""

    source: str
    point: Path
    kind: str

    @property
    def volume(self) -> str | None:
        """Its name in Docker; None where it is none of Docker's."""
        found = VOLUME.search(self.source)
        return found and found[1]

    @property
    def is_memory(self) -> bool:
        """Of this container: a folder that the host itself has in memory is a part of its file system."""
        return self.kind == "tmpfs" and self.source == "/"

    @property
    def outlives_the_container(self) -> bool:
        return self.point != Path("/") and not self.is_memory


def holding(path: Path, table: str) -> Mount:
    """The innermost, and of several at one point the last, which hides the others."""
    return max((mount for mount in mounts(table) if path.is_relative_to(mount.point)), key=lambda mount: len(mount.point.parts))


def container(table: str) -> str | None:
    """The id of this container, for `docker cp`: its name is known outside only."""
    found = [match[1] for mount in mounts(table) if (match := CONTAINER.search(mount.source))]
    return found[0] if found else None


def mounts(table: str) -> Iterator[Mount]:
    """The last one first."""
    for line in reversed(table.splitlines()):
        mounted, _, file_system = line.partition(" - ")
        _, _, _, source, point, *_ = mounted.split()
        yield Mount(unescaped(source), Path(unescaped(point)), file_system.split()[0])


def unescaped(text: str) -> str:
    r"""The kernel writes a space as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], base=8)), text)
