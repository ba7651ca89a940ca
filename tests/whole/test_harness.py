"""The shared harness of experiments: settings on the command line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autobatch.errors import AutobatchError
from helpers.runs.ways import each

PATH = Path(__file__).parents[2] / "experiments" / "harness.py"


@pytest.fixture
def harness() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("harness_under_test", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module here
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


@each(
    "text, default, expected",
    [
        ("64", (64, 256), (64,)),
        ("64,", (64, 256), (64,)),
        ("64,128", (64, 256), (64, 128)),
        ("[64]", (64,), (64,)),
        ("depth", ("agenda",), ("depth",)),
        ("depth,agenda", ("agenda",), ("depth", "agenda")),
        ("3", 1, 3),
        ("3", 0.5, 3),
        ("64", "trees", "64"),
        ("cpu,reference", "cpu", "cpu,reference"),
        ("'a b'", "x", "a b"),
        ("7", None, 7),
        ("False", True, False),
    ],
)
def test_settings_are_read_as_what_their_defaults_are(
    harness: ModuleType, text: str, default: Any, expected: Any
) -> None:
    found = harness.read_setting("name", text, default)
    assert found == expected
    assert type(found) is type(expected)


@each("text, default", [("64,", 64), ("wide", 64), ("wide", (64,)), ("64,wide", (64, 256)), ("1.5", 2), ("1", True)])
def test_what_a_setting_cannot_be_ends_in_a_sentence(harness: ModuleType, text: str, default: Any) -> None:
    with pytest.raises(AutobatchError) as ended:
        harness.read_setting("dims", text, default)
    example = "64,256" if default == (64, 256) else "64" if default == (64,) else str(default)
    assert str(ended.value) == f"dims must have the form dims={example}, got {text}."


@each("words", [["foo"], ["foo=3"], ["--foo", "3"], ["seed=1", "foo="]])
def test_settings_that_there_are_not_are_refused_by_name(harness: ModuleType, words: list[str]) -> None:
    with pytest.raises(AutobatchError) as ended:
        harness.change(harness.Settings(), harness.read_words(words))
    assert str(ended.value) == "settings must be some of seed, threads or out, as name=value, got 'foo'."
