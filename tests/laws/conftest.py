"""Fixtures that several laws share."""

from pathlib import Path

import pytest

from tests.laws import golden


@pytest.fixture(scope="session")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project in which the shipped default was prepared, trained and evaluated. Tests only read it."""
    return golden.train(tmp_path_factory.mktemp("default"), "digits")
