"""A train stage that is killed by SIGKILL and repeated writes equal bytes in every file. A campaign that proves nothing fails."""

import pytest

from tests.forking import campaign

LONG_FORMS = [pytest.param(name, count, marks=pytest.mark.slow) for name, count in (("digits", 12), ("code", 8))]


@pytest.mark.parametrize(("setting", "kills"), [("digits", 4), *LONG_FORMS])
def test_a_run_killed_at_any_moment_ends_in_the_same_bytes(setting: str, kills: int) -> None:
    outcome = campaign("tests.faults.killing", str(kills), setting)
    assert outcome["other_digests"] == 0
    assert outcome["kills"] == kills
    assert outcome["resumed"] >= kills // 4, f"too few kills came after the first checkpoint: {outcome}"
