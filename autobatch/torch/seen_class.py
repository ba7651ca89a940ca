"""The class that a recorded value reports: a tensor's to Python's `isinstance`, its own to torch's C++ code.

Python sees a recorded value as a `torch.Tensor`: `isinstance` and `match` patterns read `value.__class__`. Torch's C++
code reads `__class__` in the same way, trusts it and reads the tensor's memory, so `torch.arange(value)` would crash
the process. Only the calling Python instruction distinguishes the two. The tensor class is therefore reported to
`isinstance(...)`, `match` and `x.__class__`, and to nothing else.

A call has the source position at which the function's expression begins, so the last instruction with this position is
the one that loads the function. The function and the class argument of `isinstance` are evaluated again from the
bytecode, because `isinstance(value, torch.FloatTensor)` runs C++ code of torch too. These are simple expressions
without side effects: names, attributes, items, tuples, unions. Attributes are looked up without running properties or
`__getattr__`. Only Python's own containers are indexed.
"""

from __future__ import annotations

import abc
import builtins
import dis
import sys
import typing
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FrameType, MappingProxyType, MethodType, UnionType
from typing import Any, NamedTuple

import torch

from autobatch.errors import GraphError
from autobatch.trace.handles import Value

UNKNOWN: Any = object()
"""The result of an expression that cannot be evaluated again."""
BETWEEN = ("PRECALL", "PUSH_NULL", "KW_NAMES", "EXTENDED_ARG", "CACHE")
"""Instructions that belong to a call and occur between its parts."""
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
PAIRS = ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
"""Instructions that load two variables; the second one is of Python 3.14."""


class Expression(NamedTuple):
    """An expression.

    Attributes:
        kind: the name of its last instruction.
        value: the name or constant that this instruction loads.
        parts: the expressions that it combines.
        first: the index of its first instruction.
    """

    kind: str
    value: Any
    parts: tuple[Expression, ...]
    first: int

    def evaluate(self, frame: FrameType) -> Any:
        """Return the value of the expression in a frame, or UNKNOWN."""
        if self.kind in CONSTANTS:
            return self.value
        if self.kind in ATTRIBUTES:
            return _attribute(self.parts[0].evaluate(frame), self.value)
        if not self.parts and self.kind.startswith("LOAD_"):
            return _named(frame, self.kind, self.value)
        parts = [part.evaluate(frame) for part in self.parts]
        if any(part is UNKNOWN for part in parts):
            return UNKNOWN
        if self.kind in ("BUILD_TUPLE", "BINARY_OP"):  # to isinstance, a union of classes equals their tuple
            return tuple(parts)
        return _item(*parts)


def instructions_until(code: CodeType, at: int) -> list[dis.Instruction]:
    """Return the instructions of a code object up to an offset; one that loads two variables is split in two."""
    found: list[dis.Instruction] = []
    for x in dis.get_instructions(code):
        if x.offset > at:
            break
        pair = x.argval if x.opname in PAIRS else ()
        found += [x._replace(opname="LOAD_FAST", argval=name) for name in pair] or [x]
    return found


def expression_before(code: Sequence[dis.Instruction], end: int) -> Expression | None:
    """Return the expression that ends just before an index; None if it is not simple."""
    at = end - 1
    while at >= 0 and code[at].opname in BETWEEN:
        at -= 1
    if at < 0 or any(x.is_jump_target for x in code[at + 1 : end + 1]):  # as after `a if condition else b`
        return None
    kind, value = code[at].opname, code[at].argval
    if kind in ATTRIBUTES:
        count = 1
    elif kind == "BINARY_SUBSCR" or (kind == "BINARY_OP" and code[at].argrepr in ("|", "[]")):
        kind, count = ("BINARY_SUBSCR" if code[at].argrepr == "[]" else kind), 2  # "[]" from Python 3.14 on
    elif kind == "BUILD_TUPLE":
        count = value
    elif kind in CONSTANTS or (kind.startswith("LOAD_") and isinstance(value, str)):
        count = 0
    else:
        return None
    first, parts = at, []
    for _ in range(count):
        part = expression_before(code, first)
        if part is None:
            return None
        parts.append(part)
        first = part.first
    return Expression(kind, value, tuple(reversed(parts)), first)


