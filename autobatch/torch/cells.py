"""Cells made from torch: a module, or a function of tensors, is traced once and batched over calls.

A body is traced, so that each op becomes one of ours, or recorded as one op that torch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from inspect import signature
from itertools import chain
from types import MethodType
from typing import Any, ClassVar, TypeVar, overload

import numpy as np
import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from autobatch._native import BoundCell
from autobatch.arguments import show
from autobatch.errors import GraphError
from autobatch.ir.arguments import BY_VALUE, Key, is_structure, parts_of
from autobatch.ir.builder import Builder, NeedsNumber
from autobatch.keywords import checked
from autobatch.ops.operators import STAGE, Operators
from autobatch.params.parameter import Parameter
from autobatch.torch.entering import CURRENT
from autobatch.torch.opaque import Body, record_call
from autobatch.torch.structures import beside, on_leaves, on_tensors, tensors_in
from autobatch.torch.tracing import NoCounterpart, Traced, Tracing, kind_of
from autobatch.trace.cell import Cell
from autobatch.trace.elements import NeedsLength
from autobatch.trace.handles import Rows, Value
from autobatch.trace.hooks import LOOKUPS, REPLACED

RUNS = ("auto", "autobatch", "torch")
"""The libraries that may run a cell; "auto" is autobatch, or torch if that is impossible."""
RUN_BY_TORCH = "is run by torch, which sees a list of tensors"

WITHOUT_NUMBERS = "its data is not allocated yet", "Tensor.item() cannot be called on meta tensors"
"""Texts of torch's errors when C++ code reads the numbers of a tensor that has none."""
READS_NUMBERS = (
    "a constructor such as torch.LongTensor(...) reads numbers that are only computed when the mini-batch runs; write "
    "torch.tensor(..., dtype=torch.int64)."
)


def make_body(function: Callable[..., Any], runs: str) -> Callable[..., Any]:
    """Convert a function of tensors to the body of a cell, which takes and returns values.

    Args:
        function: the function.
        runs: one of `RUNS`.
    """

    @wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        tracing = Tracing(CURRENT.dtype if CURRENT.module is None else CURRENT.module.float_dtype)
        if CURRENT.module is not None:
            _ = CURRENT.module.default_dtype  # constants that the body makes depend on it; the guard of a trace sees it
        with torch.inference_mode(False), torch.enable_grad():
            given = on_leaves(tracing.enter, (args, kwargs))
        if runs == "torch":
            return _run_by_torch(function, given, tracing, "the cell asks for it")
        try:
            with _keeping(_computed_weights()), tracing.running():
                result = function(*given[0], **given[1])
            tracing.check_lists()
            return tracing.results(result)
        # The tracer answers these by tracing again, with a known length, or with the number as a constant.
        except (NeedsLength, NeedsNumber):
            raise
        except NoCounterpart as lack:
            tracing.refuse_lists(RUN_BY_TORCH)
            if runs == "autobatch":
                raise
            return _run_by_torch(function, given, tracing, str(lack))
        except Exception as error:  # if it is the body's own error, a trace with known lengths raises it again
            tracing.refuse_lists(f"does not take it at any length ({error})", unless_live=True)
            if isinstance(error, GraphError):
                raise
            if runs == "autobatch":
                if type(error) is RuntimeError:  # raised by torch
                    raise GraphError(f"torch cannot trace it: {_told(error)}") from error
                raise
            try:
                return _run_by_torch(function, given, tracing, f"tracing it fails: {error}")
            except GraphError as refusal:
                if type(error) is RuntimeError:
                    raise refusal from error  # the refusal has the user's line
                raise error from None

    return body


def _run_by_torch(function: Callable[..., Any], given: Any, tracing: Tracing, why: str) -> Any:
    """Record the call of a function as one op.

    Raises:
        GraphError: torch cannot run it.
    """
    tracing.refuse_lists(RUN_BY_TORCH)
    found, build = tensors_in(given), _builder(given)
    leaves = [x for x in found if isinstance(x, Traced)]
    has_constants = len(leaves) < len(found)
    weights = _computed_weights()

    def call(*tensors: torch.Tensor) -> Any:
        args, kwargs = build(iter(tensors))
        if has_constants:
            args, kwargs = beside(tensors, (args, kwargs))
        return function(*args, **kwargs)

    kinds = [kind_of(x) for x in leaves]
    try:
        run = _keeping(weights)(call) if weights else call
        body = Body(function.__qualname__, run, kinds, tracing.dtype, f"is run by torch: {why}")
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise GraphError(f"torch cannot run it: {_told(error)}") from error
    outputs = iter(record_call(body, [x.value for x in leaves]))
    return on_tensors(lambda x: next(outputs), body.analysis.result)


