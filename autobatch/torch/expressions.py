"""Repeated evaluation of simple bytecode expressions, without side effects: names, attributes, items, tuples, unions.

Attributes are looked up without running properties or `__getattr__`. Only Python's own containers are indexed.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType, FrameType, MappingProxyType
from typing import Any, NamedTuple

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
