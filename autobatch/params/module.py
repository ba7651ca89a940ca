"""Modules: objects that hold parameters, and the naming, saving and loading of these parameters.

A module holds parameters in attributes, in lists, tuples and dicts, or in other modules. A walk over these finds the
parameters in the order of definition and visits each object once, so a shared parameter has one name, the first, and
cycles are allowed. A name is the path of attributes, indices and keys, joined by dots (`layers.0.weight`), as in torch.
Nothing is registered: attribute access is Python's own, and `super().__init__()` is never needed. Other attributes
(arrays, numbers, functions) are not parameters. Assigning to the name of a module's method raises an error.

Loading checks all names and shapes before it changes the first number, and saving writes atomically.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from autobatch._native import Function
from autobatch.devices.store import HOST, Store
from autobatch.errors import CheckpointError, GraphError
from autobatch.keywords import checked
from autobatch.params.checkpoint import MODEL_FORMAT, read_safetensors, write_arrays
from autobatch.params.parameter import FLOAT32, FloatArray, Parameter, Shape, float_dtype, to_floats
from autobatch.system.locks import run_lock

NAMES_IN_A_MESSAGE = 5


class LoadedNames(NamedTuple):
    """The names in which a state dict and a module differ, with torch's field names.

    Attributes:
        missing_keys: parameters that are not in the state dict.
        unexpected_keys: entries of the state dict that match no parameter.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A holder of parameters, the base class of every model and layer.

    Attributes:
        other_names: class attribute: alternative names of parameters in state dicts, to the attribute names.
        training: whether dropout is on; see `train`.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> class Tagger(ab.Module):
    ...     def __init__(self, rng):
    ...         self.start = ab.Parameter(np.zeros(4), trainable=False)
    ...         self.layers = [ab.Linear(4, 8, rng=rng), ab.Linear(8, 2, rng=rng, bias=False)]
    >>> tagger = Tagger(np.random.default_rng(0))
    >>> list(tagger.parameters())
    ['start', 'layers.0.weight', 'layers.0.bias', 'layers.1.weight']
    >>> tagger.astype("float64").dtype
    dtype('float64')
    """

    def parameters(self) -> dict[str, Parameter]:
        """Find all parameters, trainable or not, in the order of definition, each under its first name.

        Raises:
            GraphError: two parameters have one name, such as those under the dict keys 1 and "1".

        Cost: a walk over all attributes, lists, tuples and dicts on each call.
        """
        found: dict[str, Parameter] = {}
        for name, parameter in _walk(self):
            if not isinstance(parameter, Parameter):
                continue
            if name in found:
                raise GraphError(
                    f"two parameters of {type(self).__name__} are both named {name!r}; rename one of the dict keys."
                )
            found[name] = parameter
        return found

    training = True
    other_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise a GraphError if an attribute of the class has the name of a `Module` method."""
        super().__init_subclass__(**options)
        for name in OWN_NAMES:
            _check_name(cls, name, getattr_static(cls, name), in_class=True)

    if not TYPE_CHECKING:  # with a visible __setattr__, type checkers would allow assigning any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name in OWN_NAMES:
                _check_name(type(self), name, value, in_class=False)
            super().__setattr__(name, value)

    # Overridden by wrappers of other libraries' modules.

    _adopt: Callable[[Any], Any] | None = None
    _switch_mode: Callable[[Any], Any] | None = None  # see `autobatch.trace.driving.Program`
    _patch: Callable[[Any], Any] | None = None  # see `autobatch.trace.calls.Patching`

    @property
    def _kind(self) -> type:
        """Return the class to name in messages; a wrapper returns the class of the wrapped module."""
        return type(self)

    @property
    def _default_store(self) -> Store:
        """Return the memory in which a module without parameters computes."""
        return HOST

    def _owners(self) -> Sequence[Any]:
        """Return the modules whose methods may be cells: this one and its submodules, or the wrapped module."""
        return modules_in(self)

    def _patches(self) -> Sequence[Any]:
        """Return the attributes to replace by functions during a recording."""
        return ()

    def _outline(self) -> Any:
        """Return a key that changes when a foreign module outside cells is replaced."""
        return None

    def _value_methods(self) -> tuple[type, ...]:
        """Return classes whose methods recorded values must have."""
        return ()

    def _while_recording(self) -> AbstractContextManager[Any]:
        """Return an additional context for recordings of this module."""
        return nullcontext()

    def _named_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield this module, its submodules and its parameters, each once, under its first name."""
        return ((name, x) for name, x in _walk(self) if isinstance(x, (Module, Parameter)))

    def _shared_parts(self) -> Iterator[tuple[str, str]]:
        """Yield each further name of shared submodules and parameters, with the first name."""
        first = {id(x): name for name, x in _walk(self)}
        for name, x in _walk(self):
            for key, child in () if isinstance(x, Parameter) else _children(x):
                # A walk visits an object once, so a child whose first name is another path is shared.
                other = f"{name}.{key}" if name else key
                if isinstance(child, (Module, Parameter)) and first[id(child)] != other:
                    yield other, first[id(child)]

    def __repr__(self) -> str:
        """Draw the tree of submodules, parameters with their shapes, and shared parts."""
        return draw_tree(self)

    def __getstate__(self) -> Any:
        """Return the state for copies and pickles, without the functions that replace cells during a recording."""
        state: Any = super().__getstate__()
        own, *slots = state if isinstance(state, tuple) else (state,)  # a tuple if the class has __slots__
        own = {name: value for name, value in dict(own or {}).items() if not _stands_in(value)}
        return (own, *slots) if slots else own

    @checked()
    def train(self, mode: bool = True) -> Self:
        """Turn dropout on (or off, with `mode=False`) in this module and its submodules; return the module."""
        for module in modules_in(self):
            module.training = bool(mode)
        return self

    def eval(self) -> Self:
        """Turn dropout off in this module and its submodules; return the module."""
        return self.train(False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of all parameters, float32 or float64; float32 without parameters.

        Raises:
            GraphError: parameters differ in dtype; the message names two.
        """
        found = shared_dtype(self)
        return FLOAT32 if found is None else found

    @checked()
    def to(self, device: str | Store) -> Self:
        """Move all parameters to a device in place, and return the module. Training and inference run there.

        Optimizers move their state at their next step.

        Args:
            device: "cpu", "cuda", or a device's `Store`.

        Raises:
            BackendError: the device is unknown or cannot be used; nothing has moved.

        >>> import numpy as np
        >>> import autobatch as ab
        >>> ab.Linear(2, 1, rng=np.random.default_rng(0)).to("cpu").weight.store.kind
        'cpu'
        """
        from autobatch.devices.finding import find_store

        store = find_store(device) if isinstance(device, str) else device
        with run_lock():
            for parameter in self.parameters().values():
                parameter.to(store)
        return self

    @checked()
    def astype(self, dtype: npt.DTypeLike) -> Self:
        """Change the dtype of all parameters in place, to float32 or float64, and return the module.

        Raises:
            DataError: `dtype` is neither; nothing has changed.
        """
        target = float_dtype(dtype)
        with run_lock():
            for parameter in self.parameters().values():
                parameter.astype(target)
        return self

    def state_dict(self) -> dict[str, FloatArray]:
        """Copy every parameter to a NumPy array on the host, under its name in `parameters()`."""
        with run_lock():
            return {name: np.array(p.store.get(p.array)) for name, p in self.parameters().items()}

    @checked()
    def load_state_dict(self, state: Mapping[str, npt.ArrayLike], strict: bool = True) -> LoadedNames:
        """Copy arrays into the parameters, cast to their dtypes, after checking that all of them fit.

        Args:
            state: parameter name to array or torch tensor. A shared parameter may have any of its names, or all, as in
                torch.
            strict: whether missing and unexpected names are errors; otherwise missing parameters are unchanged.

        Returns:
            The missing and the unexpected names.

        Raises:
            CheckpointError: names are missing or unexpected, shapes differ, two names of one parameter have different
                numbers, or an entry is not an array of numbers; no parameter has changed.

        >>> import numpy as np
        >>> import autobatch as ab
        >>> layer = ab.Linear(2, 1, rng=np.random.default_rng(0))
        >>> layer.load_state_dict({"weight": np.ones((1, 2)), "scale": np.ones(1)}, strict=False)
        LoadedNames(missing_keys=['bias'], unexpected_keys=['scale'])
        """
        return _load(self, state, "the state dict", strict)

    @checked()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a safetensors file, atomically replacing an existing one.

        Raises:
            CheckpointError: the file cannot be written; `path` is unchanged.
        """
        doing = f"cannot save the parameters of {type(self).__name__} to {os.fspath(path)!r}"
        write_arrays(path, self.state_dict(), {}, doing)

    @checked()
    def load(self, path: str | os.PathLike[str], strict: bool = True) -> LoadedNames:
        """Read a safetensors file into the parameters, as `load_state_dict` does.

        Args:
            path: a file written by `save` or by another library.
            strict: as for `load_state_dict`.

        Raises:
            CheckpointError: the file is missing, unreadable, truncated, of another format or of `ab.export`, or does
                not fit the module; no parameter has changed.
        """
        arrays, metadata = read_safetensors(path, "Module.save")
        if metadata.get("format") == MODEL_FORMAT:
            raise CheckpointError(
                f"cannot load {os.fspath(path)!r}: it must be a file of parameters, got an exported model; ab.load "
                f"reads it, and its state_dict() has the parameters."
            )
        return _load(self, arrays, repr(os.fspath(path)), strict)


VALUES = {"training": bool, "other_names": Mapping}  # data attributes of modules, and their types
OWN_NAMES = frozenset(name for name in vars(Module) if not name.startswith("__"))


def _check_name(owner: type, name: str, value: Any, in_class: bool) -> None:
    """Raise a GraphError if an attribute hides one of `Module`'s own.

    Args:
        in_class: whether it is a class attribute, where a method may override a method.
    """
    own = vars(Module)[name]
    if name in VALUES:
        is_taken, what = not isinstance(value, VALUES[name]), f"a {VALUES[name].__name__.lower()}"
    else:
        # In a class, a method may be overridden by a function or another descriptor, and a property by a property.
        is_method = hasattr(type(value), "__get__") and isinstance(value, property) is isinstance(own, property)
        is_taken, what = (
            value is not own and not (in_class and is_method),
            "a method" if callable(own) else "an attribute",
        )
    if is_taken:
        raise GraphError(
            f"{owner.__name__}.{name} cannot be of type {type(value).__name__}: every ab.Module has {what} of "
            f"this name. Rename it."
        )


def _stands_in(value: object) -> bool:
    return type(value) is Function


def check_entries(doing: str, given: Mapping[str, Shape], expected: Mapping[str, Shape]) -> None:
    """Check that stored arrays have exactly the expected names and shapes.

    Args:
        doing: start of the error message, such as "cannot load x into Y".
        given: name to shape of the stored arrays.
        expected: name to shape of the required arrays.

    Raises:
        CheckpointError: names or shapes differ; the message lists the first few of each kind.
    """
    troubles = {
        "missing": [repr(name) for name in expected if name not in given],
        "unexpected": [repr(name) for name in given if name not in expected],
        "of another shape": [
            f"{name!r} ({given[name]} instead of {shape})"
            for name, shape in expected.items()
            if name in given and given[name] != shape
        ],
    }
    listed = [f"{trouble}: {_list_some(names)}" for trouble, names in troubles.items() if names]
    if listed:
        raise CheckpointError(f"{doing}: {'; '.join(listed)}; build the model as it was when this was saved.")


def shared_dtype(module: Module) -> np.dtype[Any] | None:
    """Return the dtype of all parameters, or None without parameters; raise a GraphError as `Module.dtype` does."""
    parameters = module.parameters()
    first = next(iter(parameters), "")
    for name, parameter in parameters.items():
        if parameter.dtype != parameters[first].dtype:
            raise GraphError(
                f"the parameters of {type(module).__name__} differ in dtype: {first!r} is {parameters[first].dtype} "
                f"and {name!r} is {parameter.dtype}; call astype() on the whole model."
            )
    return parameters[first].dtype if parameters else None


def shared_store(module: Module) -> Store:
    """Return the device memory that holds all parameters; without any, the module's default, `HOST`.

    Raises:
        GraphError: parameters are on different devices; the message names two.
    """
    stores = {name: parameter.store for name, parameter in module.parameters().items()}
    first = next(iter(stores), "")
    for name, store in stores.items():
        if store is not stores[first]:
            raise GraphError(
                f"the parameters of {module._kind.__name__} are on different devices: {first!r} on "
                f"{stores[first].kind} and {name!r} on {store.kind}; call to() on the whole model."
            )
    return stores[first] if stores else module._default_store


def modules_in(module: Module) -> list[Module]:
    """List a module and all its submodules, each once, in the order of definition."""
    return [found for _, found in _walk(module) if isinstance(found, Module)]


def _list_some(names: list[str]) -> str:
    rest = len(names) - NAMES_IN_A_MESSAGE
    return ", ".join(names[:NAMES_IN_A_MESSAGE]) + (f" and {rest} more" if rest > 0 else "")


def draw_tree(module: Module) -> str:
    """Draw the tree under a module as torch prints it, one line per part; a module of parameters alone is one line."""
    lines, names = list[str](), dict[int, str]()
    pending: list[tuple[str, str, str, Any]] = [("", "", "", module)]
    while pending:
        indent, label, path, value = pending.pop()
        if value is None:  # the end of a module whose parts have been drawn
            lines.append(f"{indent})")
            continue
        kind, is_known = type(value).__name__, id(value) in names
        name = names.setdefault(id(value), path)
        parts: list[tuple[str, Any]] = [(key, x) for key, x in _children(value) if _holds(x)]
        if is_known:
            lines.append(f"{indent}{label}{kind}, the same as {name or 'the root'}")
        elif isinstance(value, Parameter):
            lines.append(f"{indent}{label}{value!r}")
        elif all(isinstance(x, Parameter) and id(x) not in names for _, x in parts):
            names |= {id(x): f"{path}.{key}".lstrip(".") for key, x in parts}
            shapes = [f"{key}={x.shape}" for key, x in parts]
            lines.append(f"{indent}{label}{kind}({', '.join([*shapes, *_numbers_of(value)])})")
        else:
            lines.append(f"{indent}{label}{kind}(")
            pending.append((indent, "", "", None))  # popped after the parts, which are pushed next
            prefix = path and f"{path}."
            pending += [(f"{indent}  ", f"({key}): ", f"{prefix}{key}", x) for key, x in reversed(parts)]
    return "\n".join(lines)


def _holds(value: Any) -> bool:
    """Return whether a child is a module or parameter, or a container of one."""
    if isinstance(value, dict | list | tuple):
        return any(isinstance(x, Module | Parameter) for _, x in _walk(value))
    return True


def _numbers_of(value: object) -> list[str]:
    """List a module's public numbers and strings as `name=value`."""
    own = vars(value) if isinstance(value, Module) else {}
    return [f"{key}={x!r}" for key, x in own.items() if type(x) in (int, float, str) and not key.startswith("_")]


