"""The kernel's table of mounts, read for what outlives a container."""

from pathlib import Path

import pytest

from pipeline.container import mounts, whereabouts
from pipeline.container.mounts import Mount

HOME = Path("/home/pipeline")
ID = "0123456789ab" + "c" * 52
BARE = f"""\
700 650 0:52 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/a
701 700 0:55 / /proc rw,nosuid - proc proc rw
702 700 0:56 / /memory rw,noexec - tmpfs tmpfs rw,size=1k
703 700 254:0 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw
"""
VOLUME = BARE + "704 700 254:0 /var/lib/docker/volumes/trainings/_data /home/pipeline rw,relatime - ext4 /dev/vda rw" + "\n"
FOLDER = BARE + r"704 700 254:0 /home/some\040body/out /home/pipeline rw,relatime shared:1 master:2 - ext4 /dev/vda rw" + "\n"
HOSTS_MEMORY = BARE + "704 700 0:31 /out /home/pipeline rw,relatime - tmpfs tmpfs rw\n"
OWN_DISK = BARE + "704 700 254:16 /trainings/_data /home/pipeline rw,relatime - ext4 /dev/vdb rw\n"


@pytest.mark.parametrize(
    ("table", "path", "mount"),
    [
        (BARE, HOME, Mount("/", Path("/"), "overlay")),
        (BARE, Path("/memory/pipeline"), Mount("/", Path("/memory"), "tmpfs")),
        (VOLUME, HOME / "models", Mount("/var/lib/docker/volumes/trainings/_data", HOME, "ext4")),
        (FOLDER, HOME, Mount("/home/some body/out", HOME, "ext4")),
        (HOSTS_MEMORY, HOME, Mount("/out", HOME, "tmpfs")),
    ],
)
def test_the_innermost_mount_holds_a_path(table: str, path: Path, mount: Mount) -> None:
    assert mounts.holding(path, table) == mount


def test_the_last_mount_at_a_point_hides_those_below() -> None:
    assert mounts.holding(HOME, VOLUME + FOLDER).source == "/home/some body/out"


def test_only_what_was_mounted_from_a_disk_outlives_the_container() -> None:
    kept = [mounts.holding(path, VOLUME).outlives_the_container for path in (HOME, Path("/memory/x"), Path("/opt"))]
    assert kept == [True, False, False]


def test_a_volume_and_a_container_are_known_by_name() -> None:
    assert mounts.holding(HOME, VOLUME).volume == "trainings"
    assert mounts.holding(HOME, OWN_DISK).volume == "trainings"
    assert mounts.holding(HOME, FOLDER).volume is None
    assert mounts.container(BARE) == ID[:12]
    assert mounts.container("700 650 0:52 / / rw - overlay overlay rw\n") is None


def test_this_machines_own_table_is_read() -> None:
    assert mounts.holding(Path("/proc/self"), mounts.TABLE.read_text(encoding="utf-8")).point.parts[:2] == ("/", "proc")


@pytest.mark.parametrize(
    ("table", "top", "way"),
    [
        (BARE, HOME, "docker cp 0123456789ab:/home/pipeline/models/x ."),
        (BARE, Path("/memory/pipeline"), "goes with this container, whose /memory is memory"),
        (FOLDER, HOME, "is in what you mounted at /home/pipeline: models/x"),
        (HOSTS_MEMORY, HOME, "is in what you mounted at /home/pipeline: models/x"),
        (VOLUME, HOME, "is in the volume trainings: docker run --rm -v trainings:/home/pipeline"),
    ],
)
def test_the_model_is_told_to_be_where_it_is(table: str, top: Path, way: str) -> None:
    assert way in whereabouts.of(top / "models/x", table, home=HOME)
