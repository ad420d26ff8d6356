"""One nursery and one server for all tests of tracking: to begin them takes longer than most of these."""

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import Nursery, nursery
from tests.faults.servers import Server


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("nursery") / "log") as opened:
        yield opened


@pytest.fixture(scope="session")
def server(forking: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Server:
    started = Server(tmp_path_factory.mktemp("server"), forking)
    started.start()
    return started
