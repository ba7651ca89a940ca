"""Tracing of torch modules: a body runs on tensors that represent values, and each torch op becomes one of ours.

A module's `forward` runs once per signature on `Traced` tensors. Ops of torch are intercepted in two places. Functions
with an op of their own here, such as a linear layer, are intercepted as the module calls them
(`autobatch.torch.functions`). Torch decomposes all others into its basic ops, ATen's, whose counterparts are in
`autobatch.torch.aten`. Shapes and dtypes of results are torch's own: each op also runs on tensors without numbers (the
"meta" device), which raises the errors that torch would raise.

If no argument represents a value or is a parameter, torch computes the numbers, which are constants of the program.

A list of any length is passed to a body as a list of tensors (`autobatch.torch.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autobatch.errors import AutobatchError, GraphError
from autobatch.ir.arguments import Fixed, exact, map_leaves
from autobatch.ir.builder import NeedsData
from autobatch.ir.builder import Traced as TracedValue
from autobatch.ir.program import Attribute, Instruction, Weight, dtype_of, int_limit
from autobatch.ops.define import shape_of
from autobatch.ops.elementwise import instead, stop_gradient
from autobatch.ops.operators import OPS as OPS_OF_VALUES
from autobatch.ops.operators import STAGE, Operators
from autobatch.ops.shaping import stand_for
from autobatch.torch.analysis import (
    CHANGED,
    CHECKING,
    DROPPING,
    REGISTER_HOOK,
    Kind,
    Refused,
    check_constant,
    check_function,
    has_functions_of_users,
    is_changed,
    link,
    needs_one_device,
)
from autobatch.torch.asking import check_numbers, respell
from autobatch.torch.aten import OPS
from autobatch.torch.aten.table import Kinds
from autobatch.torch.entering import CURRENT
from autobatch.torch.functions import FUNCTIONS, NUMBERED
from autobatch.torch.kinds import dtype_of_name, holds_ints, is_float, name_of, shape_outside, shape_within
from autobatch.torch.opaque import Body, record_call
from autobatch.torch.parameters import find_parameter
from autobatch.torch.rows import Unknown, apply, apply_function, refuse, shape_in_torch
from autobatch.torch.structures import beside, on_leaves, on_tensors, tensors_in
from autobatch.trace.elements import Element, NeedsLength, TracedList
from autobatch.trace.hooks import unheard
from autobatch.trace.ragged import Ragged

FACTORIES = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "new_empty_strided",
}  # fmt: skip
"""Ops that read only the shape and dtype of a tensor."""
HOLE = object()  # marks the arguments of an op that are tensors passed at run time
BODIES: WeakValueDictionary[Hashable, Body] = WeakValueDictionary()
"""Ops that torch runs, by their arguments; equal ones must be one object, because programs compare them."""

USED_LATER = (
    "a tensor that represented a value while a cell was traced is used afterwards; a cell must return everything that "
    "others read, and keep nothing."
)


class NoCounterpart(GraphError):
    """The error for an op of torch without a counterpart here."""


class Traced(torch.Tensor):
    """A tensor that represents a value of the cell being traced.

    Attributes:
        value: the value in the program.
        is_own: whether it may be changed in place, because no other tensor shares its numbers.
    """

    value: Any
    is_own: bool

    @staticmethod
    def __new__(
        cls: type[Traced], value: Any, shape: tuple[int, ...], dtype: torch.dtype, is_own: bool = False
    ) -> Traced:
        """Make a tensor of this shape."""
        self: Traced = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        self.value, self.is_own = value, is_own
        return self

    def detached(self) -> Traced:
        """Return another tensor that represents the same value."""
        return Traced(self.value, tuple(self.shape), self.dtype)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<traced tensor of shape {tuple(self.shape)}>"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raise a GraphError for an op after the trace."""
        raise GraphError(USED_LATER)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise a GraphError for functions after the trace that torch itself would reject because of the class."""
        if function in (torch.Tensor.tolist, torch.Tensor.numpy):
            raise GraphError(USED_LATER)
        return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]


class Tracing:
    """The trace of one body.

    Args:
        dtype: the dtype of the computation.

    Attributes:
        lists: the lists of any length among the arguments of the body.
        changed: the op, if any, that would change a module buffer in place.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.changed = dtype, ""
        self.lists: list[TracedList] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record ops of torch as ops of the program within the context."""
        with ExitStack() as modes:
            with unheard():
                for mode in (torch.inference_mode(False), torch.enable_grad(), _Functions(self), _Ops(self)):
                    modes.enter_context(mode)
            yield

    def varies(self, x: torch.Tensor) -> bool:
        """Return whether a tensor represents a value, or is a parameter."""
        return isinstance(x, Traced) or find_parameter(x) is not None

    def values(self, tensors: Iterable[torch.Tensor]) -> list[Any]:
        """Return the values that such tensors represent."""
        return [STAGE.current.wrap(self.value(x)) for x in tensors]

    def enter(self, x: Any) -> Any:
        """Return the tensor that represents an argument of the cell; return other objects unchanged."""
        if isinstance(x, Fixed):
            if isinstance(x.numbers, float):
                return x.numbers
            return torch.tensor(x.numbers, device=(CURRENT.module or CURRENT).device)
        if isinstance(x, TracedList):
            self.lists.append(x)
            return [map_leaves(self.enter, element) for element in x]
        if not isinstance(x, Operators):
            return x
        dtype = self._dtype_of(x)
        made = Traced(x, shape_outside(shape_of(x), dtype), dtype)
        has_gradient = is_float(dtype) and not _is_data(x)
        # Like the result of another cell, it requires a gradient and is not a leaf.
        return link(made, made.detached().requires_grad_()) if has_gradient else made

    def _dtype_of(self, x: Any) -> torch.dtype:
        """Return the dtype that the numbers of an argument represent."""
        if not hasattr(x, "index"):  # a parameter
            return self.dtype
        vars, index = x.builder.vars, x.index
        if name := dtype_of(vars, index):
            return dtype_of_name(name)
        is_int = _is_data(x) and not x.var.source.is_float
        return torch.int64 if int_limit(vars, index) or is_int else self.dtype

    def refuse_lists(self, why: str, unless_live: bool = False) -> None:
        """Raise a NeedsLength error if an argument of the body is a list of any length.

        Args:
            why: the reason in the message.
            unless_live: whether to raise nothing while numbers of the data are values; the body may need these as
                numbers instead.
        """
        if self.lists and not (unless_live and self.lists[0].builder.live):
            raise NeedsLength(self.lists[0].group, why)

    def check_lists(self) -> None:
        """Raise a NeedsLength error if the body combined lists of different lengths element by element."""
        if not self.lists:
            return
        builder = self.lists[0].builder
        for first, second in sorted(builder.ties):
            if builder.lengths[first] != builder.lengths[second]:
                raise NeedsLength(first, "combines it with a list of another length")

    def value(self, x: Any) -> Any:
        """Return the value, parameter or array of constants of a tensor; return other objects unchanged."""
        if isinstance(x, Traced):
            if isinstance(x.value, Unknown):
                raise NeedsLength(x.value.group, x.value.why)
            return x.value
        if not isinstance(x, torch.Tensor):
            return x
        found = find_parameter(x)
        if found is not None:
            return found
        check_constant(x)
        return x.detach().cpu().numpy()

    def apply(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Apply one of our functions to the values of tensors; NotImplemented if it rejects arguments that torch takes.

        Errors that ask for data or lists, or that torch cannot help with, propagate.
        """
        try:
            return function(on_leaves(self.value, args), on_leaves(self.value, kwargs))
        except (NeedsData, Refused):
            raise
        except AutobatchError:
            return NotImplemented

    def results(self, result: Any) -> Any:
        """Convert the result of the body to the result of the cell.

        Raises:
            Refused: the body changes a buffer of the module.
            NoCounterpart: the result depends on a function with a custom backward, or is a constant of another dtype.
        """
        if self.changed:
            raise Refused(
                f"it changes a buffer of the module in place ({self.changed}), but it is traced once for all calls; "
                f"change the buffer outside the cell."
            )
        if has_functions_of_users(tensors_in(result)):
            raise NoCounterpart("an autograd.Function has a backward of its own.")
        return on_leaves(self._result, result)

    def _result(self, x: Any) -> Any:
        value = self.value(x)
        if isinstance(value, Ragged):
            raise NeedsLength(value.var.domain, "returns a row per element")
        if not isinstance(x, torch.Tensor) or x.dtype is self.dtype:
            return value
        if not isinstance(x, Traced) and (is_float(x.dtype) or not holds_ints(self.dtype, x)):
            raise NoCounterpart(f"it returns a constant of {x.dtype}.")
        value = STAGE.current.wrap(value)
        if int_limit(value.builder.vars, value.index):
            return value
        if x.dtype is torch.int64 and not dtype_of(value.builder.vars, value.index):
            return self._checked(value, Kind(tuple(x.shape), x.dtype, has_gradient=False))
        return stand_for(value, dtype=name_of(x.dtype))

    def _checked(self, value: Any, kind: Kind) -> Any:
        """Return ints of the data as a result, checked by a torch kernel that rejects ints that floats would round."""
        key = "ints of the data", kind, self.dtype
        body = BODIES.get(key)
        if body is None:
            why = "has torch check the ints that it returns."
            body = BODIES[key] = Body("clone", torch.clone, [kind], self.dtype, why)
        return record_call(body, [value])[0]

    def leave(self, value: Any, like: torch.Tensor, is_own: bool) -> Traced:
        """Return the tensor that represents a result.

        Args:
            value: the value in the program.
            like: a tensor of the shape and dtype that torch gives.
            is_own: see `Traced`.
        """
        shape = tuple(like.shape)
        held = shape_within(shape, like.dtype)
        assert isinstance(value, Unknown) or shape_in_torch(value) == held, (shape_in_torch(value), held)
        if not torch.is_grad_enabled() and isinstance(value, Operators) and is_float(like.dtype):
            value = stop_gradient(value)
        return Traced(value, shape, like.dtype, is_own)

    def like(self, x: Any) -> Any:
        """Return a tensor without numbers; return scalars that are constants, and other objects, unchanged."""
        if not isinstance(x, torch.Tensor):
            return x
        return _without_numbers(x) if isinstance(x, Traced) or x.dim() else x if x.is_meta else x.cpu()


