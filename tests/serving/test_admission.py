"""Test that requests start in groups, once per share of their expected rounds."""

from __future__ import annotations

from autobatch.serving.admission import SHARE, AdmissionWindow


def test_groups_come_as_often_as_the_rounds_of_requests_say() -> None:
    window, lived = AdmissionWindow(1), 48
    for _ in range(40):  # so that the mean is known
        window.begin(0)
        for _ in range(lived):
            window.count_round()
        window.end(0)
    window.begin(0)
    waited = 0
    while not window.is_open:
        window.count_round()
        waited += 1
    assert waited == lived * SHARE


def test_short_requests_wait_for_nothing() -> None:
    window = AdmissionWindow(2)
    for _ in range(20):
        window.begin(0)
        window.count_round()
        window.end(0)
        assert window.is_open
