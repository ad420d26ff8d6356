"""What several laws look at, made once."""

from pathlib import Path

import pytest

from tests.laws import golden


@pytest.fixture(scope="session")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project in which the shipped default was prepared, trained and evaluated; to be read only."""
    return golden.train_the_default(tmp_path_factory.mktemp("default"))
