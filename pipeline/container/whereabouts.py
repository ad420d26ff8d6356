"""Describe where the results of a job are after its container has ended, and how to copy them out."""

from pathlib import Path

from pipeline.container import mounts


def of(model: Path, table: str, *, home: Path) -> str:
    """Return the message about the location of `model`, to follow the words "the model".

    `table` is the kernel's mount table; `home` is the mount point to suggest for a volume.
    """
    mount = mounts.holding(model, table)
    if mount.is_memory:
        return f"goes with this container, whose {mount.point} is memory: -v NAME:{home} keeps it"
    if not mount.outlives_the_container:
        name = mounts.container(table) or "CONTAINER"
        return f"is in this container: docker cp {name}:{model} . gets it (without --rm), and -v NAME:{home} keeps it"
    if mount.volume is None:
        return f"is in what you mounted at {mount.point}: {model.relative_to(mount.point)}"
    packed = f"--entrypoint tar IMAGE -c -C {model.parents[1]} models metrics plots"
    return f"is in the volume {mount.volume}: docker run --rm -v {mount.volume}:{mount.point} {packed} | tar -x gets it, with its figures"
