"""Test the profile function of traces: it reports each function once and cleans up."""

from __future__ import annotations

import gc
import random
import sys
import time
import weakref
from typing import Any

import pytest

from autobatch._native import CallListener
from helpers.runs.ways import each


class Heard:
    """Collects a listener's reports; `harmless` is the answer for functions written in C."""

    def __init__(self, harmless: object = True) -> None:
        self.functions, self.builtins, self.harmless = list[str](), list[str](), harmless

    def function(self, code: Any, namespace: dict[str, Any]) -> None:
        assert namespace is globals()
        self.functions.append(code.co_name)

    def builtin(self, function: Any, namespace: dict[str, Any]) -> Any:
        assert namespace is globals()
        self.builtins.append(function.__name__)
        return self.harmless


def inner() -> int:
    return 1


def work(n: int) -> None:
    for k in range(n):
        inner()
        time.time()
        len([k])
        [k].append(k)
        {k: k}.get(k)
        "a".upper()
        {k}.add(k)


def listen(listener: Any, call: Any, *args: Any) -> Any:
    """Call a function with the listener enabled."""
    listener.enable()
    try:
        return call(*args)
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("n", [1, 2, 50])
def test_each_function_is_reported_once(n: int) -> None:
    heard = Heard()
    listen(CallListener(heard.function, heard.builtin), work, n)
    assert heard.functions == ["work", "inner"]
    assert heard.builtins == ["time", "len", "setprofile"]


def test_what_may_do_harm_is_reported_each_time() -> None:
    heard, own = Heard(harmless=False), random.Random(0)
    listen(CallListener(heard.function, heard.builtin), lambda: [own.random() + time.time() for _ in range(3)])
    assert heard.builtins == [*["random", "time"] * 3, "setprofile"]


def test_a_method_of_an_object_is_reported_each_time() -> None:
    heard, own = Heard(), random.Random(0)
    listen(CallListener(heard.function, heard.builtin), lambda: [own.random() for _ in range(3)])
    assert heard.builtins == [*["random"] * 3, "setprofile"]


@each("report", [lambda *args: 1 // 0, "not callable", None])
def test_a_report_that_fails(report: Any) -> None:
    if not callable(report):
        with pytest.raises(TypeError, match="report_function must be callable, got"):
            CallListener(report, lambda *args: True)
        with pytest.raises(TypeError, match="report_builtin must be callable, got"):
            CallListener(lambda *args: None, report)
        return
    with pytest.raises(ZeroDivisionError):
        listen(CallListener(report, lambda *args: True), inner)
    assert sys.getprofile() is None
    with pytest.raises(ZeroDivisionError):
        listen(CallListener(lambda *args: None, report), work, 1)


def test_a_listener_is_freed_with_what_it_holds() -> None:
    heard = Heard()
    listener = CallListener(heard.function, heard.builtin)
    space: dict[str, Any] = {"__name__": __name__}
    exec("def made(): return 1", space)
    code = weakref.ref(space["made"].__code__)
    heard.function = lambda *args: None  # type: ignore[method-assign]
    other = CallListener(heard.function, heard.builtin)
    listen(other, space["made"])
    space.clear()
    gc.collect()
    assert code() is not None
    gone = weakref.ref(heard)
    del listener, other, heard
    gc.collect()
    assert code() is None
    assert gone() is None


def test_a_report_may_replace_the_profile_function() -> None:
    def replace(*args: object) -> None:
        sys.setprofile(None)
        gc.collect()

    CallListener(replace, lambda *args: True).enable()
    assert inner() == 1
    assert sys.getprofile() is None
