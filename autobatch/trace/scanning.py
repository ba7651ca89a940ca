"""Scanning of code: the names that a function reads besides its arguments, and the functions behind a callable."""

from __future__ import annotations

import dis
import operator
import sys
from functools import cache, cached_property, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from autobatch._native import BoundCell
from autobatch.trace.cell import Cell

LIBRARIES = {*sys.stdlib_module_names, "autobatch", "numpy", "torch"}
READS = {
    "LOAD_GLOBAL": "globals", "LOAD_NAME": "globals", "LOAD_ATTR": "attributes", "LOAD_METHOD": "attributes",
    "LOAD_SUPER_ATTR": "attributes", "IMPORT_FROM": "attributes", "IMPORT_NAME": "modules",
}  # fmt: skip
BEHIND: dict[type, str] = {
    FunctionType: "__wrapped__", MethodType: "__func__", staticmethod: "__func__", classmethod: "__func__",
    property: "fget", partial: "func", cached_property: "func", Cell: "function", BoundCell: "cell",
}  # fmt: skip
"""The attribute that holds the function behind an object of each class."""
OPERATORS = [name for name in dir(operator) if name[:2] == "__" and name not in dir(object)]
OPERATORS += ["__call__", "__len__", "__iter__", "__bool__", "__float__", "__int__"]
"""The names of methods that Python calls without reading an attribute."""


class Names(NamedTuple):
    """The names in a function's code.

    Attributes:
        globals: names of globals that it reads, with strings that it may look up in `globals()`.
        attributes: names of attributes of any object, with strings that it may pass to `getattr`.
        optional: names of attributes that it may look up although they are missing.
        modules: names of modules that it imports.
        inherited: names that it may read from `super()` or a class: those of attributes, and its strings.
        asks_type: whether it may call `type` with anything but `self`.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    optional: frozenset[str]
    modules: frozenset[str]
    inherited: frozenset[str]
    asks_type: bool


@cache
def names_in(code: CodeType) -> Names:
    """Find the names that code reads."""
    found: dict[str, set[str]] = {"globals": set(), "attributes": set(), "optional": set(), "modules": set()}
    instructions = [*dis.get_instructions(code)]
    for instruction in instructions:
        if (kind := READS.get(instruction.opname)) is not None:
            found[kind].add(instruction.argval)
    n_types = sum(READS.get(x.opname) == "globals" and x.argval == "type" for x in instructions)
    of_self = [
        one.argval == "type" and two.argval == "self" and three.opname in ("PRECALL", "CALL")
        for one, two, three in zip(instructions, instructions[1:], instructions[2:], strict=False)
    ]
    texts = {x for x in code.co_consts if isinstance(x, str) and x.isidentifier()}
    if found["globals"] & {"AttributeError", "Exception"}:
        found["optional"] |= found["attributes"]
    if found["globals"] & {"getattr", "hasattr", "vars", "attrgetter"}:
        found["attributes"] |= texts
        found["optional"] |= texts
    if found["globals"] & {"globals", "vars"}:
        found["globals"] |= texts
    asks_class = found["globals"] & {"super", "type"} or "__class__" in found["attributes"]
    found["inherited"] = found["attributes"] | texts if asks_class else set()
    return Names(**{kind: frozenset(names) for kind, names in found.items()}, asks_type=n_types > sum(of_self))


def functions_in(x: Any) -> list[FunctionType]:
    """List the Python functions that run when `x`, a wrapped or plain function, is called or read from an instance."""
    name = next((BEHIND[kind] for kind in type(x).__mro__ if kind in BEHIND), None)
    if name is None and type(x).__module__ == "functools":  # such as the wrapper that `cache` makes
        name = "__wrapped__"
    own = [x] if isinstance(x, FunctionType) else []
    return own if name is None else [*own, *functions_in(getattr(x, name, None))]


def own_bases(kind: type) -> list[type]:
    """List a class and its bases, except those of libraries."""
    return [base for base in kind.__mro__ if not is_library(base.__module__)]


def methods_of(kind: type) -> list[FunctionType]:
    """List the functions among a class's members; Python calls those of operators without reading an attribute."""
    members = [member for base in own_bases(kind) for member in vars(base).values()]
    return [function for member in members for function in functions_in(member)]


def descriptors_of(kind: type) -> set[type]:
    """Find the classes of the descriptors among the members of a class, except those of libraries."""
    kinds = {type(member) for base in own_bases(kind) for member in vars(base).values()}
    kinds = {found for found in kinds if hasattr(found, "__get__")}
    return {found for found in kinds if not is_library(found.__module__)}


def operators_of(kind: type) -> list[tuple[type, str]]:
    """Find the methods of a class that operators and calls run: for each, the class that defines it and its name."""
    return [
        (base, name) for base in own_bases(kind) for name in OPERATORS if isinstance(vars(base).get(name), FunctionType)
    ]


def is_library(module: str | None) -> bool:
    """Return whether a module's functions read only state that user programs do not change."""
    return module is None or (module.partition(".")[0] in LIBRARIES and not module.startswith("autobatch.models"))
