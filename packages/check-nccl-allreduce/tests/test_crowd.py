"""A gang's size changes neither its verdict nor what it costs to lead it. Thousands of members:
`nox -s bench -- gang-scale`.
"""

from __future__ import annotations

import pytest
from allreduce_testing.gangs import crowd
from check_nccl_allreduce.control.messages import HeartbeatPace


@pytest.mark.parametrize(
    ("members", "interval"), [(2, 1.0), (300, 1.0), (600, 2.0), (4096, 4096 / 300)]
)
def test_heartbeats_grow_apart_with_the_gang_so_that_their_number_stays(
    members: int, interval: float
) -> None:
    pace = HeartbeatPace.of(members)
    assert (pace.interval, pace.lost_after) == (interval, 5 * interval)


def test_of_250_members_on_one_core_none_is_lost_and_the_slow_one_is_named(timed: bool) -> None:
    """Within 40 s nobody is blamed for being slow."""
    figures = crowd.play(250, core=None, sick=83, allowed=40.0)
    leader, members = figures["leader"], figures["crowd"]
    assert members["ended"] == {"LOW_BANDWIDTH": 250}
    assert (leader["lost"], members["blamed"]) == (0, [])
    assert 83 in members["named"]
    if timed:  # beside other work some of a core's turns come so late that they are slow indeed
        assert members["named"] == [83]
    assert leader["memory_mb"] < 150
