"""Track the reads of a body while it is traced: make a guard for each, and raise an error for random numbers.

During the trace, and in its thread, `__getattribute__` of all modules, and of the classes of all objects that the body
reads, reports the attributes that are read. Function calls are reported as to a profiler. The globals, closure
variables and default arguments that a function reads are found by inspecting it. Lists and dicts count as read
completely.

A number that has changed before (see `autobatch.trace.guards`) is replaced by a value of the program.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import partial
from io import IOBase
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import ProxyTypes, ref

import numpy as np

from autobatch._native import BoundCell, Function
from autobatch.errors import GraphError
from autobatch.ir.arguments import HEAP_TYPE
from autobatch.ir.builder import Builder
from autobatch.ops.elementwise import stop_gradient
from autobatch.ops.operators import Operators, Symbol
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.system.freeing import without_collection
from autobatch.trace.cell import Cell
from autobatch.trace.guards import MISSING, Guard, Live, Lives, LiveValue, are, named_parts
from autobatch.trace.hooks import IMMUTABLE, REPLACED, hooked, listening
from autobatch.trace.scanning import (
    descriptors_of,
    functions_in,
    is_library,
    methods_of,
    names_in,
    operators_of,
    own_bases,
)

KNOWN = ("autobatch", "numpy", "torch")  # libraries whose objects users do not change, except for LAYERS and TENSORS
LAYERS = ("torch.nn.modules", "torch.nn.utils", "torch.ao.nn", "torch.fx")
TENSORS = ("torch", "torch.nn.parameter")
CONTAINERS: tuple[type, ...] = (
    list, tuple, dict, set, frozenset, deque, MappingProxyType, type({}.keys()), type({}.values()), type({}.items())
)  # fmt: skip
WRITING = ("append", "appendleft", "add", "extend", "insert", "write")  # methods in C that only write
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
          "process_time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}  # fmt: skip
MODES = {"is_grad_enabled", "is_inference_mode_enabled"}
"""Functions of torch whose result is fixed while a body is traced, regardless of the mode of the call."""

DRAWS = "draws random numbers"
ENVIRONMENT = {f.__code__ for f in vars(type(os.environ)).values() if isinstance(f, FunctionType)}
"""The code of the methods of `os.environ`."""
HARMLESS = {"array", *(name for name in vars(Parameter) if name[:2] != "__")} - {"data", "dtype"}
"""Attributes of a parameter that do not affect the program of a body."""


class Draws:
    """The random numbers, clocks and iterators that a body has read since this object was made.

    NumPy's generators are compared by state, so a generator that the body makes from a seed may draw. Other sources are
    detected by calls of their functions.
    """

    def __init__(self) -> None:
        from numpy.random.mtrand import _rand as of_numpy

        self._refused: tuple[str, str] | None = None
        self._states = [(of_numpy, _state_of(of_numpy), "np.random")]

    def add(self, generator: Any) -> None:
        """Watch a generator that the body may draw from."""
        self._states.append((generator, _state_of(generator), f"a {type(generator).__name__}"))

    def refuse(self, what: str, how: str) -> None:
        """Note that the body does something that would happen only once, in the trace, instead of for every node."""
        self._refused = what, how

    def hear(self, function: Any, namespace: dict[str, Any]) -> bool:
        """Note a call of a function written in C, by a function with these globals; return whether it is harmless."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__qualname__", "")
        if (known := sys.modules.get("random")) is not None and isinstance(owner, known.Random):
            self.refuse(DRAWS, f"random.{name}")
        elif name == "urandom":
            self.refuse(DRAWS, f"{name}()")
        # Those of `datetime` are class methods.
        elif name in CLOCKS and (owner is time or isinstance(owner, type)):
            if not is_library(namespace.get("__name__")):  # a logger's clock does no harm
                self.refuse("reads the clock", name)
        elif name in MODES and getattr(owner, "__name__", "") == "torch._C":
            if not is_library(namespace.get("__name__")):
                self.refuse("reads the grad mode", f"torch.{name}")
        else:
            return True
        return False

    def check(self) -> None:
        """Raise a GraphError if random numbers, a clock or an iterator were read."""
        drawn = (text for generator, state, text in self._states if _state_of(generator) != state)
        found = next(((DRAWS, text) for text in drawn), self._refused)
        if found is not None:
            raise GraphError(
                f"the body {found[0]} ({found[1]}), which a cell must not do, because its body runs only once, when "
                f"traced, not for every node; pass the result as an argument, or use ab.dropout for random "
                f"masks."
            )