def _named(frame: FrameType, load: str, name: str) -> Any:
    if load != "LOAD_GLOBAL" and name in (found := frame.f_locals):
        return found[name]
    if name in frame.f_globals:
        return frame.f_globals[name]
    return frame.f_builtins.get(name, UNKNOWN)


def _attribute(x: Any, name: str) -> Any:
    if x is UNKNOWN:
        return UNKNOWN
    kind = type(x)
    if not issubclass(kind, type):
        try:
            own = object.__getattribute__(x, "__dict__")
        except AttributeError:
            own = {}
        if name in own:
            return own[name]
    for base in (x if issubclass(kind, type) else kind).__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return UNKNOWN


def _item(container: Any, key: Any) -> Any:
    if type(container) not in (dict, list, tuple, MappingProxyType) or type(key) not in (int, str):
        return UNKNOWN
    try:
        return container[key]
    except (LookupError, TypeError):
        return UNKNOWN


ASKING = (isinstance, getattr, dir, vars(abc)["_abc_instancecheck"])
"""Builtins that read the class on Python's behalf."""
ITERATING = ("FOR_ITER", "LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX", "CALL_INTRINSIC_1")
"""Instructions that run an iterator, which may be a `map` of anything."""
WRAPPERS = {partial: "func", staticmethod: "__func__", MethodType: "__func__"}
"""Objects that call the function in this attribute."""
LEGACY = type(torch.FloatTensor)
"""The class of `torch.FloatTensor` and the like, whose instance check reads the memory of a tensor."""


class Place(NamedTuple):
    """An instruction.

    Attributes:
        code: its code object; kept alive, because its `id` identifies it.
        asks: whether it reads the class regardless of the callee; None if unknown.
        is_call: whether it is a call, whose callee decides.
        called: the called function, if it is a simple expression.
        last: the last argument of the call, or the class of a pattern, if it is a simple expression.
        n_args: the number of arguments.
    """

    code: CodeType
    asks: bool | None
    is_call: bool = False
    called: Expression | None = None
    last: Expression | None = None
    n_args: int = 0


PLACES: dict[tuple[int, int], Place] = {}


def asks_for_class(frame: FrameType) -> bool:
    """Return whether the current instruction of a frame, which reads `__class__`, reads it for Python.

    Raises:
        GraphError: this cannot be decided, or torch's C++ code would read the class next.
    """
    key = id(frame.f_code), frame.f_lasti
    place = PLACES.get(key)
    if place is None:
        place = PLACES[key] = _place_of(frame.f_code, frame.f_lasti)
    if place.is_call:
        return _is_asked_by_call(frame, place)
    if place.asks is None:
        _refuse_builtin()
    if place.last is not None:
        _check_classes(place.last.evaluate(frame))
    return place.asks


def _is_asked_by_call(frame: FrameType, place: Place) -> bool:
    called = UNKNOWN if place.called is None else place.called.evaluate(frame)
    while type(called) in WRAPPERS:
        called = getattr(called, WRAPPERS[type(called)])
    if called is isinstance:
        _check_classes(UNKNOWN if place.last is None else place.last.evaluate(frame))
        return True
    if called is UNKNOWN:
        if place.last is not None and 1 <= place.n_args <= 2 and _is_class(place.last.evaluate(frame)):
            raise GraphError(
                "a call with a recorded value and a class cannot be distinguished from a call of torch; call "
                "isinstance(value, ...) by that name."
            )
        return False
    if any(called is asking for asking in ASKING):
        return True
    name = getattr(called, "__name__", None)
    if isinstance(name, str) and getattr(builtins, name, None) is called:
        _refuse_builtin()
    return False


