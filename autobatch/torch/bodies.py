"""Bodies of cells made of torch: traced, so that each op becomes one of ours, or recorded as one op that torch runs."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import cache, wraps
from types import MemberDescriptorType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.ir.builder import NeedsNumber
from autobatch.torch.entering import CURRENT
from autobatch.torch.functions import check_batch_norm
from autobatch.torch.opaque import record_call, try_on_rows
from autobatch.torch.parameters import TENSOR_TYPES
from autobatch.torch.tracing import NoCounterpart, Reading, Traced, Tracing
from autobatch.trace.elements import NeedsLength
from autobatch.trace.hooks import unheard

RUNS = ("auto", "autobatch", "torch")
"""What may run a cell; "auto" is autobatch, and torch for ops that autobatch lacks."""
RUN_BY_TORCH = "is run by torch, which sees a list of tensors"


def make_body(function: Callable[..., Any], runs: str) -> Callable[..., Any]:
    """Make the body of a cell of a function of tensors: it takes values, and gives values.

    Args:
        runs: one of `RUNS`.
    """

    @wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        tracing = Tracing(_dtype_of(args), may_ask=runs == "auto")
        given = on_leaves(tracing.enter, (args, kwargs))
        if runs == "torch":
            tracing.refuse_lists(RUN_BY_TORCH)
            return _run_by_torch(function, given, "the cell asks for it")
        try:
            with tracing.running():
                result = function(*given[0], **given[1])
        except (NeedsLength, NeedsNumber):
            raise
        except NoCounterpart as lack:
            tracing.refuse_lists(RUN_BY_TORCH)
            if runs == "autobatch":
                raise
            return _run_by_torch(function, given, str(lack))
        except Exception as error:  # given lists of one length, the body raises it again if it is the body's
            tracing.refuse_lists(f"does not take it at any length ({error})", unless_live=True)
            raise
        tracing.check_lists()
        return on_leaves(tracing.result, result)

    return body


@cache
def _named(kind: Any) -> Any:
    """The named tuple of the fields of what a function of torch returns, such as `torch.return_types.max`."""
    fields = [name for name, member in vars(kind).items() if type(member) is MemberDescriptorType]
    return namedtuple(kind.__name__, fields)


def on_leaves(function: Callable[[Any], Any], x: Any) -> Any:
    """`x` with a function applied to all that is in its tuples, lists, dicts and dataclasses."""
    if type(x).__module__ == "torch.return_types":
        kind: Any = type(x)
        return _named(kind)(*(on_leaves(function, part) for part in x))
    if is_structure(x):
        return Key.of_structure(x, ()).build([on_leaves(function, part) for part in parts_of(x)])
    return function(x)


def _dtype_of(args: tuple[Any, ...]) -> torch.dtype:
    """The dtype of the parameters of the module that a body belongs to; without any, that of the recording."""
    tensors = args[0].parameters() if args and isinstance(args[0], nn.Module) else ()
    return next((x.dtype for x in tensors if x.dtype in TENSOR_TYPES.values()), CURRENT.dtype)


def _run_by_torch(function: Callable[..., Any], given: Any, why: str) -> Any:
    """Record the call of a function as one op."""
    leaves, build = _tensors_in(given), _builder(given)
    taking = _TakingRows()

    def call(*tensors: torch.Tensor) -> Any:
        args, kwargs = build(iter(tensors))
        with taking if taking.is_needed else nullcontext():
            return function(*args, **kwargs)

    examples = [torch.zeros(x.shape, dtype=x.dtype) for x in leaves]
    reading = Reading()
    try:
        with ExitStack() as modes:
            with unheard():
                for mode in (torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=())):
                    modes.enter_context(mode)
                modes.enter_context(reading)
            result = call(*examples)  # heard: guards take note of what else it reads
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise GraphError(f"torch cannot run it: {str(error).splitlines()[0]}") from error
    taking.is_needed = taking.has_taken
    with unheard():
        given = [(x.value, x.dtype) for x in leaves]
        read = [*reading.found.values()]
        body = try_on_rows(
            function.__qualname__, lambda *xs: _tensors_in(call(*xs)), given, read, f"is run by torch: {why}"
        )
        outputs = record_call(body, [value for value, _ in given])
    left = iter(outputs)
    return on_leaves(lambda x: next(left) if isinstance(x, torch.Tensor) else x, result)


def _builder(x: Any) -> Callable[[Iterator[torch.Tensor]], Any]:
    """What builds `x` from other tensors."""
    if isinstance(x, Traced):
        return next
    if not is_structure(x):
        return lambda left: x
    key, parts = Key.of_structure(x, ()), [_builder(part) for part in parts_of(x)]
    return lambda left: key.build([part(left) for part in parts])


class _TakingRows(TorchFunctionMode):
    """Takes the row that a tensor of one int numbers, for which torch itself would ask for the int.

    It also refuses batch norm in training.

    Attributes:
        has_taken: whether there was any.
        is_needed: whether functions run under it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_needed, self.has_taken = True, False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.batch_norm:
            check_batch_norm(*args, **(kwargs or {}))
        if function is torch.Tensor.__getitem__ and isinstance(args[1], torch.Tensor):
            x, index = args
            if not index.dim() and index.dtype == torch.int64:
                self.has_taken = True
                return torch.index_select(x, 0, index.reshape(1)).squeeze(0)
        return function(*args, **(kwargs or {}))


def _tensors_in(x: Any) -> list[Any]:
    """The tensors in a structure, in order."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [leaf for part in parts_of(x) for leaf in _tensors_in(part)] if is_structure(x) else []
