"""One image for all tests of a run; without an engine they are skipped, with the reason."""

import subprocess
from pathlib import Path

import pytest

from tests.container import docker

HERE = Path(__file__).parent
BUILDS = HERE / "test_image.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The image takes minutes to build: one file begins with it, and nobody else waits for it before a third of all other tests is done."""
    first = [item for item in items if item.path == BUILDS]
    later = [item for item in items if item.path.parent == HERE and item.path != BUILDS]
    others = [item for item in items if item.path.parent != HERE]
    third = len(others) // 3
    items[:] = [*first, *others[:third], *later, *others[third:]]


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine's version."""
    try:
        done = subprocess.run(
            [docker.DOCKER, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no Docker engine answers here ({type(error).__name__}): set DOCKER, start one")
    return done.stdout.strip()


@pytest.fixture(scope="session")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this checkout, with canaries beside the code."""
    folder = docker.clone(tmp_path_factory.mktemp("commit") / "pipeline project")
    for path in docker.CANARIES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(docker.CANARY, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def image(engine: str, commit: Path) -> str:
    """The name of the image, built by `make image`."""
    assert engine
    docker.make(commit, "image")
    return docker.IMAGE