def _refuse_builtin() -> typing.Never:
    raise GraphError(
        "a builtin such as map checks the class of a recorded value, for isinstance or for torch itself; call "
        "isinstance(value, torch.Tensor) in a loop or a comprehension."
    )


def _check_classes(classes: Any) -> None:
    """Raise a GraphError for classes that are unknown, or whose instance check is C++ code of torch."""
    if classes is UNKNOWN:
        raise GraphError(
            "the class argument of isinstance(value, ...) of a recorded value is computed in the call, so it cannot be "
            "checked; assign it to a variable first, as in `kind = ...; isinstance(value, kind)`."
        )
    if type(classes) is LEGACY:
        raise GraphError(
            f"isinstance(value, {classes.__module__}.{classes.__name__}) of a recorded value reads the memory of a "
            f"tensor; check isinstance(value, torch.Tensor) and value.dtype."
        )
    for part in classes.__args__ if isinstance(classes, UnionType) else classes if type(classes) is tuple else ():
        _check_classes(part)


def _is_class(x: Any) -> bool:
    if type(x) is tuple:
        return bool(x) and all(map(_is_class, x))
    return issubclass(type(x), (type, UnionType, LEGACY)) or typing.get_origin(x) is typing.Union


def _place_of(code: CodeType, at: int) -> Place:
    code_until = instructions_until(code, at)
    *before, now = code_until
    if now.opname == "MATCH_CLASS":  # operands: a class, and a constant with the names of the attributes
        last = expression_before(code_until, len(before) - 1)
        if last is None:
            _check_classes(UNKNOWN)
        return Place(code, True, last=last)
    if not now.opname.startswith(("CALL", "PRECALL")):
        asks = now.opname == "LOAD_ATTR" and now.argval == "__class__"
        return Place(code, None if now.opname in ITERATING else asks)
    begin = _begin(now)
    if begin is None and isinstance.__name__ in code.co_names:
        raise GraphError(
            f"{code.co_qualname} calls isinstance, but its code lacks the positions that distinguish isinstance from "
            f"calls of torch; run Python without -X no_debug_ranges."
        )
    loads = [k for k, x in enumerate(before) if _begin(x) == begin and x.opname not in BETWEEN]
    called = expression_before(code_until, loads[-1] + 1) if loads else None
    if loads and called is None and before[loads[-1]].argval == isinstance.__name__:
        called = Expression("LOAD_CONST", isinstance, (), loads[-1])  # an attribute of the result of a call
    # Python 3.11 and 3.12 name keyword arguments just before the call, later versions in CALL_KW.
    is_plain = now.opname not in ("CALL_FUNCTION_EX", "CALL_KW") and not any(
        x.opname == "KW_NAMES" for x in before[-3:]
    )
    last = expression_before(code_until, len(before)) if is_plain else None
    return Place(code, False, True, called, last, now.arg or 0)


def _begin(instruction: dis.Instruction) -> tuple[int, int] | None:
    """Return the source line and column where an instruction begins; None if unknown."""
    at = instruction.positions
    return None if at is None or at.lineno is None or at.col_offset is None else (at.lineno, at.col_offset)


if sys.version_info < (3, 14):  # from 3.14 on, typing.Union is types.UnionType
    OF_UNION: Callable[..., bool] = typing._UnionGenericAlias.__instancecheck__  # type: ignore[attr-defined]

    def _is_of_union(union: Any, x: Any) -> bool:
        """Return whether `x` is an instance of a `typing.Union`; Python would read `type(x)`, not `x.__class__`."""
        if not issubclass(type(x), Value):
            return OF_UNION(union, x)
        return any(isinstance(x, kind) for kind in union.__args__)

    typing._UnionGenericAlias.__instancecheck__ = _is_of_union  # type: ignore[attr-defined]