def _computed_weights() -> list[tuple[dict[str, Any], str]]:
    return [] if CURRENT.module is None else CURRENT.module.computed_weights()


@contextmanager
def _keeping(places: list[tuple[dict[str, Any], str]]) -> Iterator[None]:
    """Put back the tensors in these places when the context ends."""
    before = [(attributes, name, attributes[name]) for attributes, name in places if name in attributes]
    try:
        yield
    finally:
        for attributes, name, tensor in before:
            attributes[name] = tensor


def _told(error: Exception) -> str:
    """Return the first line of torch's message, or a better one for a constructor that reads missing numbers."""
    text = str(error).splitlines()[0]
    return READS_NUMBERS if any(words in text for words in WITHOUT_NUMBERS) else text


def _builder(x: Any) -> Callable[[Iterator[torch.Tensor]], Any]:
    """Return a function that rebuilds `x` with other tensors in place of the traced ones."""
    if isinstance(x, Traced):
        return next
    if not is_structure(x):
        return lambda left: x
    key, parts = Key.of_structure(x, ()), [_builder(part) for part in parts_of(x)]
    return lambda left: key.build([part(left) for part in parts])


GLOBAL_HOOKS: dict[str, Any] = {
    kind: getattr(nn.modules.module, f"_global_{kind}_hooks")
    for kind in ("forward", "forward_pre", "backward", "backward_pre")
}
SPACES: dict[str, Any] = {
    "torch": torch, "Tensor": torch.Tensor, "TensorBase": torch._C.TensorBase, "functional": nn.functional,
    "linalg": torch.linalg, "special": torch.special, "fft": torch.fft,
}  # fmt: skip
"""The namespaces of torch's functions, by the names in pickles."""
NORMS = SpectralNorm, nn.utils.parametrizations._SpectralNorm
DROPOUT = nn.modules.dropout._DropoutNd
LOOKUPS[nn.Module.__getattr__.__code__] = ("_parameters", "_buffers", "_modules")
CALLED = "_compiled_call_impl"
"""The module attribute that overrides the function that a call runs; set for cells while instances are recorded."""
REPLACED.add(CALLED)
M = TypeVar("M", bound=nn.Module)
F = TypeVar("F", bound=Callable[..., Any])


class TorchCell(Cell):
    """A function of tensors marked with `abt.cell`, or the `forward` of a marked module.

    Args:
        function: the function of tensors.
        runs: the library that runs it, see `abt.cell`.
        name: the name in reports; by default the function's.

    Attributes:
        method: the name of the function as a method.
        own: the function that a module runs in place of the method of its class; None for that of the class.
    """

    own: Callable[..., Any] | None = None
    _called: MethodCell | None = None

    reads: ClassVar[Mapping[str, Any]] = {"hooks of all modules": GLOBAL_HOOKS}
    may_change: ClassVar[bool] = False
    is_direct: ClassVar[bool] = False

    def __init__(self, function: Callable[..., Any], runs: str = "auto", name: str = "") -> None:
        if runs not in RUNS:
            raise GraphError(f"runs must be one of {', '.join(map(repr, RUNS))}, got {runs!r}.")
        super().__init__(make_body(_with_signature(function), runs))
        self.name, self.runs, self.method = name or self.name, runs, self.function.__name__
        self.eager = function

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else BoundTorchCell(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self, None, args, kwargs)

    def called_on(self, kind: Any) -> MethodCell:
        """Return the cell that a call of a module of a class runs, if this is its `forward`; the same each time."""
        if self.own is None:
            return cell_of_method(kind, "__call__", self.runs)
        if self._called is None:
            self._called = MethodCell(kind, "__call__", self.runs, self.own)
        return self._called

    def __reduce__(self) -> Any:
        """Return the qualified name of the function, by which pickle finds the cell."""
        return self.function.__qualname__


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; wrap a C function without a signature in one that takes any positional arguments."""
    try:
        signature(function)
    except ValueError:
        return wraps(function, assigned=("__name__", "__qualname__", "__doc__"))(lambda *args: function(*args))
    return function


class MethodCell(TorchCell):
    """A method of a class of modules as a cell; `__call__` is `forward` with its hooks, as in a call of the module.

    Args:
        kind: the class.
        method: the name of the method.
        runs: the library that runs it, see `abt.cell`.
        own: see `TorchCell`.
    """

    def __init__(self, kind: type[nn.Module], method: str, runs: str, own: Callable[..., Any] | None = None) -> None:
        is_call = method == "__call__"
        function: Callable[..., Any] = getattr(kind, "forward" if is_call else method) if own is None else own
        function = _without_iterations(_with_hooks(function) if is_call else function)
        super().__init__(function, runs, kind.__name__ if method in ("__call__", "forward") else "")
        self.method, self.own = method, own

    @property
    def path(self) -> str:
        """Return the attribute path of the method on a module."""
        return "forward.called" if self.method == "__call__" else self.method


class Cut:
    """A slice in an index as a static argument; slices are not hashable before Python 3.12."""

    __slots__ = ("parts",)

    def __init__(self, cut: slice) -> None:
        self.parts = cut.start, cut.stop, cut.step

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cut) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)


BY_VALUE.add(Cut)


class FunctionCell(TorchCell):
    """A function of torch, such as `torch.cat`, as a cell; arguments that are neither values nor arrays are part of its
    type.
    """

    is_single_op = True

    def __init__(self, function: Callable[..., Any]) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = on_leaves(lambda x: slice(*x.parts) if type(x) is Cut else x, (args, kwargs))
            return function(*args, **kwargs)

        super().__init__(call, name=function.__name__.strip("_"))
        self.eager = function

    def is_static(self, name: str, x: Any) -> bool:
        """Return whether part of the arguments is a parameter, or neither a value nor an array."""
        return isinstance(x, Parameter) or (not isinstance(x, (np.ndarray, Operators)) and not is_structure(x))

    def __reduce__(self) -> Any:
        """Return the namespace and name of a torch function for pickle; its `__name__` may not identify it."""
        for space, holder in SPACES.items():
            for name, x in vars(holder).items():
                if x is self.eager:
                    return _cell_of_name, (space, name)
        return cell_of_function, (self.eager,)


@cache
def cell_of_function(function: Callable[..., Any]) -> FunctionCell:
    """Return the cell of a function of torch, the same each time."""
    return FunctionCell(function)


def _cell_of_name(space: str, name: str) -> FunctionCell:
    return cell_of_function(getattr(SPACES[space], name))


class BoundTorchCell(BoundCell):
    """A cell of torch bound to the module whose parameters it reads; also as the `forward` of a module."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self.cell, self.owner, args, kwargs)

    @property
    def called(self) -> BoundTorchCell:
        """Return the cell that a call of the module runs, if this is its `forward`."""
        return BoundTorchCell(self.cell.called_on(type(self.owner)), self.owner)

    def __reduce__(self) -> Any:
        """Return the arguments of `_bind`, so that the copy of a module gets a cell bound to the copy."""
        return _bind, (self.owner, self.cell.method, self.cell.runs, self.cell.own)


