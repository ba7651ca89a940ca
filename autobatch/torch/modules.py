"""Torch modules as modules of autobatch, and modules of autobatch as torch modules, which either library can train.

The tensors of a torch module are found by a walk that is repeated only after assignments.

`named_parameters` and `named_buffers` of `nn.Module` read only the dicts `_parameters`, `_buffers` and `_modules` of
each module: as long as these hold the same objects under the same names, another walk would find the same. A module
that overrides the walks, or replaces these dicts, is walked every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from operator import attrgetter, is_, itemgetter, methodcaller
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from autobatch._native import Snapshot
from autobatch.devices.store import HOST, Store
from autobatch.errors import GraphError
from autobatch.keywords import checked
from autobatch.params.module import Module, holders_in, modules_in
from autobatch.params.parameter import Parameter
from autobatch.torch.adopting import to_arrays
from autobatch.torch.cells import CALLED, BoundTorchCell
from autobatch.torch.entering import switch_grad_mode
from autobatch.torch.host_copies import HostCopies
from autobatch.torch.memory import store_at, to_tensor
from autobatch.torch.parameters import FLOATS, PARAMETERS, TensorParameter, make_parameter
from autobatch.torch.patches import Found, Patch, Patches, patches_in
from autobatch.torch.structures import tensors_in
from autobatch.torch.values import OfParameters, TensorMethods
from autobatch.trace.hooks import unheard

WALKS = ("named_parameters", "named_buffers", "named_modules", "_named_members")
DICTS = ("_parameters", "_buffers", "_modules")
Place: TypeAlias = tuple[object, str]
"""The place of a tensor: the `id` of its module, and its name there."""


class Walk(NamedTuple):
    """The result of a walk over a module.

    Attributes:
        named: the parameters, then the buffers, each once.
        modules: the module and all its submodules, kept alive so that `id`s stay unique.
        places: all places; a tensor may be in several.
    """

    named: list[tuple[str, Tensor]]
    modules: list[nn.Module]
    places: dict[Place, Tensor]

    def has_modules_of(self, other: Walk) -> bool:
        """Return whether another walk found the same modules."""
        return len(self.modules) == len(other.modules) and all(map(is_, self.modules, other.modules))

    def is_same(self, other: Walk) -> bool:
        """Return whether another walk found the same modules, and the same tensors in the same places."""
        tensors = self.places.values(), other.places.values()
        return self.has_modules_of(other) and [*self.places] == [*other.places] and all(map(is_, *tensors))

    def by_tensor(self) -> dict[int, set[Place]]:
        """Return the places of each tensor, by `id`."""
        found: dict[int, set[Place]] = {}
        for place, tensor in self.places.items():
            found.setdefault(id(tensor), set()).add(place)
        return found


class KnownTensors:
    """The cached walk over the parameters and buffers of a torch module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._walk = Walk([], [], {})
        self._kinds: list[type[nn.Module]] = []
        self._snapshot: Snapshot | None = None

    def look(self) -> Walk:
        """Return the current parameters and buffers; the same object until something changes."""
        snapshot = self._snapshot
        # Classes may be assigned, as by torch's parametrizations, which changes no dict.
        if snapshot is None or not snapshot.holds() or not all(map(is_, map(type, self._walk.modules), self._kinds)):
            self._find()
        return self._walk

    def _find(self) -> None:
        modules = [*self.module.modules()]
        self._kinds = [*map(type, modules)]
        is_known = all(map(_walks_as_torch, modules))
        dicts = [vars(module)[name] for module in modules for name in DICTS] if is_known else []
        self._snapshot = Snapshot(dicts, modules) if is_known else None
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        places: dict[Place, Tensor] = {(None, name): tensor for name, tensor in named}
        if is_known:
            places = dict(_places(modules))
        self._walk = Walk(named, modules, places)


def _places(modules: list[nn.Module]) -> Iterator[tuple[Place, Tensor]]:
    for module in modules:
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield (id(module), name), tensor