def holders_in(module: Module) -> list[Any]:
    """List the modules, lists, tuples and dicts that a walk visits, each once."""
    return [found for _, found in _walk(module) if not isinstance(found, Parameter)]


def _walk(module: object) -> Iterator[tuple[str, Any]]:
    """Yield parameters and their holders with their first names, each once, depth first in the order of definition."""
    visited: set[int] = set()
    pending: list[tuple[str, object]] = [("", module)]
    while pending:
        name, value = pending.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        yield name, value
        if not isinstance(value, Parameter):
            pending += [(f"{name}.{key}" if name else key, child) for key, child in reversed(_children(value))]


def _children(value: object) -> list[tuple[str, object]]:
    """List the children of a module, list, tuple or dict that are parameters or may hold some, with their names."""
    items: list[tuple[object, object]] = []
    if isinstance(value, Module):
        items = list(vars(value).items())
    elif isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    walked = (Parameter, Module, list, tuple, dict)
    return [(str(key), child) for key, child in items if isinstance(child, walked)]


def _find(value: object, name: str) -> Parameter | None:
    """Return the parameter of a dotted name, which need not be its first, or None."""
    if isinstance(value, Module):
        name = value.other_names.get(name, name)
    for key, child in _children(value):
        if key == name and isinstance(child, Parameter):
            return child
        # Keys may contain dots, so each child whose key begins the name is tried.
        if name.startswith(f"{key}."):
            found = _find(child, name[len(key) + 1 :])
            if found is not None:
                return found
    return None