class ReadTracker:
    """The reads of one trace.

    Args:
        builder: the builder of the program.
        lives: the numbers that have changed before.
        by_value: the places whose numbers stay constants although they change.

    Attributes:
        guards: one guard for each place that was read.
        offered: the places of the live numbers in this trace, by their `id`s.
        given: for each attribute read, by `id` of its owner and name: the owner, the value, and the object that the
            body received.
        called: the called functions, each with its globals.
        busy: whether this object itself is reading; its own reads are not reported.
    """

    def __init__(self, builder: Builder, lives: Lives, by_value: set[Hashable]) -> None:
        self.builder, self.guards, self.offered = builder, dict[Hashable, Guard](), dict[int, Hashable]()
        self.busy = False
        self._lives, self._by_value = lives, by_value
        self._containers: dict[int, tuple[Guard, Any]] = {}
        self.given: dict[tuple[int, str], tuple[Any, Any, Any]] = {}
        self._functions: dict[CodeType, set[FunctionType]] = {}
        self.called: dict[CodeType, dict[str, Any]] = {}
        self._attribute_names = set[str]()
        self._optional_names = set[str]()
        self._inherited_names = set[str]()
        self._namespaces: dict[int, Any] = {}
        self._kinds = set[type]()
        self._tensors: dict[int, tuple[Any, str]] = {}
        self._asks_for_attributes = False
        self._asks_type = False
        self._draws = Draws()
        self._hooked = set[type]()
        self._made: dict[int, Any] = {}
        self._hooks = ExitStack()

    @contextmanager
    def tracking(self, roots: Iterable[tuple[str, Any]]) -> Iterator[None]:
        """Record all reads within the context, beginning with the objects that the body receives.

        Garbage collection is disabled meanwhile: its callbacks may read a clock, which would count as the body's.

        Args:
            roots: the objects that the body receives, each with a description before it.

        Raises:
            GraphError: random numbers were drawn, the time was read, or an iterator was advanced.
        """
        # Left in reverse order: reporting ends before the hooks are removed, those set in the block included.
        with without_collection(), self._hooks, listening(self):
            with self._untracked():
                self._hook(Module)
                self._hook(Parameter, HARMLESS)
                for text, root in roots:
                    self._follow(root, text)
            yield
        self._draws.check()

    # Reports of hooks.

    def made(self, x: Any) -> None:
        """Handle the report of a layer that the body makes, and fills before it reads it."""
        self._made[id(x)] = x

    def read(self, owner: Any, name: str, value: Any) -> Any:
        """Handle the report of an attribute read; return the value, or its replacement."""
        if id(owner) in self._made:
            return value
        if isinstance(owner, Parameter):
            if name == "data":
                return stop_gradient(owner)
            if type(owner) is not Parameter and is_library(type(owner).__module__):  # it stands for another object
                return value
        given = self._read(owner, name, value)
        self.given[id(owner), name] = owner, value, given  # keeps the owner alive, so that its id stays unique
        return given

    def _read(self, owner: Any, name: str, value: Any) -> Any:
        with self._untracked():
            if isinstance(value, Symbol) or name in REPLACED:
                return value
            own, text = getattr(owner, "__dict__", {}), f"{name} of {type(owner).__name__}"
            if name in own:
                if own[name] is value:
                    return self._note(own, own.get, name, text)
                # A data descriptor, or the class's own `__getattribute__`, may compute with the entry.
                self._constant(own, own.get, name, text)
            if isinstance(owner, Parameter) and name == "dtype":  # a property of the array, which is not tracked
                return self._note(owner, partial(getattr, owner), name, text)
            for base in type(owner).__mro__:
                if name in vars(base):
                    return self._class_attribute(owner, own, base, name, text, value)
            return self._follow(value, text, replaces=True)

    def read_own(self, owner: Any, own: dict[str, Any], names: Iterable[str], reader: str | None) -> None:
        """Handle the report that code of the module `reader` reads `__dict__`, from which it may take these names."""
        if id(owner) in self._made:
            return
        with self._untracked():
            for name in names:
                if not _is_set_by_recording(own, name):
                    self._constant(own, own.get, name, f"{name} of {type(owner).__name__}")
            if not is_library(reader):  # a user's code may look up missing names
                self._constant(own, partial(_names_in, own), "", f"the attributes of {type(owner).__name__}")

    def lacks(self, owner: Any, name: str, looked_up: tuple[str, ...] | None) -> None:
        """Handle the report that neither an object nor its class has an attribute.

        Args:
            looked_up: the dicts of the object in which its class looks next; None if it does something else.
        """
        if id(owner) in self._made:
            return
        with self._untracked():
            own, text = getattr(owner, "__dict__", {}), f"{name} of {type(owner).__name__}"
            if looked_up is None:
                self._note(own, own.get, name, text)
            elif not any(name in own.get(space, ()) for space in looked_up):
                self._note(owner, partial(getattr, owner), name, text)

    def hear(self, code: CodeType, namespace: dict[str, Any]) -> None:
        """Handle the report of a call of a function with these globals; only its first call matters."""
        if code not in self.called:
            self.called[code] = namespace
            with self._untracked():
                if code in ENVIRONMENT:
                    self._contents(vars(os.environ)["_data"], "os.environ", replaces=False)
                if not is_library(namespace.get("__name__")):
                    self._note_function(code, namespace)

    def hear_builtin(self, function: Any, namespace: dict[str, Any]) -> bool:
        """Handle the report of a call of a function written in C; return whether it is harmless."""
        owner = getattr(function, "__self__", None)
        if type(owner) is ContextVar:
            with self._untracked():
                self._constant(owner, partial(_in_context, owner), "", f"the context variable {owner.name}")
        return self._draws.hear(function, namespace)

    @contextmanager
    def _untracked(self) -> Iterator[None]:
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _hook(self, kind: type, silent: Collection[str] = ()) -> bool:
        """Report reads of attributes of a class's instances from now on; False if that is impossible."""
        if kind not in self._hooked and kind.__flags__ & (HEAP_TYPE | IMMUTABLE) == HEAP_TYPE:
            self._hooked.add(kind)
            self._hooks.enter_context(hooked(kind, silent, announces=kind.__module__.startswith(LAYERS)))
        return kind in self._hooked

    # Reads.

    def _note(self, holder: object, get: Callable[..., Any], name: Any, text: str, replaces: bool = True) -> Any:
        """Record a read; return the value, or its replacement."""
        value = get(name, MISSING)
        live = self._live(holder, name, value)
        if (id(holder), name) not in self.guards:
            self.guards[id(holder), name] = Guard(holder, text, {} if live is None else {name: live}, get, name)
        if is_iterator(value):
            self._draws.refuse("takes elements of an iterator", text)
        return LiveValue.of(self.builder, live) if live is not None else self._follow(value, text, replaces)

    def _constant(self, holder: object, get: Callable[..., Any], name: str, text: str) -> None:
        """Record a read of a value that stays a constant, because it cannot be replaced."""
        place = id(holder), name
        self._by_value.add(place)
        if place in self.guards:  # the body may have got a live number there before, and now gets the number itself
            self.builder.needed.update(map(id, self.guards[place].lives.values()))
        self._note(holder, get, name, text, replaces=False)

    def _class_attribute(self, owner: Any, own: Any, base: type, name: str, text: str, value: Any) -> Any:
        member, get = vars(base)[name], partial(getattr, owner)
        if not hasattr(type(member), "__get__") or isinstance(member, MemberDescriptorType):
            return self._note(owner, get, name, text)
        for kind in type(owner).__mro__:  # classes before the base may get the attribute later
            self._note(kind, vars(kind).get, name, f"{name} of class {kind.__name__}")
            if kind is base:
                break
        text = f"the class of {type(owner).__name__}"
        self.guards.setdefault((id(owner), "__class__"), Guard(owner, text, {}, get, "__class__"))
        if not isinstance(member, Cell):  # cells are replaced on the instance while programs are recorded
            self._note(own, own.get, name, text)
        return self._follow(value, text, replaces=True)

    def _live(self, holder: object, name: Any, value: Any) -> Live | None:
        """Return the input of the program that replaces a number; None for constants and anything else."""
        place = id(holder), name
        live = None if place in self._by_value else self._lives.find(place, value, holder)
        if live is not None:
            self.builder.live.add(id(live))
            self.offered[id(live)] = place
            if self._asks_type:
                self.builder.needed.add(id(live))
        return live

    def _follow(self, value: Any, text: str, replaces: bool = False) -> Any:
        """Record the state that may be read through a value; return the value, or its replacement.

        Args:
            replaces: whether the body gets the returned object instead of the value.
        """
        if not is_library(type(value).__module__) and not isinstance(value, Module):
            self._hook(type(value))  # subclasses of lists and numbers may have attributes too
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            return self._contents(value, text, replaces=False)
        if isinstance(value, (Operators, np.ndarray, np.generic, str, int, float, Enum, type(None))):
            return value
        if is_generator(value):
            self._draws.add(value)
        elif isinstance(value, CONTAINERS):
            return self._contents(value, text, replaces)
        elif isinstance(value, ref):
            self._constant(value, partial(_referent, value), "", text)
        elif isinstance(value, MethodType) or (isinstance(value, BuiltinMethodType) and value.__name__ not in WRITING):
            self._may_call(functions_in(value))
            self._follow(value.__self__, text)
        elif isinstance(value, partial):
            self._may_call(functions_in(value))
            for part in (value.func, value.args, value.keywords):
                self._follow(part, text)
        elif isinstance(value, ModuleType | type):
            if not is_library(value.__name__ if isinstance(value, ModuleType) else value.__module__):
                self._namespaces[id(value)] = value
                self._note_namespace(value)
        elif functions := functions_in(value):
            self._may_call(functions)
            if isinstance(value, FunctionType):
                self._namespaces[id(value)] = value
                self._note_namespace(value)
        else:
            self._instance(value, text)
        return value

    def _contents(self, holder: Any, text: str, replaces: bool) -> Any:
        """Record all elements of a container; return it, or a copy in which live values replace elements."""
        replaces = replaces and type(holder) in (list, dict)
        if id(holder) in self._containers:
            guard, given = self._containers[id(holder)]
            if not replaces:  # the body also gets the numbers themselves
                self.builder.needed.update(map(id, guard.lives.values()))
            return given
        found = {name: self._live(holder, name, x) for name, x in zip(*named_parts(holder), strict=True) if replaces}
        guard = Guard(holder, text, {name: live for name, live in found.items() if live is not None})
        # An immutable container changes only through elements that change in place, such as arrays.
        if guard.is_deep or not isinstance(holder, (tuple, frozenset)):
            self.guards[guard.key] = guard
        # Before the elements are followed, because they may lead back to this container.
        self._containers[id(holder)] = guard, holder
        parts = [
            LiveValue.of(self.builder, guard.lives[name])
            if name in guard.lives
            else self._follow(x, guard.describe(name), replaces)
            for name, x in zip(guard.names, guard.seen, strict=True)
        ]
        if isinstance(holder, (dict, MappingProxyType)):
            for key in guard.names:
                self._follow(key, f"a key of {text}")
        if replaces and not are(parts, guard.seen):
            copy = dict(zip(guard.names, parts, strict=True)) if type(holder) is dict else parts
            self._containers[id(holder)] = guard, copy
        return self._containers[id(holder)][1]

    def _instance(self, value: Any, text: str) -> None:
        kind = type(value)
        is_known = kind.__module__.partition(".")[0] in KNOWN and is_library(kind.__module__)
        if is_known and not kind.__module__.startswith(LAYERS):
            if kind.__module__ in TENSORS and hasattr(value, "__dict__"):
                self._tensors[id(value)] = value, text
                self._note_tensor(value, text)
            return
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._note_inherited(kind)
            self._may_call(methods_of(kind))
            for descriptor in descriptors_of(kind):
                self._hook(descriptor)
            for base, name in operators_of(kind):
                self._constant(base, vars(base).get, name, f"{name} of class {base.__name__}")
        place = id(value), "__class__"
        if kind.__flags__ & HEAP_TYPE and place not in self.guards:
            self.guards[place] = Guard(value, f"the class of {text}", {}, partial(getattr, value), "__class__")
        # Reads of a class that cannot be hooked are not reported, so all attributes count as read.
        if not isinstance(value, Module) and not self._hook(kind) and hasattr(value, "__dict__"):
            self._contents(vars(value), text, replaces=False)

    def _note_tensor(self, tensor: Any, text: str) -> None:
        """Record a tensor's attributes that functions may read and users may set, as their reads are not reported."""
        if "requires_grad" in self._attribute_names:
            self._constant(tensor, partial(getattr, tensor), "requires_grad", f"requires_grad of {text}")
        if vars(tensor) or self._asks_for_attributes:
            self._contents(vars(tensor), text, replaces=False)

    # Functions.

    def _may_call(self, functions: Iterable[FunctionType]) -> None:
        for function in functions:
            known = self._functions.setdefault(function.__code__, set())
            if function not in known:
                known.add(function)
                # Functions that are found before they are called are noted in `_note_function`.
                if function.__code__ in self.called and not is_library(function.__module__):
                    self._note_variables(function)

    def _note_function(self, code: CodeType, namespace: dict[str, Any]) -> None:
        """Record the reads of a called function besides its arguments."""
        names = names_in(code)
        for module in names.modules:
            self._follow(sys.modules.get(module), module)
        for name in names.globals:  # builtins too, which a global may hide later
            self._constant(namespace, namespace.get, name, f"the global {name}")
        # Copies here and below, because noting a read may find more functions, tensors, namespaces and classes.
        for function in list(self._functions.get(code, ())):
            self._note_variables(function)
        self._attribute_names |= names.attributes
        self._optional_names |= names.optional
        self._asks_for_attributes |= not names.globals.isdisjoint(("getattr", "hasattr"))
        if names.asks_type:  # `type` would return the class of the symbol, so the body gets all numbers themselves
            self._asks_type = True
            self.builder.needed.update(self.offered)
        for tensor, text in list(self._tensors.values()):
            self._note_tensor(tensor, text)
        for x in list(self._namespaces.values()):
            self._note_namespace(x)
        if names.inherited - self._inherited_names:
            self._inherited_names |= names.inherited
            for kind in list(self._kinds):
                self._note_inherited(kind)

    def _note_variables(self, function: FunctionType) -> None:
        """Record a function's code, its closure variables and its default arguments."""
        qualname, get = function.__qualname__, partial(getattr, function)
        self._constant(function, get, "__code__", f"the code of {qualname}")
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            self._constant(cell, partial(_in_cell, cell), "", f"{name} around {qualname}")
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name) is not None:
                self._constant(function, get, name, f"a default argument of {qualname}")

    def _note_namespace(self, x: Any) -> None:
        """Record the attributes of a module, class or function that called functions name."""
        spaces = [*x.__mro__, *own_bases(type(x))] if isinstance(x, type) else [x]
        names = self._optional_names | {name for name in self._attribute_names if any(name in vars(y) for y in spaces)}
        for space in spaces:
            own = vars(space)
            # Classes of libraries get no new names. A module has no `__module__` and counts as user code.
            for name in names & own.keys() if is_library(getattr(space, "__module__", "")) else names:
                if (id(space), name) not in self.guards:
                    self._constant(space, own.get, name, f"{space.__name__}.{name}")
            names = names - own.keys()

    def _note_inherited(self, kind: type) -> None:
        """Record the attributes that `super()` may look up in an object's classes, as its reads are not reported."""
        for base in own_bases(kind):
            for name in self._inherited_names:
                if (id(base), name) not in self.guards:
                    self._constant(base, vars(base).get, name, f"{name} of class {base.__name__}")


