"""The error of an unknown keyword names the nearest valid one, for every public function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import PolicyError
from autobatch.keywords import nearest
from describing import members_of
from helpers.runs.ways import each
from list_ops import public_ops
from reference import PAGES, names_in

OWN_WAY = {
    "api.Batched.learn_policy": "says it in a PolicyError, see below",
    "policies.learning.learn": "says it in a PolicyError, too",
    "policies.rules.rules.Weights.__init__": "a named tuple",
    "schedule.schedule.Schedule.__init__": "a named tuple",
    "params.sparse_rows.Rows.__init__": "made in every step",
    "params.sparse_rows.Rows.summed": "made in every step",
    "params.sparse_rows.Rows.zeros": "made in every step",
}


class Case(NamedTuple):
    """A function, and one of its keywords."""

    name: str
    function: Callable[..., Any]
    keyword: str


def options_of(function: Any) -> list[str]:
    """Return all arguments of a constructor, or the optional and keyword-only ones of a function."""
    found = inspect.signature(function).parameters.values()
    is_class = inspect.isclass(function)
    return [p.name for p in found if is_class or p.kind is p.KEYWORD_ONLY or p.default is not p.empty]


def cases() -> Iterator[Case]:
    """Yield each option of all functions in the reference, and of all ops."""
    called = {f"ab.{name}": op for name, op in public_ops().items()}
    for page in PAGES:
        for shown in names_in(page.read_text(encoding="utf-8")):
            called |= members_of(shown.path, shown.members)
    for name, function in called.items():
        if name.removeprefix("autobatch.") not in OWN_WAY and not inspect.isabstract(function):
            yield from (Case(name, function, option) for option in options_of(function))


@each("case", list(cases()))
def test_a_wrong_keyword_names_the_nearest_one(case: Case) -> None:
    needed = [p for p in inspect.signature(case.function).parameters.values() if p.default is p.empty]
    given = [0.0 for p in needed if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
    wrong = f"{case.keyword}_"
    told = rf"\(\) got an unexpected keyword argument '{wrong}'\. Did you mean '{case.keyword}'\?$"
    with pytest.raises(TypeError, match=told) as found:
        case.function(*given, **{wrong: None})
    assert found.value.__suppress_context__


@each(
    "function, given, wrong, meant",
    [
        (ab.batched, (np.tanh,), "polcy", "policy"),
        (ab.batched(np.tanh).value_and_grad, ([],), "redcue", "reduce"),
        (ab.serve, (np.tanh,), "max_runing", "max_running"),
        (ab.serve, (np.tanh,), "pln_cache", "plan_cache"),
        (ab.Linear, (2, 3, None), "bais", "bias"),
        (ab.policies.Depth, (), "compct", "compact"),
        (ab.optim.Group, ("weight",), "lr_facto", "lr_factor"),
        (ab.ops.define_op, ("made up",), "shap", "shape"),
        (abt.batched, (np.tanh,), "backnd", "backend"),
        (abt.check_batched, (np.tanh, []), "backnd", "backend"),
    ],
)
def test_what_is_said(function: Any, given: tuple[Any, ...], wrong: str, meant: str) -> None:
    told = f"{function.__name__}() got an unexpected keyword argument {wrong!r}. Did you mean {meant!r}?"
    with pytest.raises(TypeError, match=f"^{re.escape(told)}$"):
        function(*given, **{wrong: None})


def test_where_none_is_near_all_are_named() -> None:
    with pytest.raises(TypeError, match=r"^tanh\(\) got an unexpected keyword argument 'inplace'\. It takes x\.$"):
        ab.tanh(np.ones(2), inplace=True)
    assert nearest("device", ["policy", "seed"]) is None


def test_inside_of_a_cell() -> None:
    softmax = ab.cell(lambda x: ab.softmax(x, axs=0))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Did you mean 'axis'\?"):
        ab.batched(softmax, backend="reference")([np.ones(3)])


def test_an_option_of_learning_names_the_nearest_one() -> None:
    double = ab.batched(ab.cell(lambda x: 2.0 * x), backend="reference")
    with pytest.raises(PolicyError, match=r"unknown option 'maks'; did you mean 'mask'\?"):
        double.learn_policy([[np.ones(2)]], maks=True)
    with pytest.raises(PolicyError, match=r"unknown option 'qqq'; the options are bootstrap, compact, critical, "):
        double.learn_policy([[np.ones(2)]], qqq=True)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        ab.batched(lambda x: 1.0 * len(x), backend="reference").learn_policy([[3]], episodes=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'function'"):
        ab.batched()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dtype'"):
        ab.Parameter(2.0).astype()  # type: ignore[call-arg]


def test_signatures_show_what_a_function_takes() -> None:
    assert "wrong" not in inspect.signature(ab.Batched.value_and_grad).parameters
    assert list(inspect.signature(ab.Dropout).parameters) == ["rate"]
