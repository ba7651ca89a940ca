"""Tracing of modules of torch: a body runs on tensors that stand for values, and each op becomes one of ours.

A module's `forward` runs once per signature on `Traced` tensors. Ops of torch reach us in two places. What has an op of
its own here, such as a linear layer, is met as the function that the module calls (`autobatch.torch.functions`). All
else torch itself takes apart into its basic ops, ATen's, of which `autobatch.torch.aten` has the counterparts. Shapes
and dtypes of results are torch's own: each op also runs on tensors without numbers (the "meta" device), which refuses
what torch would refuse.

Where no argument stands for a value or is a parameter, torch computes the numbers, which are constants of the program.

A list of any length is given to a body as a list of tensors (`autobatch.torch.lists`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Never

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autobatch.errors import GraphError, ShapeError
from autobatch.ops.define import shape_of
from autobatch.ops.operators import Operators
from autobatch.torch.aten import OPS
from autobatch.torch.functions import FUNCTIONS
from autobatch.torch.lists import apply, apply_function
from autobatch.torch.opaque import record_call, try_on_rows
from autobatch.torch.parameters import TensorParameter, find_parameter
from autobatch.torch.rows import Unknown, shape_in_torch
from autobatch.trace.elements import Element, NeedsLength, TracedList, map_values
from autobatch.trace.hooks import unheard
from autobatch.trace.ragged import Ragged

CHANGED = "make a new tensor instead: x = x + 1 for x += 1, torch.cat or torch.where for x[i] = y."
NUMBERS = {
    "_local_scalar_dense": "a number that its condition, .item() or index needs",
    "is_nonzero": "a number that its condition needs",
    "nonzero": "the places where a condition holds",
    "masked_select": "the places where a condition holds",
    "unique_consecutive": "how many values differ",
}
"""Ops of torch whose results have no shape, or no place in the program, until the numbers are known."""


CONDITION_AT = {"where": 0, "masked_fill": 1}
"""Of ops, the argument that is a condition."""
HOLE = object()  # in the arguments of an op, for a tensor that is given when it runs


class NoCounterpart(GraphError):
    """We lack an op of torch."""


class Traced(torch.Tensor):
    """A tensor that stands for a value of the cell that is traced.

    Attributes:
        value: of the program.
        is_own: whether it may be changed in place, because nobody else has its numbers.
    """

    value: Any
    is_own: bool

    @staticmethod
    def __new__(
        cls: type[Traced], value: Any, shape: tuple[int, ...], dtype: torch.dtype, is_own: bool = False
    ) -> Traced:
        """Make one of this shape."""
        self: Traced = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        self.value, self.is_own = value, is_own
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<traced tensor of shape {tuple(self.shape)}>"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse ops after the trace."""
        raise GraphError(
            "a tensor that stood for a value while a cell was traced is used afterwards; a cell returns what others "
            "read, and keeps nothing."
        )


