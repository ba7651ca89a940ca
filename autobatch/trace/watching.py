"""Watching of a body while it is traced: makes a guard of everything that it reads, and refuses random numbers.

During the trace, and in its thread, `__getattribute__` of all modules, and of the classes of all objects that the body
reads, reports the attributes that are read. Calls of functions are reported as to a profiler. The globals that a
function reads are found in its code, with its closure variables and its default arguments. Lists and dicts count as
read as a whole.

A number that has changed before (see `autobatch.trace.live`) is replaced by a value of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from autobatch.ir.builder import Builder
from autobatch.jit.compiling import without_collection
from autobatch.ops.elementwise import stop_gradient
from autobatch.ops.operators import Operators, Symbol
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.trace.cell import BoundCell, Cell
from autobatch.trace.draws import Draws, is_generator
from autobatch.trace.guards import MISSING, Contents, Guard, Read, are
from autobatch.trace.hooks import HEAP_TYPE, IMMUTABLE, hearing, hooked, listening
from autobatch.trace.live import Live, LiveValue, can_be_live
from autobatch.trace.scanning import functions_in, is_library, names_in, special_methods

LARGE = 2**20  # bytes; a larger array is an input of the program from the first trace on, and is not compared
KNOWN = ("autobatch", "numpy", "torch")  # libraries whose objects users do not change, but for
LAYERS = ("torch.nn.modules", "torch.nn.utils", "torch.ao.nn", "torch.fx")
CONTAINERS = (list, tuple, dict, set, frozenset)


class Watch:
    """Everything that one trace reads.

    Args:
        builder: of the program.
        changing: the places of numbers that have changed before.
        lives: the live numbers by place; make_live: makes one where none fits.
        by_value: the places whose numbers stay constants although they change.

    Attributes:
        guards: one for each thing that was read.
        offered: the places of the live numbers in this trace, by their `id`s.
    """

    def __init__(
        self,
        builder: Builder,
        changing: Collection[Hashable],
        lives: Mapping[Hashable, Live],
        make_live: Callable[[Hashable, Any, object], Live],
        by_value: set[Hashable],
    ) -> None:
        self.builder, self.guards, self.offered = builder, dict[Hashable, Guard](), dict[int, Hashable]()
        self._changing, self._lives, self._make_live, self._by_value = changing, lives, make_live, by_value
        self._containers: dict[int, tuple[Contents, Any]] = {}
        self._functions: dict[CodeType, set[FunctionType]] = {}
        self._called = set[CodeType]()
        self._attribute_names = set[str]()
        self._inherited_names = set[str]()
        self._namespaces: dict[int, Any] = {}
        self._kinds = set[type]()
        self._draws = Draws()
        self._hooked: set[type] = set()
        self._hooks = ExitStack()
        self.busy = False

    @contextmanager
    def watching(self, roots: Iterable[Any]) -> Iterator[None]:
        """Record what is read within the context, beginning with functions and objects that the body is given.

        The garbage collector is off meanwhile: its callbacks may read a clock, which would count as the body's.

        Raises:
            GraphError: random numbers were drawn, or the time was asked for.
        """
        with without_collection(), self._hooks, hearing(self._hear), listening(self):
            with self._unwatched():
                self._hook(Module)
                self._hook(Parameter)
                for root in roots:
                    self.follow(root, "an argument")
            yield
        self._draws.check()

    # Attributes, as they are read.

    def read(self, owner: Any, name: str, value: Any) -> Any:
        """Record that an attribute was read; return its value, or its replacement."""
        with self._unwatched():
            if isinstance(owner, Parameter):
                return stop_gradient(owner) if name == "data" else value
            if isinstance(value, Symbol):
                return value
            text = f"{name} of {type(owner).__name__}"
            if name == "__dict__":
                for key, x in value.items():
                    if isinstance(x, BoundCell):  # replaced while programs are recorded
                        continue
                    self._constant(value, value.get, key, f"{key} of {type(owner).__name__}", x)
                return value
            own = _attributes_of(owner)
            if name in own:
                return self._note(own, own.get, name, text, value)
            for base in type(owner).__mro__:
                if name in vars(base):
                    return self._class_attribute(owner, base, name, text, value)
            return self.follow(value, text, replaces=True)

    def lacks(self, owner: Any, name: str) -> None:
        """Record that there is no such attribute."""
        with self._unwatched():
            self._note(owner, partial(getattr, owner), name, f"{name} of {type(owner).__name__}", MISSING)

    def _class_attribute(self, owner: Any, base: type, name: str, text: str, value: Any) -> Any:
        member = vars(base)[name]
        if not hasattr(type(member), "__get__") or isinstance(member, MemberDescriptorType):
            return self._note(owner, partial(getattr, owner), name, text, value)
        self._note(base, vars(base).get, name, f"{name} of class {base.__name__}", member)
        told, get = f"the class of {type(owner).__name__}", partial(getattr, owner)
        self.guards.setdefault((id(owner), "__class__"), Read(owner, get, "__class__", told, None))
        if not isinstance(member, Cell):  # cells are replaced on the instance while programs are recorded
            own = _attributes_of(owner)
            self._note(own, own.get, name, text, MISSING)
        self._may_call(functions_in(member))
        return self.follow(value, text, replaces=True)

    # Things that were read.

    def _note(
        self, holder: object, get: Callable[..., Any], name: Any, text: str, value: Any, replaces: bool = True
    ) -> Any:
        """Record that something was read; return its value, or its replacement."""
        live = self._live(holder, name, value)
        if (id(holder), name) not in self.guards:
            self.guards[id(holder), name] = Read(holder, get, name, text, live)
        if live is not None:
            return LiveValue.of(self.builder, live)
        return self.follow(value, text, replaces)

    def _live(self, holder: object, name: Any, value: Any) -> Live | None:
        """The input that replaces a number that has changed before, or a large array; None for anything else."""
        key = id(holder), name
        if key in self._by_value or not can_be_live(value):
            return None
        if key not in self._changing and not (isinstance(value, np.ndarray) and value.nbytes > LARGE):
            return None
        live = self._lives.get(key)
        if live is None or not live.take(value):
            live = self._make_live(key, value, holder)
        self.builder.live.add(id(live))
        self.offered[id(live)] = key
        return live

    def follow(self, value: Any, text: str, replaces: bool = False) -> Any:
        """Record what may be read from a value that was read; return the value, or its replacement.

        Args:
            replaces: whether the body gets the returned object instead of the value.
        """
        if isinstance(value, (Operators, np.ndarray, np.generic, str, int, float, Enum, type(None))):
            return value
        if is_generator(value):
            self._draws.add(value)
        elif isinstance(value, CONTAINERS):
            return self._contents(value, text, replaces)
        elif isinstance(value, ModuleType | type):
            if not is_library(value.__name__ if isinstance(value, ModuleType) else value.__module__):
                self._namespaces[id(value)] = value
                self._note_namespace(value)
        elif functions := functions_in(value):
            self._may_call(functions)
        else:
            self._instance(value, text)
        return value

    def _instance(self, value: Any, text: str) -> None:
        kind = type(value)
        is_known = kind.__module__.partition(".")[0] in KNOWN and is_library(kind.__module__)
        if is_known and not kind.__module__.startswith(LAYERS):
            return
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._note_inherited(kind)
        self._may_call(special_methods(kind))
        if not isinstance(value, Module) and not self._hook(kind) and hasattr(value, "__dict__"):
            self._contents(vars(value), text, replaces=False)

    def _contents(self, holder: Any, text: str, replaces: bool) -> Any:
        """Record all elements of a container; return it, or a copy in which live values replace elements."""
        replaces = replaces and type(holder) in (list, dict)
        known = self._containers.get(id(holder))
        if known is not None:
            guard, copy = known
            if not replaces:  # the body also gets the numbers themselves
                self.builder.needed.update(map(id, guard.lives.values()))
            return copy
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
        lives = {}
        for name, x in pairs if replaces else ():
            if (live := self._live(holder, name, x)) is not None:
                lives[name] = live
        guard = Contents(holder, text, lives)
        if guard.is_deep or not isinstance(holder, (tuple, frozenset)):
            self.guards[guard.key] = guard
        self._containers[id(holder)] = guard, holder
        given = [
            LiveValue.of(self.builder, lives[name]) if name in lives else self.follow(x, f"{text}[{name!r}]", replaces)
            for name, x in zip(guard.names, guard.seen, strict=True)
        ]
        if replaces and not are(given, guard.seen):
            copy = dict(zip(guard.names, given, strict=True)) if type(holder) is dict else given
            self._containers[id(holder)] = guard, copy
        return self._containers[id(holder)][1]

    def _may_call(self, functions: Iterable[FunctionType]) -> None:
        for function in functions:
            known = self._functions.setdefault(function.__code__, set())
            if function not in known:
                known.add(function)
                if function.__code__ in self._called and not is_library(function.__module__):
                    self._note_variables(function)

    # Functions, when they are called.

    def _note_function(self, code: CodeType, namespace: dict[str, Any]) -> None:
        """Record what a function that is called now reads beside its arguments."""
        self._called.add(code)
        if is_library(namespace.get("__name__")):
            return
        with self._unwatched():
            for function in list(self._functions.get(code, ())):
                self._note_variables(function)
            names = names_in(code)
            for module in names.modules:
                self.follow(sys.modules.get(module), module)
            for name in names.globals & namespace.keys():
                value = namespace[name]
                if isinstance(value, ModuleType):
                    self.follow(value, name)
                else:
                    self._constant(namespace, namespace.get, name, f"the global {name}", value)
            self._attribute_names |= names.attributes
            for x in list(self._namespaces.values()):
                self._note_namespace(x)
            if names.inherited - self._inherited_names:
                self._inherited_names |= names.inherited
                for kind in list(self._kinds):
                    self._note_inherited(kind)

    def _note_variables(self, function: FunctionType) -> None:
        """Record a function's code, its closure variables and its default arguments."""
        told, get = function.__qualname__, partial(getattr, function)
        self._constant(function, get, "__code__", f"the code of {told}", function.__code__)
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            look, value = partial(_in_cell, cell), _in_cell(cell, "", MISSING)
            self._constant(cell, look, "", f"{name} around {told}", value)
        for name in ("__defaults__", "__kwdefaults__"):
            if (value := getattr(function, name)) is not None:
                self._constant(function, get, name, f"a default argument of {told}", value)

    def _note_namespace(self, x: Any) -> None:
        """Record the attributes of a module, or class, that functions name."""
        for space in map(vars, [x] if isinstance(x, ModuleType) else x.__mro__):
            for name in self._attribute_names & space.keys():
                if (id(x), name) not in self.guards:
                    self._constant(x, space.get, name, f"{x.__name__}.{name}", space[name])

    def _note_inherited(self, kind: type) -> None:
        """Record what `super()` may find in the classes of an object, or miss there: nothing reports its reads."""
        for base in kind.__mro__:
            if not is_library(base.__module__):
                for name in self._inherited_names:
                    if (id(base), name) not in self.guards:
                        found = vars(base).get(name, MISSING)
                        self._constant(base, vars(base).get, name, f"{name} of class {base.__name__}", found)

    def _constant(self, holder: object, get: Any, name: str, text: str, value: Any) -> None:
        """Record something that stays a constant, because it cannot be replaced."""
        self._by_value.add((id(holder), name))
        self._note(holder, get, name, text, value, replaces=False)

    # How attributes and calls are seen.

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _hook(self, kind: type) -> bool:
        """Report reads of attributes of a class's instances from now on; False if that is impossible."""
        if kind not in self._hooked and kind.__flags__ & (HEAP_TYPE | IMMUTABLE) == HEAP_TYPE:
            self._hooked.add(kind)
            self._hooks.enter_context(hooked(kind))
        return kind in self._hooked

    def _hear(self, frame: FrameType, event: str, what: Any) -> None:
        """Take reports of calls, as a profiler does."""
        if event == "c_call":
            self._draws.hear(frame, what)
        elif event == "call" and frame.f_code not in self._called:
            self._note_function(frame.f_code, frame.f_globals)


def _attributes_of(owner: Any) -> Any:
    """The attributes in an object's own `__dict__`."""
    return object.__getattribute__(owner, "__dict__") if hasattr(owner, "__dict__") else {}


def _in_cell(cell: Any, name: str, default: Any) -> Any:
    """The value of a closure variable."""
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return default