def _in_cell(cell: Any, name: str, default: Any) -> Any:
    """Return the value of a closure variable."""
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return default


def _names_in(own: dict[str, Any], name: str, default: Any) -> tuple[str, ...]:
    """List the names of an object's own attributes, without the cells that a recording sets."""
    return tuple([name for name in own if not _is_set_by_recording(own, name)])


def _is_set_by_recording(own: dict[str, Any], name: str) -> bool:
    """Return whether an object has an attribute only while programs are recorded."""
    return isinstance(own.get(name), (BoundCell, Function)) or name in REPLACED


def _in_context(variable: ContextVar[Any], name: str, default: Any) -> Any:
    return variable.get(default)


def _referent(reference: ref[Any], name: str, default: Any) -> Any:
    """Return the object that a weak reference refers to; None once it is gone."""
    return reference()


def is_iterator(x: Any) -> bool:
    """Return whether `x` is an iterator of a library, but not a file; reads of users' own iterators are tracked."""
    kind = type(x)
    return hasattr(kind, "__next__") and is_library(kind.__module__) and not isinstance(x, (IOBase, *ProxyTypes))


def is_generator(x: Any) -> bool:
    """Return whether `x` is one of NumPy's random number generators."""
    return type(x).__module__.startswith("numpy.random.")


def _state_of(generator: Any) -> bytes:
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(getattr(generator, "bit_generator", generator).state)