class Tracing:
    """The trace of one body.

    Args:
        dtype: of the computation.
        may_ask: whether torch may run ops that we lack.

    Attributes:
        lists: of any length, that the body is given.
    """

    def __init__(self, dtype: torch.dtype, may_ask: bool) -> None:
        self.dtype, self.may_ask = dtype, may_ask
        self.lists: list[TracedList] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the context, ops of torch become ops of the program."""
        with ExitStack() as modes:
            with unheard():
                for mode in (torch.no_grad(), _Functions(self), _Ops(self)):
                    modes.enter_context(mode)
            yield

    def is_traced(self, x: Any) -> bool:
        """Whether `x` stands for a value, or is a parameter."""
        return isinstance(x, Traced) or (isinstance(x, torch.Tensor) and find_parameter(x) is not None)

    def enter(self, x: Any) -> Any:
        """The tensor that stands for an argument of the cell; what is no value is given as it is."""
        if isinstance(x, TracedList):
            self.lists.append(x)
            return [map_values(self.enter, element) for element in x]
        if not isinstance(x, Operators):
            return x
        is_int = getattr(getattr(getattr(x, "var", None), "source", None), "is_float", True) is False
        return Traced(x, shape_of(x), torch.int64 if is_int else self.dtype)

    def refuse_lists(self, why: str, unless_live: bool = False) -> None:
        """Ask for the length of a list that the body is given, if there is one.

        Args:
            unless_live: not while numbers of the model are values: the body may need them as numbers instead.
        """
        if self.lists and not (unless_live and self.lists[0].builder.live):
            raise NeedsLength(self.lists[0].group, why)

    def check_lists(self) -> None:
        """Ask for the length of lists that the body has combined element by element, and that are not equally long."""
        if not self.lists:
            return
        builder = self.lists[0].builder
        for first, second in sorted(builder.ties):
            if builder.lengths[first] != builder.lengths[second]:
                raise NeedsLength(first, "combines it with a list of another length")

    def value(self, x: Any) -> Any:
        """What a tensor stands for: a value, a parameter, or an array of constants; anything else is given as it is."""
        if isinstance(x, Traced):
            if isinstance(x.value, Unknown):
                raise NeedsLength(x.value.group, x.value.why)
            return x.value
        if not isinstance(x, torch.Tensor):
            return x
        found = find_parameter(x)
        return x.detach().numpy() if found is None else found

    def result(self, x: Any) -> Any:
        """What the cell returns for a tensor, or for anything else."""
        value = self.value(x)
        if isinstance(value, Ragged):
            raise NeedsLength(value.var.domain, "returns a row per element")
        return value

    def leave(self, value: Any, like: torch.Tensor, is_own: bool) -> Traced:
        """The tensor that stands for a result, of the shape and dtype that torch says."""
        shape = tuple(like.shape)
        assert isinstance(value, Unknown) or shape_in_torch(value) == shape, (shape_in_torch(value), shape)
        return Traced(value, shape, like.dtype, is_own)


class Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the parameters that ops of torch read, and refuses ops that change what was there before.

    Attributes:
        found: each once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, TensorParameter] = {}
        self._made: dict[int, torch.UntypedStorage] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unheard():
            return self._meet(op, args, kwargs or {})

    def _meet(self, op: Any, args: Any, kwargs: Any) -> Any:
        name = op.overloadpacket.__name__
        if name in NUMBERS:
            _refuse(name)
        for x in _leaves((args, kwargs)):
            if isinstance(x, torch.Tensor) and (parameter := find_parameter(x)) is not None:
                self.found[id(parameter)] = parameter
        if op._schema.is_mutable and args[0].untyped_storage().data_ptr() not in self._made:
            raise GraphError(
                f"torch changes in place what others read ({name}), as batch norm does in training; {CHANGED}"
            )
        result = op(*args, **kwargs)
        if not any(x.alias_info is not None for x in op._schema.returns):
            memory = [x.untyped_storage() for x in _leaves(result) if isinstance(x, torch.Tensor)]
            self._made.update((one.data_ptr(), one) for one in memory)
        return result


class _Functions(TorchFunctionMode):
    """Meets the functions of torch that have an op of their own here."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__()
        self._tracing = tracing

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = FUNCTIONS.get(function)
        if found is None or not any(map(self._tracing.is_traced, _leaves((args, kwargs)))):
            return function(*args, **kwargs)
        with unheard():
            given = _map(self._tracing.value, (args, kwargs))
            result = apply_function(found, *given)
        if result is NotImplemented:
            return function(*args, **kwargs)
        return _map(self._leave, result)

    def _leave(self, x: Any) -> Any:
        """The tensor that stands for a result."""
        return Traced(x, shape_in_torch(x), self._tracing.dtype, is_own=True) if isinstance(x, Operators) else x


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Meets the ops that torch takes its functions apart into."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracing = tracing

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Import nothing of the compiler of torch."""
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unheard():
            return self._meet(op, args, kwargs or {})

    def _meet(self, op: Any, args: Any, kwargs: Any) -> Any:
        tracing = self._tracing
        name = op.overloadpacket.__name__
        if not any(map(tracing.is_traced, _leaves((args, kwargs)))):
            if torch.Tag.nondeterministic_seeded in op.tags:
                raise NoCounterpart(f"its {name} draws random numbers.")
            return op(*args, **kwargs)
        if op._schema.is_mutable:
            return self._change(op, name, args, kwargs)
        result = NotImplemented
        if name in OPS:
            likes = self._on_meta(op, name, args, kwargs)
            with suppress(ShapeError):  # of ours, where torch takes it
                result = apply(name, _map(tracing.value, args), _map(tracing.value, kwargs))
        if result is NotImplemented:
            result, likes = self._ask_torch(op, name, args, kwargs)
        is_view = any(x.alias_info is not None for x in op._schema.returns)
        if is_view:
            for x in _leaves((args, kwargs)):
                if isinstance(x, Traced):
                    x.is_own = False
        return _pair(lambda value, like: tracing.leave(value, like, not is_view), result, likes)

    def _ask_torch(self, op: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Record an op that we lack as one that torch runs on batches; give the result, and tensors like it.

        Raises:
            NoCounterpart: that is impossible, but torch may be able to run the whole cell.
        """
        leaves = [*_leaves((args, kwargs))]
        traced = [x for x in leaves if isinstance(x, Traced)]
        is_of_list = any(isinstance(x.value, (Element, Ragged)) for x in traced)
        is_condition = any(x.dtype == torch.bool for x in traced)
        if name in NUMBERS or not self._tracing.may_ask or is_of_list or is_condition:
            _refuse(name)
        found = (find_parameter(x) for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, Traced))
        holes = _map(lambda x: HOLE if isinstance(x, Traced) else x, (args, kwargs))

        def call(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
            left = iter(tensors)
            args, kwargs = _map(lambda x: next(left) if x is HOLE else x, holes)
            result = op(*args, **kwargs)
            return [result] if isinstance(result, torch.Tensor) else result

        given, reads = [(x.value, x.dtype) for x in traced], [x for x in found if x is not None]
        why = f"has torch run its {name}, which has no counterpart here."
        try:
            likes = self._on_meta(op, name, args, kwargs)
            with ThreadPoolExecutor(1) as outside:  # of this mode, in which torch does not differentiate or map
                body = outside.submit(try_on_rows, name, call, given, reads, why).result()
        except (GraphError, NotImplementedError):
            _refuse(name)
        outputs = record_call(body, [value for value, _ in given])
        return (outputs[0] if isinstance(likes, torch.Tensor) else outputs), likes

    def _on_meta(self, op: Any, name: str, args: Any, kwargs: Any) -> Any:
        """What an op gives, without numbers."""
        kwargs = _map(self._like, kwargs) | ({"device": "meta"} if "device" in kwargs else {})
        return op(*self._likes(name, args), **kwargs)

    def _likes(self, name: str, args: Any) -> Any:
        """Arguments without numbers. A condition made outside of the cell lies among floats."""
        likes = [*_map(self._like, args)]
        if name in CONDITION_AT:
            likes[CONDITION_AT[name]] = likes[CONDITION_AT[name]].bool()
        return likes

    def _like(self, x: Any) -> Any:
        """A tensor without numbers; all floats are of the computation's dtype."""
        if not isinstance(x, torch.Tensor):
            return x
        dtype = self._tracing.dtype if x.is_floating_point() else x.dtype
        return torch.empty(x.shape, dtype=dtype, device="meta")

    def _change(self, op: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Change a tensor in place: it stands for another value from now on, if nobody else has it."""
        target = args[0]
        if not name.endswith("_"):
            _refuse(name)
        if not isinstance(target, Traced) or not target.is_own:
            whose = "a constant" if not self._tracing.is_traced(target) else "an argument, a parameter or a view"
            raise GraphError(f"torch changes {whose} in place ({name}), which a cell must not; {CHANGED}")
        changing = getattr(getattr(torch.ops.aten, name[:-1]), op._overloadname)
        made = self._meet(changing, args, kwargs)
        if made.shape != target.shape:
            raise GraphError(f"torch changes the shape of a tensor in place ({name}), which a cell must not; {CHANGED}")
        target.value = made.value
        return target


def _refuse(name: str) -> Never:
    if name in NUMBERS:
        raise GraphError(
            f"a module asks for {NUMBERS[name]} (torch's {name}), but it is only computed when the mini-batch runs; "
            f"choose between values by torch.where, or decide outside of the cell, after await ab.value(x)."
        )
    raise NoCounterpart(f"torch's op {name} has no counterpart here.")


def _leaves(x: Any) -> Iterator[Any]:
    """All that is in lists, tuples and dicts."""
    if isinstance(x, (list, tuple)):
        for part in x:
            yield from _leaves(part)
    elif isinstance(x, dict):
        yield from _leaves(list(x.values()))
    else:
        yield x


def _map(function: Callable[[Any], Any], x: Any) -> Any:
    """`x` with a function applied to all that is in its lists, tuples and dicts."""
    if isinstance(x, (list, tuple)):
        return type(x)([_map(function, part) for part in x])
    return {key: _map(function, part) for key, part in x.items()} if isinstance(x, dict) else function(x)


def _pair(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Apply a function to the parts of two equal structures."""
    if isinstance(x, (list, tuple)):
        return type(y)([_pair(function, *both) for both in zip(x, y, strict=True)])
    return function(x, y)
