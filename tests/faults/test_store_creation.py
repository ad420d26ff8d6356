"""Mirrors killed while they create the SQLite store, in fewer rounds than `python -m tests.faults.store_creation 50`."""

import pytest

from tests.forking import campaign


@pytest.mark.slow
def test_a_kill_while_the_store_is_created_loses_no_store_and_leaves_no_draft() -> None:
    seen = campaign("tests.faults.store_creation", "5")
    assert seen["in the draft"] > 0, "no kill came while the store was created"
    assert (seen["kills"], seen["lost"], seen["left over"]) == (5, 0, 0)
