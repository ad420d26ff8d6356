"""One nursery for all tests of tracking: what it imports takes longer than most of them."""

from collections.abc import Iterator

import pytest

from tests.faults.nursery import Nursery, nursery


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("nursery") / "log") as opened:
        yield opened