def _call(cell: Any, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    current = STAGE.current
    # Within the trace of another cell, the body is called directly and becomes part of that cell.
    if current is not None and not isinstance(current, Builder):
        if isinstance(cell, MethodCell) and cell.method == "forward" and _has_backward_hooks(owner):
            raise GraphError(
                f"a {cell.name} has backward hooks, which its forward alone does not run; call the module itself, as "
                f"part of the module given to abt.batched, and record its instances in the thread that runs them."
            )
        return without_gradient(current.call_cell(cell, owner, args, kwargs))
    args, kwargs = on_leaves(lambda x: _to_tensor(x, owner, (args, kwargs)), (args, kwargs))
    return cell.eager(*args, **kwargs) if owner is None else cell.eager(owner, *args, **kwargs)


def without_gradient(x: Any) -> Any:
    """Detach recorded values if grad mode is off but was on when the recording began."""
    return x if torch.is_grad_enabled() or not CURRENT.has_gradients else on_leaves(_detached, x)


def returning_without_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its result is detached while grad mode is off."""
    return lambda *args, **kwargs: without_gradient(function(*args, **kwargs))


def _detached(x: Any) -> Any:
    if not isinstance(x, Value) or not (x.dtype.is_floating_point or x.dtype.is_complex):  # type: ignore[attr-defined]
        return x
    if isinstance(x, Rows):
        return x.of([_detached(row).ref for row in x])
    return STAGE.current.call_cell(cell_of_function(torch.Tensor.detach), None, (x,), {})


@overload
def cell(what: M, *, runs: str = "auto") -> M: ...
@overload
def cell(what: F, *, runs: str = "auto") -> F: ...
@overload
def cell(*, runs: str = "auto") -> Callable[[F], F]: ...
@checked()
def cell(what: Any = None, *, runs: str = "auto") -> Any:
    """Make a cell from a torch module, or from a function or method of tensors.

    A module is returned itself, with the same class, parameters and names. A call while instances are recorded makes a
    node; any other call computes immediately.

    Args:
        what: an `nn.Module`, or a function or a method of a module. It takes tensors, tuples, lists and dicts of them,
            ints, floats, bools and strings, and returns tensors in any such structure. An int becomes a tensor of one
            int. Shapes are those of one instance; a batch axis has length one. A list may have any length. All lengths
            share one type if the body treats all elements alike; otherwise each length is a type. If the body needs
            ints, floats or bools of the data as numbers, each number is a type too.
        runs: "autobatch" compiles it to a program, in which torch runs only single ops without a counterpart; "torch"
            lets torch run all of it, on batches; "auto" is "autobatch", or "torch" if that is impossible. `explain`
            shows what torch runs.

    Raises:
        GraphError: `what` or `runs` is invalid.
    """
    if what is None:
        return lambda what: cell(what, runs=runs)
    if hasattr(what, "_orig_mod"):
        raise GraphError(
            "abt.cell must be given the module itself, not a torch.compile wrapper: autobatch compiles it."
        )
    if isinstance(what, nn.Module):
        what.forward = _bind(what, "forward", runs, _own(what, "forward", vars(what).get("forward")))
        return what
    if isinstance(what, MethodType) and isinstance(what.__self__, nn.Module):
        return _bind(what.__self__, what.__name__, runs, _own(what.__self__, what.__name__, what))
    if not callable(what):
        raise GraphError(f"abt.cell must be given a torch module or a function of tensors, got {show(what)}.")
    return TorchCell(what, runs)


@cache
def cell_of_method(kind: Any, method: str, runs: str) -> MethodCell:
    """Return the cell of a method of a class of modules, the same each time."""
    return MethodCell(kind, method, runs)


def _bind(module: nn.Module, method: str, runs: str, own: Callable[..., Any] | None = None) -> BoundTorchCell:
    kind: Any = type(module)
    return BoundTorchCell(
        cell_of_method(kind, method, runs) if own is None else MethodCell(kind, method, runs, own), module
    )


def _own(module: nn.Module, method: str, given: Any) -> Callable[..., Any] | None:
    """Return the replaced function of a method, which takes the module first; None for the method of the class."""
    function: Any
    if isinstance(given, BoundTorchCell) and given.owner is module:
        cell = given.cell
        of_kind = getattr(type(module), cell.method) if isinstance(cell, MethodCell) else cell.eager
        function = of_kind if cell.own is None else cell.own
    elif isinstance(given, MethodType) and given.__self__ is module:
        function = given.__func__
    else:
        function = None if given is None else WithoutModule(given)
    return None if function is getattr(type(module), method, None) else function


class WithoutModule:
    """A function as a method that does not take its module, such as a `forward` replaced by a closure or a partial.

    Args:
        function: the function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _with_hooks(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a call of a module runs: `forward`, with the module's hooks and global hooks."""

    @wraps(forward)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for part in self.modules():
            if part._is_full_backward_hook is False and part._backward_hooks:
                raise GraphError(
                    f"a {type(part).__name__} has a hook of register_backward_hook, which cannot see gradients inside "
                    f"a cell; use register_full_backward_hook."
                )
        given, kinds = list(args), list(signature(forward).parameters.values())[1:]
        while given and len(given) <= len(kinds) and given[-1] is kinds[len(given) - 1].default:
            given.pop()  # a call of a cell passes defaults explicitly; hooks must not see them
        result = self._call_impl(*given, **kwargs)  # type: ignore[no-untyped-call]
        if isinstance(STAGE.current, Builder) and any(isinstance(part, DROPOUT) for part in self.modules()):
            STAGE.current.note_draw()  # so that graphs recorded in eval() run after train()
        return result

    return call


def _without_iterations(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that tracing raises a GraphError if a spectral norm of the module would change buffers."""

    @wraps(method)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for name, part in self.named_modules() if STAGE.current is not None else ():
            norms = (part, *part._forward_pre_hooks.values())
            if part.training and any(isinstance(x, NORMS) and x.n_power_iterations for x in norms):
                raise GraphError(
                    f"{name or type(self).__name__!r} has a spectral norm in train(), which changes its buffers at "
                    f"every call, but calls in a batch have no order; call eval() on that part, or compute the weight "
                    f"outside cells."
                )
        return method(self, *args, **kwargs)

    return call


def _has_backward_hooks(module: nn.Module) -> bool:
    """Return whether a call of a module runs backward hooks."""
    own = module._backward_hooks, module._backward_pre_hooks
    return any((*own, *(hooks for kind, hooks in GLOBAL_HOOKS.items() if kind.startswith("backward"))))


def _to_tensor(x: Any, owner: Any, given: Any) -> Any:
    """Convert an int to the tensor that a traced body would get, on the device of the tensors given with it, or else
    of the owner's parameters; return other objects unchanged.
    """
    if type(x) is not int:
        return x
    parameters = owner.parameters() if isinstance(owner, nn.Module) else ()
    other = next(chain(tensors_in(given), parameters), None)
    return torch.tensor(x, device=None if other is None else other.device)
