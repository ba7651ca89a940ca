"""Bodies of torch cells: traced, so that each op becomes one of ours, or recorded as one op that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.ir.builder import NeedsNumber
from autobatch.torch.entering import CURRENT
from autobatch.torch.opaque import Body, record_call
from autobatch.torch.structures import on_leaves, on_tensors, tensors_in
from autobatch.torch.tracing import NoCounterpart, Traced, Tracing, kind_of
from autobatch.trace.elements import NeedsLength

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
        with torch.inference_mode(False), torch.enable_grad():
            given = on_leaves(tracing.enter, (args, kwargs))
        if runs == "torch":
            return _run_by_torch(function, given, tracing, "the cell asks for it")
        try:
            with tracing.running():
                result = function(*given[0], **given[1])
            tracing.check_lists()
            return tracing.results(result)
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
    leaves, build = [x for x in tensors_in(given) if isinstance(x, Traced)], _builder(given)

    def call(*tensors: torch.Tensor) -> Any:
        args, kwargs = build(iter(tensors))
        return function(*args, **kwargs)

    kinds = [kind_of(x) for x in leaves]
    try:
        body = Body(function.__qualname__, call, kinds, tracing.dtype, f"is run by torch: {why}")
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise GraphError(f"torch cannot run it: {_told(error)}") from error
    outputs = iter(record_call(body, [x.value for x in leaves]))
    return on_tensors(lambda x: next(outputs), body.analysis.result)


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