def _walks_as_torch(module: nn.Module) -> bool:
    """Return whether walks read the dicts of a module as `nn.Module` defines them."""
    own, kind = vars(module), type(module)
    if any(name in own or getattr(kind, name) is not getattr(nn.Module, name) for name in WALKS):
        return False
    return all(isinstance(own.get(name), dict) for name in DICTS)


M = TypeVar("M", bound=Module)
HELD = "_as_torch"  # the attribute in which a module of autobatch keeps its torch module alive


class OwnModule(nn.Module, Generic[M]):
    """A module of autobatch as a torch module, made by `abt.as_torch`: the same parameter names and memory.

    Args:
        model: the module of autobatch; its parameters are replaced by ones that share memory with tensors.

    Attributes:
        own: the module of autobatch. Give its methods to `abt.batched`, or call them in functions of one instance.
    """

    def __init__(self, model: M) -> None:
        super().__init__()
        self.own = model
        self.training = model.training
        made: dict[int, TensorParameter] = {}
        self._places = list[tuple[tuple[int, str], TensorParameter]]()
        for name, parameter in model.parameters().items():
            tensor = nn.Parameter(to_tensor(parameter.data.copy()), parameter.trainable)
            *path, last = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.register_parameter(last, tensor)
            made[id(parameter)] = make_parameter(tensor, name)
            self._places.append(((id(holder), last), made[id(parameter)]))
        for holder_of_own in holders_in(model):
            _replace(holder_of_own, made)
        vars(model)[HELD] = self

    def places(self) -> list[tuple[tuple[int, str], TensorParameter]]:
        """Return the parameters and the places of their tensors: the `id` of a module and the name there."""
        return self._places

    def train(self, mode: bool = True) -> Self:
        """Turn dropout on, or off with `mode=False`, in the module of autobatch too."""
        self.own.train(mode)
        return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._copy_of_model(memo))

    def __reduce__(self) -> Any:
        return type(self), (self._copy_of_model({}),)

    def _copy_of_model(self, memo: dict[int, Any]) -> M:
        """Copy the module of autobatch, with new plain parameters."""
        memo[id(self)] = None  # the model holds this module; `__init__` makes another for the copy
        for parameter in self.own.parameters().values():
            # `Parameter` rounds to float32, so the numbers are assigned again once the dtype is right.
            copy = memo[id(parameter)] = Parameter(parameter.data, parameter.trainable).to(parameter.store)
            copy.astype(parameter.dtype)
            copy.data = parameter.data
        return deepcopy(self.own, memo)


@checked()
def as_torch(model: M) -> OwnModule[M]:
    """Convert a module of autobatch to an `nn.Module` with the same parameter names, in the same memory.

    `abt.batched(model.loss)` then returns tensors with a `grad_fn`, the result may be a submodule of a torch module,
    and optimizers of either library can train it. Its `state_dict` is that of the model. `train`, `eval`, `double` and
    so on apply to both, and copies have a copy of the model.

    Args:
        model: a module of autobatch. Call this before batching functions of it, because its parameters
            are replaced.

    Returns:
        The torch module; the same one for the same model.

    Raises:
        GraphError: a parameter is in a tuple.
    """
    found = vars(model).get(HELD)
    return OwnModule(model) if found is None else found


def _replace(holder: Any, made: dict[int, TensorParameter]) -> None:
    if isinstance(holder, tuple):
        if any(isinstance(x, Parameter) for x in holder):
            raise GraphError("a module must not keep parameters in a tuple, where they cannot be replaced; use a list.")
        return
    items = vars(holder) if isinstance(holder, Module) else holder
    for key, value in list(enumerate(items) if isinstance(items, list) else items.items()):
        if isinstance(value, Parameter):
            items[key] = made[id(value)]


COMPUTING: dict[type, str] = {BasePruningMethod: "_tensor_name", WeightNorm: "name", SpectralNorm: "name"}
"""The classes of hooks that compute a tensor of their module, and the attribute with its name."""
DATA_PTR, DTYPE, SHAPE, TENSOR = methodcaller("data_ptr"), attrgetter("dtype"), attrgetter("shape"), itemgetter(1)


