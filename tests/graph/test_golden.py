"""Test that the graphs of all models and of random programs are unchanged at each stage; see `helpers.runs.golden`."""

from __future__ import annotations

import pytest

from helpers.runs.golden import GOLDEN, differences, read

NAMES = list(GOLDEN)
QUICK = NAMES[::12]
PER_CASE = 50


def test_the_file_has_all() -> None:
    assert list(read()) == NAMES


def test_some_graphs_are_what_they_were() -> None:
    assert differences(QUICK) == {}


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(NAMES), PER_CASE))
def test_graphs_are_what_they_were(start: int) -> None:
    assert differences(NAMES[start : start + PER_CASE]) == {}
