"""One fork server and one MLflow server for all tests of tracking, because starting them takes longer than most tests."""

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import FaultServer
from tests.faults.servers import Server


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with FaultServer(tmp_path_factory.mktemp("fork-server") / "log") as running:
        yield running


@pytest.fixture(scope="session")
def server(fork_server: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    started = Server(tmp_path_factory.mktemp("server"), fork_server)
    started.start()
    return started
