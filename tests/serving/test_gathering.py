"""Test that requests start in groups, once per share of their expected rounds."""

from __future__ import annotations

from autobatch.serving.gathering import SHARE, Gathering


def test_groups_come_as_often_as_the_rounds_of_requests_say() -> None:
    gathering, lived = Gathering(1), 48
    for _ in range(40):  # so that the mean is known
        gathering.begin(0)
        for _ in range(lived):
            gathering.count_round()
        gathering.end(0)
    gathering.begin(0)
    waited = 0
    while not gathering.is_open:
        gathering.count_round()
        waited += 1
    assert waited == lived * SHARE


def test_short_requests_wait_for_nothing() -> None:
    gathering = Gathering(2)
    for _ in range(20):
        gathering.begin(0)
        gathering.count_round()
        gathering.end(0)
        assert gathering.is_open