def _load(module: Module, state: Mapping[str, npt.ArrayLike], source: str, strict: bool) -> LoadedNames:
    doing = f"cannot load {source} into {type(module).__name__}"
    parameters = module.parameters()
    first_names = {id(parameter): name for name, parameter in parameters.items()}
    for name in state:
        if not isinstance(name, str):
            raise CheckpointError(f"{doing}: names of parameters must be strs, got {name!r}; pass a state_dict().")
    found = {name: _find(module, name) for name in state}
    arrays: dict[str, FloatArray] = {}
    for name, parameter in found.items():
        if parameter is None:
            continue
        array = to_floats(state[name], parameter.dtype, f"load {name!r} from {source}", CheckpointError)
        first_name = first_names[id(parameter)]
        if first_name in arrays and not np.array_equal(arrays[first_name], array, equal_nan=True):
            raise CheckpointError(
                f"{doing}: {first_name!r} and {name!r} are one parameter of the model but have different numbers; "
                "remove one of them."
            )
        arrays[first_name] = array
    names = LoadedNames([n for n in parameters if n not in arrays], [n for n, p in found.items() if p is None])
    given = {name: array.shape for name, array in arrays.items()}
    # If strict, `check_entries` sees missing and unexpected names too; the shape of an unexpected one does not matter.
    shapes = {name: parameter.shape for name, parameter in parameters.items() if strict or name in arrays}
    check_entries(doing, {**given, **dict.fromkeys(names.unexpected_keys if strict else (), ())}, shapes)
    with run_lock():
        for name, array in arrays.items():
            parameters[name].data = array
    return names