class _Functions(TorchFunctionMode):
    """The mode that intercepts the functions of torch that have an op of their own here."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__()
        self._tracing = tracing

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        check_function(function, args, kwargs)
        if function in REGISTER_HOOK:
            raise NoCounterpart("a hook is registered on a tensor.")
        if function in CHECKING:
            raise NoCounterpart(f"{function.__name__} checks numbers.")
        if function in DROPPING:
            STAGE.current.note_draw()  # so that graphs recorded in eval() run after train()
        found, tensors = FUNCTIONS.get(function), tensors_in((args, kwargs))
        if found is None or not any(map(self._tracing.varies, tensors)) or not self._fits(found, tensors):
            return self._call(function, args, kwargs)
        with unheard():
            result = self._tracing.apply(partial(apply_function, found), args, kwargs)
            if result is not NotImplemented:
                return on_leaves(lambda x: self._leave(x, tensors), result)
        return self._call(function, args, kwargs)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        function, args, kwargs = respell(function, args, kwargs, self._tracing) or (function, args, kwargs)
        return function(*args, **kwargs)

    def _fits(self, function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether all tensors are floats of the model, or ints that index these."""
        kinds = {x.dtype for x in tensors}
        return kinds == {self._tracing.dtype} or (function in NUMBERED and kinds == {self._tracing.dtype, torch.int64})

    def _leave(self, x: Any, tensors: list[torch.Tensor]) -> Any:
        """Return the tensor that represents a result computed from `tensors`; return other objects unchanged."""
        if not isinstance(x, Operators):
            return x
        like = torch.empty(shape_in_torch(x), dtype=self._tracing.dtype, device="meta")
        made = self._tracing.leave(x, like, is_own=True)
        return link(made, *tensors)


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that intercepts the basic ops into which torch decomposes its functions."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracing = tracing

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False without importing torch's compiler."""
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unheard():
            return self._meet(op, args, kwargs or {})

    def _meet(self, op: Any, args: Any, kwargs: Any) -> Any:
        tracing = self._tracing
        name, tensors = op.overloadpacket.__name__, tensors_in((args, kwargs))
        if not any(map(tracing.varies, tensors)):
            if torch.Tag.nondeterministic_seeded in op.tags:
                raise NoCounterpart(f"its {name} draws random numbers.")
            if any(map(is_changed, op._schema.arguments)) and any(map(_is_buffer, tensors)):
                tracing.changed = name  # raise at the end, because other errors explain more
                return args[0]
            return op(*args, **kwargs)
        check_numbers(op, args, tracing)
        if any(map(is_changed, op._schema.arguments)):
            return self._change(op, name, args, kwargs)
        if name in FACTORIES:
            return self._make(op, args, kwargs)
        counterpart, result = OPS.get(name), NotImplemented
        if counterpart is not None:
            likes = self._likes(op, args, kwargs)
            if counterpart.is_right(Kinds([tracing.like(x) for x in tensors], tensors_in(likes), tracing.dtype)):
                result = tracing.apply(partial(apply, name), args, kwargs)
        if result is NotImplemented:
            result, likes = self._ask_torch(op, name, args, kwargs)
        is_view = any(x.alias_info is not None for x in op._schema.returns)
        # The results share memory with the arguments, so none of them may be changed in place from now on.
        if is_view:
            for x in tensors:
                if isinstance(x, Traced):
                    x.is_own = False
        return _pair(lambda value, like: tracing.leave(value, like, not is_view), result, likes)

    def _make(self, op: Any, args: Any, kwargs: Any) -> Traced:
        """Make a constant of the shape of a value."""
        for x in tensors_in((args, kwargs)):
            if isinstance(x, Traced) and isinstance(x.value, Ragged):
                refuse(op.overloadpacket.__name__, x.value)
        given = on_tensors(lambda x: torch.empty(x.shape, dtype=x.dtype), args)
        made = op(*given, **kwargs)
        if op.overloadpacket.__name__.endswith(("empty", "empty_like", "empty_strided")):
            # Constants are part of the program, which must not depend on what memory held before.
            made.zero_()
        if made.dtype is torch.bfloat16:  # NumPy has no such dtype
            raise NoCounterpart("it makes a constant of bfloat16.")
        return self._tracing.leave(made.cpu().numpy(), made, is_own=True)

    def _ask_torch(self, op: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Record an op without a counterpart as one that torch runs on batches.

        Returns:
            The result, and a tensor without numbers of the same shape and dtype.

        Raises:
            NoCounterpart: torch cannot run this op on batches, but may be able to run the whole cell.
        """
        model, tensors = self._tracing.dtype, tensors_in((args, kwargs))
        traced = [x for x in tensors if isinstance(x, Traced)]
        lack = NoCounterpart(f"torch's op {name} has no counterpart here.")
        is_of_list = any(isinstance(x.value, (Element, Ragged)) for x in traced)
        is_single = [str(x.type) for x in op._schema.returns] == ["Tensor"]  # others return data for their gradients
        if is_of_list or not is_single:
            raise lack
        has_constants = not all(map(self._tracing.varies, tensors))
        holes = on_leaves(lambda x: HOLE if isinstance(x, Traced) else x, (args, kwargs))

        def call(*given: torch.Tensor) -> Any:
            left = iter(given)
            held = beside(given, holes) if has_constants else holes
            args, kwargs = on_leaves(lambda x: next(left) if x is HOLE else x, held)
            return op(*args, **kwargs)

        why = f"has torch run its {name}, which has no counterpart here."
        try:
            likes = self._likes(op, args, kwargs)
            kinds = [kind_of(x) for x in traced]
            # The key holds `id`s of constants. A body keeps them alive, and BODIES forgets it when it is freed.
            key = op, _key_of(holes), tuple(kinds), model
            body = BODIES.get(key)
            if body is None:
                with ThreadPoolExecutor(1) as outside:  # another thread, because torch cannot map within this mode
                    body = BODIES[key] = outside.submit(Body, name, call, kinds, model, why).result()
        except (AutobatchError, RuntimeError, ValueError, IndexError, TypeError):
            raise lack from None
        outputs = record_call(body, [x.value for x in traced])
        return outputs[0], likes

    def _likes(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Run an op on tensors without numbers."""
        kwargs = on_leaves(self._tracing.like, kwargs) | ({"device": "meta"} if "device" in kwargs else {})
        # Tensors in a list must be on one device, so constants without axes lose their numbers there too.
        in_lists = [on_tensors(_without_numbers, x) if isinstance(x, (list, tuple)) else x for x in args]
        try:
            return op(*on_leaves(self._tracing.like, in_lists), **kwargs)
        except RuntimeError as error:
            if not needs_one_device(error):
                raise
            return op(*on_tensors(_without_numbers, args), **on_tensors(_without_numbers, kwargs))

    def _change(self, op: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Change a tensor in place: from now on it represents a new value.

        Raises:
            NoCounterpart: other tensors may see the change, or torch has no op that makes a new tensor instead.
        """
        target = args[0]
        whose = "an argument, a parameter or a view" if self._tracing.varies(target) else "a constant"
        if not name.endswith("_") or not isinstance(target, Traced) or not target.is_own:
            raise NoCounterpart(f"torch changes {whose} in place ({name}), which a cell must not; {CHANGED}")
        like = getattr(getattr(torch.ops.aten, name[:-1]), op._overloadname, None)
        if like is None:
            raise NoCounterpart(f"torch changes a tensor in place ({name}), and has no op that makes a new one.")
        made = self._meet(like, args, kwargs)
        if made.shape != target.shape or made.dtype is not target.dtype:
            raise NoCounterpart(f"torch changes the shape or dtype of a tensor in place ({name}).")
        has_gradient = is_float(target.dtype) and not torch.is_grad_enabled() and isinstance(target.value, Operators)
        # While gradients are off, torch changes the numbers and keeps the gradient of the old value.
        target.value = instead(target.value, made.value) if has_gradient else made.value
        return target


def _without_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def _is_buffer(x: torch.Tensor) -> bool:
    """Return whether a tensor is a buffer, or part of one, of the module being recorded."""
    return CURRENT.module is not None and x.layout is torch.strided and CURRENT.module.has_buffer(x)


def _key_of(x: Any) -> Hashable:
    """Return a key that is equal for equal arguments of an op."""
    if isinstance(x, (list, tuple)):
        return type(x), tuple(map(_key_of, x))
    if isinstance(x, dict):
        return tuple((name, _key_of(part)) for name, part in x.items())
    return id(x) if isinstance(x, torch.Tensor) or x is HOLE else exact(x)


def kind_of(x: Traced) -> Kind:
    """Return the kind of a tensor; it has a gradient if it requires one now, or once frozen parameters are trained."""
    return Kind(tuple(x.shape), x.dtype, x.requires_grad or (is_float(x.dtype) and _reads_parameters(x.value)))


def _reads_parameters(value: Any) -> bool:
    """Return whether a gradient of a value would reach parameters, trained or frozen."""
    left = [value.index] if isinstance(value, TracedValue) else []
    seen = set(left)
    while left:
        source = value.builder.vars[left.pop()].source
        if isinstance(source, Weight):
            return True
        if isinstance(source, Instruction) and source.op is not OPS_OF_VALUES["stop_gradient"]:
            left += [arg for arg in source.args if arg not in seen]
            seen.update(source.args)
    return False


def _is_data(value: Any) -> bool:
    """Return whether a value is a whole attribute of the node's data."""
    return isinstance(getattr(getattr(value, "var", None), "source", None), Attribute)


def _pair(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Apply a function to pairs of corresponding parts of two structures."""
    if isinstance(x, (list, tuple)):
        return type(y)([_pair(function, *both) for both in zip(x, y, strict=True)])
    return function(x, y)
