"""Test that JSON of any depth is parsed and written like Python's `json` does where it can."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from autobatch.system.nested_json import dump_json, parse_json, show_json

SCALARS = ["a", "", '"\\\n\u00e9\u2028\U0001f600', "{[,:]}", 0, -7, 10**30, 1.5, -2e-300, True, False, None]


def draw_value(rng: np.random.Generator, depth: int) -> object:
    """Draw a value with objects and lists at most `depth` deep."""
    kind = rng.integers(3) if depth else 0
    if kind == 0:
        return SCALARS[rng.integers(len(SCALARS))]
    inner = [draw_value(rng, depth - 1) for _ in range(rng.integers(4))]
    return inner if kind == 1 else {str(SCALARS[rng.integers(4)]): value for value in inner}


@pytest.mark.parametrize("seed", range(30))
def test_it_parses_what_json_writes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = draw_value(rng, depth=4)
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False), f"\t {json.dumps(value)}\r\n"):
        assert parse_json(text) == json.loads(text) == value
    assert dump_json(value) == json.dumps(value)


@pytest.mark.parametrize("seed", range(30))
def test_it_refuses_what_json_refuses(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = json.dumps(draw_value(rng, depth=4))
    for _ in range(20):
        place, mark = rng.integers(len(text) + 1), '{}[],:"0a '[rng.integers(10)]
        changed = text[:place] + mark + text[place + rng.integers(2) :]
        try:
            expected = json.loads(changed)
        except json.JSONDecodeError:
            with pytest.raises(json.JSONDecodeError):
                parse_json(changed)
        else:
            assert parse_json(changed) == expected


@pytest.mark.parametrize("text", ["", " ", "[", "{", '{"a"', '{"a":', "[1,", "[1,]", '{"a":1,}', "1 2", "[]]", "{1:2}"])
def test_a_text_cut_short_or_too_long_is_refused_at_its_place(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        parse_json(text)
    assert 0 <= caught.value.pos <= len(text)


def test_depth_is_bounded_by_memory_alone() -> None:
    n = 20 * sys.getrecursionlimit()
    text = '{"a": [' * n + "7" + "]}" * n
    value, depth = parse_json(text), 0
    assert dump_json(value) == text
    assert show_json(value) == text[:40] + "…"
    while value != 7:
        value, depth = value["a"][0], depth + 1
    assert depth == n


@pytest.mark.parametrize("text", ["NaN", "[1, -Infinity]", '{"a": {"b": Infinity}}'])
def test_constants_are_parsed_as_asked(text: str) -> None:
    assert repr(parse_json(text)) == repr(json.loads(text))
    assert parse_json(text, str.lower) == json.loads(text, parse_constant=str.lower)


def test_the_last_of_equal_keys_is_kept() -> None:
    assert parse_json('{"a": 1, "b": 2, "a": 3}') == {"a": 3, "b": 2}
