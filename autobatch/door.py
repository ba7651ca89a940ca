"""The public door: what a user names (a policy, a backend, passes) is found and checked, and a `Batched` made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from autobatch.batched import Batched
from autobatch.devices.store import HOST
from autobatch.errors import DataError, GraphError, PlanError
from autobatch.graph.rewrite.passes import DEFAULT, to_passes
from autobatch.ir.precision import check_precision
from autobatch.params.module import Module, modules_in, shared_store
from autobatch.plan.budget import check_max_bytes
from autobatch.plan.plan import Planner
from autobatch.plan.plan_cache import DEFAULT_SIZE
from autobatch.runtime import make_backend
from autobatch.runtime.backend import Backend
from autobatch.runtime.settings import Settings, Waiting
from autobatch.schedule.schedule import Policy


def batched(
    function: Callable[[Any], Any],
    *,
    module: Module | None = None,
    policy: str | Policy = "auto",
    backend: str | Backend = "auto",
    planner: Planner | None = None,
    rewrites: Sequence[str] = DEFAULT,
    seed: int = 0,
    max_bytes: int | None = None,
    plan_cache: int = DEFAULT_SIZE,
    precision: str = "float32",
    threads: int | str = 1,
    tune: Any = "off",
    max_rounds: int | None = None,
    on_error: str = "raise",
) -> Batched:
    """Turn a function over one instance into one over mini-batches.

    Args:
        function: takes one instance and calls cells; a method of a `Module`, a `Module` or any other object with
            `__call__`, a `functools.partial`, or any function. An async one looks at its own values, by `ab.value`.
        module: the owner of the parameters. By default the module that `function` is or is a method of; for another
            object, the module among its attributes, and for a partial among its arguments, that holds the others there.
        policy: what decides the batches: a name, the path of a saved policy, or a `Policy`; see
            `autobatch.policies.get`. "auto" is a rule for the backend, `autobatch.policies.AUTO`.
        backend: what computes: a name, or a `Backend`; "auto" compiles cells for the processor ("cpu"), which takes
            seconds when a model runs for the first time, and half a minute more where autobatch never ran before; or
            for the GPU ("cuda"), if the parameters were moved there.
        planner: what decides where values live.
        rewrites: the passes that simplify the graph, see `autobatch.graph.rewrite.passes`. "all" adds the one that is
            off by default: nodes of a mini-batch that compute the same are computed once.
        seed: of random numbers (dropout, draws).
        max_bytes: what the values of a mini-batch may take, with their gradients in training: the memory that
            `explain` names, without parameters and their gradients. What is on its way within one batch counts too,
            but on the reference backend, which makes arrays for it. A mini-batch that would take more is run in
            parts; its results are those of the whole, to rounding.
        plan_cache: how many plans to keep. A mini-batch of recorded graphs that comes again, be it of other objects
            that hold the same, is not planned again; its results are the same, to the bit. 0 keeps none.
        precision: of matrix products: "float32", that is, the module's own float type; or "bf16", for float32 modules:
            both operands are rounded to 16 bits, sums and all else stay as they are, see `autobatch.ir.precision`.
        threads: that share the pieces of batches (backend "cpu") or compute matrix products (others), and no more than
            there are cores to use; "auto" measures one against more on the first mini-batches of each size, and goes
            back to one where others need the cores, see `autobatch.tuning`.
        tune: "off" runs as the options say; "auto" measures on the first mini-batches of each size which rewrites and
            layouts are faster, and keeps that in the user's cache. What `decisions` holds, or the path of a JSON file
            with that, pins it. Variants differ in time and rounding only.
        max_rounds: of an async function, which waits for values: the most rounds of a mini-batch, after which it is an
            error of each instance that it still waits; None for no limit.
        on_error: of an async function: "raise" the first error of an instance, and end the others; or "return" errors
            in the place of results, which then come as a list, one for each instance; where gradients are asked for,
            errors are raised.

    Several threads may call it, and train and infer side by side: calls of all functions, and steps of optimizers, run
    one after the other in the order in which they come, beside whoever records; see `autobatch.system.turns`. With
    `threads` a call uses more cores.

    Raises:
        PolicyError, BackendError: there is no such policy, backend, precision or number of threads.
        PlanError: `max_bytes` is no number of bytes, `plan_cache` none of plans, or `tune` no decisions.
        GraphError: there is no such rewrite, or `function` or `module` are none.

    >>> import autobatch as ab
    >>> @ab.cell
    ... def double(x):
    ...     return 2.0 * x
    >>> ab.batched(lambda x: double(double(x)))([np.ones(2), np.zeros(2)])
    array([[4., 4.],
           [0., 0.]], dtype=float32)
    """
    from autobatch import policies
    from autobatch.memplan.planner import MemoryPlanner

    if module is None:
        module = _module_of(function)
    if not callable(function) or not isinstance(module, Module | None):
        raise GraphError(
            f"ab.batched(function, module=...) takes a function over one instance and a Module, not {_told(function)} "
            f"and {_told(module)}; give a method of a model, such as model.loss, or a model that has __call__."
        )
    backend = make_backend(backend, HOST if module is None else shared_store(module))
    if isinstance(policy, str):
        policy = policies.get(policy, backend.name)
    max_bytes = check_max_bytes(max_bytes)
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise DataError(f"seed={seed!r} is no seed of random numbers; give an int that is not negative.")
    check_precision(precision, np.dtype(np.float32) if module is None else module.dtype, backend.name)
    planner = planner or MemoryPlanner()
    waiting = _check_waiting(max_rounds, on_error)
    settings = Settings(to_passes(rewrites), int(seed), max_bytes, plan_cache, precision, threads, tune, waiting)
    return Batched(function, module, policy, planner, backend, settings)


def _check_waiting(max_rounds: int | None, on_error: str) -> Waiting:
    if max_rounds is not None and (not isinstance(max_rounds, int | np.integer) or max_rounds < 0):
        raise PlanError(f"max_rounds={max_rounds!r} is no number of rounds; give an int that is not negative, or None.")
    if on_error not in ("raise", "return"):
        raise PlanError(f"on_error={on_error!r}: errors of instances are 'raise'd or 'return'ed.")
    return Waiting(max_rounds, on_error)


def _module_of(function: Any) -> Module | None:
    """The module whose parameters a function reads: of those at hand the one that holds all; None if there is none."""
    found = {id(module): module for module in _modules_at(function)}
    holding = [x for x in found.values() if found.keys() <= {id(part) for part in modules_in(x)}]
    return holding[0] if holding else None


def _modules_at(function: Any) -> list[Module]:
    """The modules that a function is, is a method of, or has in attributes; a partial has its arguments too."""
    if isinstance(function, Module):
        return [function]
    if isinstance(function, partial):
        given = *function.args, *function.keywords.values()
        return [*_modules_at(function.func), *(x for x in given if isinstance(x, Module))]
    owner = getattr(function, "__self__", function)
    held = (owner,) if isinstance(owner, Module) else getattr(owner, "__dict__", {}).values()
    return [x for x in held if isinstance(x, Module)]


def _told(x: Any) -> str:
    """What an error says of an argument; a module, which prints as a tree, by its class."""
    return f"a {type(x).__name__}" if isinstance(x, Module) else repr(x)