class TorchModule(Module):
    """A torch module as a module of autobatch: its parameters and float buffers, by their names in torch.

    Args:
        module: the torch module.

    Attributes:
        sparse: the names of parameters whose gradients are sparse tensors, as long as they are only read by rows.
        float_dtype: the dtype in which cells compute; traces of cells read it, so a change makes them anew.
        default_dtype: the default dtype of torch; traces of cells read it, too.
        device: the device of the parameters, or else of the last data.
        copies: the copies of the tensors in the instances of the current call; None on the CPU.
    """

    _adopt = staticmethod(to_arrays)
    _switch_mode = staticmethod(switch_grad_mode)
    _patch = staticmethod(Patches)

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.sparse: frozenset[str] = frozenset()
        self.float_dtype, self.default_dtype = torch.float32, torch.get_default_dtype()
        self.device = torch.device("cpu")
        self.copies: HostCopies | None = None
        self._known = KnownTensors(module)
        self._walk = Walk([], [], {})
        self._dtypes: list[torch.dtype] = []
        self._found: dict[str, TensorParameter] = {}
        self._tensors: list[torch.Tensor] = []
        self._n_left = 0
        self._seen: tuple[Any, ...] = ()  # the state of the tensors at the last look
        self._patched = Found()
        self._has_own = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of all parameters and float buffers; without any, that of the last data, or float32.

        Raises:
            GraphError: they differ in dtype; the message names two.
        """
        found = {parameter.dtype: name for name, parameter in self.parameters().items()}
        if len(found) > 1:
            (dtype, name), (other, second) = sorted(found.items(), key=str)[:2]
            raise GraphError(
                f"the tensors of {type(self.module).__name__} must have one dtype, got {dtype} for {name!r} and "
                f"{other} for {second!r}; call .to(torch.float32) or .double() on the whole module."
            )
        return next(iter(found), np.dtype(FLOATS[self.float_dtype]))

    def __reduce__(self) -> Any:
        return type(self), (self.module,)

    def _outline(self) -> list[tuple[str, int]]:
        """Return the names and `id`s of the modules outside cells."""
        found, left = list[tuple[str, int]](), [("", self.module)]
        while left:
            name, module = left.pop()
            found.append((name, id(module)))
            if not isinstance(vars(module).get("forward"), BoundTorchCell):
                children = module._modules.items()
                left += [(f"{name}.{key}", child) for key, child in children if child is not None]
        return found

    def _value_methods(self) -> tuple[type, ...]:
        return (TensorMethods,)

    def _patches(self) -> Sequence[Patch]:
        """Return the patches of methods and modules that are cells, and of the attributes that hold such modules.

        The list is cached as long as the attributes and the cells of all modules stay the same, unless a module is an
        `OwnModule`.
        """
        walk = self._known.look()
        if self._has_own or not self._patched.holds(walk):
            self._patched = Found.among(walk, self._find_patches())
        return self._patched.patches

    def _find_patches(self) -> Iterator[Patch]:
        modules = list(self.module.modules())
        self._has_own = any(isinstance(module, OwnModule) for module in modules)
        own = [part for module in modules if isinstance(module, OwnModule) for part in modules_in(module.own)]
        yield from patches_in([*modules, *own])
        for parent in modules:
            bound = vars(parent).get("forward")
            if isinstance(bound, BoundTorchCell):  # a call of a module reads CALLED first
                yield Patch(bound.called.cell, parent, vars(parent), CALLED)
            for name, child in parent._modules.items():
                # A `__call__` of a class runs as it is; its `super().__call__` reads CALLED.
                if child is None or name in vars(parent) or type(child).__call__ is not nn.Module.__call__:
                    continue
                bound = vars(child).get("forward")
                if isinstance(bound, BoundTorchCell):
                    yield Patch(bound.called.cell, child, vars(parent), name, _proxies_of(child))

    def _named_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield parameters, torch modules and modules of autobatch, each with its name."""
        yield from self.parameters().items()
        for name, module in self.module.named_modules():
            yield f"module {name}", module
            if isinstance(module, OwnModule):
                own = module.own._named_parts()
                yield from ((f"{name} own {part}", x) for part, x in own if isinstance(x, Module))

    def _while_recording(self) -> AbstractContextManager[Any]:
        """Return the context in which ops of parameters are recorded."""
        return OfParameters(self)

    def has_buffer(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor shares the memory of one of the module's buffers."""
        memory = tensor.untyped_storage()._cdata
        return any(buffer.untyped_storage()._cdata == memory for buffer in self.module.buffers())

    def computed_weights(self) -> list[tuple[dict[str, Any], str]]:
        """Return the attributes and names of the tensors that hooks compute at each call, as in pruning."""
        with unheard():
            hooks = [(vars(part), hook) for part in self.module.modules() for hook in part._forward_pre_hooks.values()]
            named = [
                (own, getattr(hook, COMPUTING[kind]))
                for own, hook in hooks
                for kind in COMPUTING
                if isinstance(hook, kind)
            ]
            return [(own, name) for own, name in named if name in own]

    def meet(self, instances: Any) -> None:
        """Set the dtype and the device of computations: those of the parameters, or else of the instances.

        If they are on a device, the tensors in the instances are copied to the host together.
        """
        if not self._tensors or self._known.look() is not self._walk:
            self.parameters()
        tensors = self._tensors or tensors_in(instances)
        self.float_dtype = next((x.dtype for x in tensors if x.dtype in FLOATS), self.float_dtype)
        self.default_dtype = torch.get_default_dtype()
        self.device = tensors[0].device if tensors else self.device
        self.copies = None if store_at(self.device) is HOST else HostCopies(instances)

    @property
    def _default_store(self) -> Store:
        """Return the memory in which a module without parameters computes."""
        return store_at(self.device)

    @property
    def _kind(self) -> type:
        return type(self.module)

    def _owners(self) -> Sequence[Any]:
        return self._walk.modules

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters and float buffers, by name; the same dict until they or the modules change.

        If a tensor was replaced, the parameter stays the same and represents the new tensor.
        """
        walk, found, tensors = self._known.look(), self._found, self._tensors
        seen = _look_at(tensors)
        dtypes = [*map(DTYPE, map(TENSOR, walk.named))]
        if walk is self._walk and dtypes == self._dtypes and seen == self._seen:
            return found  # type: ignore[return-value]
        # `n_left` counts for all modules: another one that has a tensor of this one may have dropped its parameter.
        if walk is not self._walk or dtypes != self._dtypes or self._n_left != TensorParameter.n_left:
            self._take(walk, dtypes)
        for parameter, tensor in zip(self._found.values(), self._tensors, strict=True):
            if parameter.refresh(tensor):  # another module held it meanwhile
                self._found = {**self._found}
        if self._n_left != TensorParameter.n_left:  # one has another shape
            return self.parameters()
        self._seen = _look_at(self._tensors)
        return self._found  # type: ignore[return-value]

    @contextmanager
    def holding(self, tensors: Sequence[tuple[TensorParameter, torch.Tensor]]) -> Iterator[None]:
        """Put these tensors in the places of parameters within the context."""
        holders: dict[object, torch.nn.Module] = {id(module): module for module in self._walk.modules}
        places, before = self._walk.by_tensor(), list[tuple[dict[str, Any], str, torch.Tensor]]()
        try:
            for parameter, tensor in tensors:
                for holder, name in () if parameter.is_bound(tensor) else places.get(id(parameter.tensor), ()):
                    if (module := holders.get(holder)) is not None:
                        held: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
                        before.append((held, name, held[name]))
                        held[name] = tensor
            yield
        finally:
            for held, name, tensor in before:
                held[name] = tensor

    def _take(self, walk: Walk, dtypes: list[torch.dtype]) -> None:
        """Update the parameters for the float tensors; drop those whose places were split or removed."""
        before = self._walk
        if not walk.is_same(before) or dtypes != self._dtypes or self._n_left != TensorParameter.n_left:
            is_bound = self._follow(walk)
            floats = {name: tensor for name, tensor in walk.named if tensor.is_floating_point()}
            found = {name: make_parameter(tensor, name) for name, tensor in floats.items()}
            if is_bound or not (are_same(found, self._found) and walk.has_modules_of(before)):
                self._found = found
            self._tensors, self._n_left = [*floats.values()], TensorParameter.n_left
            tables = {id(m.weight) for m in walk.modules if isinstance(m, torch.nn.Embedding) and m.sparse}
            self.sparse = frozenset(name for name, tensor in floats.items() if id(tensor) in tables)
        self._walk, self._dtypes = walk, dtypes

    def _follow(self, walk: Walk) -> bool:
        """Rebind parameters to the tensors now in their places; drop those whose places no longer agree.

        Returns:
            Whether any parameter was rebound.
        """
        is_bound = False
        tensors, places = dict(zip(self._found.values(), self._tensors, strict=True)), walk.by_tensor()
        before = self._walk.by_tensor()
        known = {p: before[id(x)] for p, x in tensors.items() if id(x) in before and not p.is_gone}
        for module in walk.modules:
            # Parameters of an `OwnModule` exist before its first walk, and a tensor may have been replaced since.
            for place, parameter in module.places() if isinstance(module, OwnModule) else ():
                if parameter not in known and not parameter.is_bound(walk.places[place]):
                    known[parameter] = {place}
        for parameter, found in known.items():
            at = [walk.places.get(place) for place in found]
            tensor = at[0]
            # All places of a parameter must hold one tensor, and this tensor must be in no other place.
            if tensor is None or places[id(tensor)] != found or not _can_follow(parameter, tensor):
                parameter.leave()
            elif not parameter.is_bound(tensor):
                parameter.bind(tensor)
                is_bound = True
        return is_bound


def _look_at(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return the state that parameters depend on, besides the dtypes of their tensors."""
    return TensorParameter.n_moved, TensorParameter.n_left, [*map(DATA_PTR, tensors)], [*map(SHAPE, tensors)]


def are_same(found: dict[str, Any], others: dict[str, Any]) -> bool:
    """Return whether two dicts hold the same objects under the same names, in the same order."""
    return [*found] == [*others] and all(map(is_, found.values(), others.values()))


def _can_follow(parameter: TensorParameter, tensor: torch.Tensor) -> bool:
    """Return whether a parameter may switch to a tensor: it has no other parameter, and the same shape."""
    is_free = PARAMETERS.get(id(tensor), parameter) is parameter
    return is_free and tensor.shape == parameter.shape and tensor.is_floating_point()


NOT_FORWARDED = {
    "__new__", "__init__", "__del__", "__call__", "__class__", "__getattribute__", "__getattr__", "__init_subclass__",
    "__class_getitem__", "__subclasshook__",
}  # fmt: skip
"""The special methods that a proxy has itself, or that classes call."""


def _proxies_of(module: nn.Module) -> Callable[[Callable[..., Any]], Any]:
    """Return a function that makes a proxy of a module that calls a given function instead.

    Modules are slow to look up and to call. Attributes and special methods of a proxy are those of the module.
    """
    special = {name for kind in type(module).__mro__[:-1] for name, x in vars(kind).items() if callable(x)}
    names = {name for name in special if name.startswith("__") and name.endswith("__")} - NOT_FORWARDED
    members: dict[str, Any] = {name: _forwarding(module, name) for name in names}
    members |= {
        "__getattr__": lambda self, name: getattr(module, name),
        "__setattr__": lambda self, name, x: setattr(module, name, x),
        "__delattr__": lambda self, name: delattr(module, name),
        "__eq__": lambda self, other: other is self or module == other,
        "__hash__": lambda self: hash(module),
        "__class__": property(lambda self: type(module)),
        "__slots__": (),
    }
    kind = type("Proxy", (), members)
    return lambda function: type("Proxy", (kind,), {"__call__": staticmethod(function), "__slots__": ()})()


def _forwarding(module: nn.Module, name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(module, name)(*args, **kwargs)
