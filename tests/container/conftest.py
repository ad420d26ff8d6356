"""Build one image for all tests; skip them, with the reason, where there is no engine."""

import subprocess
from pathlib import Path

import pytest

from tests.container import docker

FOLDER = Path(__file__).parent
BUILDS_IMAGE = FOLDER / "test_image.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the file that builds the image first, and the other container tests after a third of all tests: building takes minutes."""
    first = [item for item in items if item.path == BUILDS_IMAGE]
    later = [item for item in items if item.path.parent == FOLDER and item.path != BUILDS_IMAGE]
    others = [item for item in items if item.path.parent != FOLDER]
    third = len(others) // 3
    items[:] = [*first, *others[:third], *later, *others[third:]]


@pytest.fixture(scope="session")
def engine() -> str:
    """Return the version of the engine."""
    try:
        done = subprocess.run(
            [docker.DOCKER, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no Docker engine answers ({type(error).__name__}): set DOCKER, start one")
    return done.stdout.strip()


@pytest.fixture(scope="session")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of this checkout with canary files beside the code."""
    folder = docker.clone(tmp_path_factory.mktemp("commit") / "pipeline project")
    for path in docker.CANARIES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(docker.CANARY, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def image(engine: str, commit: Path) -> str:
    """Build the image by `make image` and return its name."""
    assert engine
    docker.make(commit, "image")
    return docker.IMAGE
