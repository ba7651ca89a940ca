"""A function over one instance that calls modules of torch, run on mini-batches, as one function in torch's own graph.

The outputs are tensors. Their `grad_fn` is a single function: it runs our backward stages, and gives torch the gradient
of each parameter and of each tensor among the instances, which torch accumulates and passes on as ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Self, overload
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from autobatch.api import Batched
from autobatch.api import batched as batched_arrays
from autobatch.backends.base import RowReader, Run
from autobatch.backends.options import Options
from autobatch.engine.counts import Clock, Step
from autobatch.engine.execution import Executor, join_columns
from autobatch.engine.group import ENTERED
from autobatch.engine.input_gradients import InputGradients
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.jit.arrays import LongArray
from autobatch.params.module import Module
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.plan.budget import Part
from autobatch.system.turns import run_lock
from autobatch.torch.calls import Tape, Total
from autobatch.torch.entering import TensorInputs
from autobatch.torch.kinds import as_tensor
from autobatch.torch.modules import TorchModule
from autobatch.torch.opaque import reads_of
from autobatch.torch.own import as_torch
from autobatch.torch.parameters import TensorParameter
from autobatch.trace.record import MiniBatch, Recorder, list_instances
from autobatch.trace.results import stack_results


class TorchBatched(Batched):
    """A function over one instance, run on mini-batches; made by `abt.batched`."""

    executor: TorchExecutor
    _is_served = False

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.executor = TorchExecutor(self.recorder)

    def __call__(self, instances: Iterable[Any]) -> Any:
        """Compute `[function(x) for x in instances]`, stacked, as tensors that can be differentiated once.

        Args:
            instances: whatever the function takes, or graphs from `record_all`.

        Returns:
            What the function returns, with tensors (B, *shape); lists, and what is in them, come back per instance.
            A tensor of shape (0,) for no instances.

        Raises:
            GraphError: torch compiles, traces or transforms the call; or a group of `ab.distributed` is entered.
        """
        _refuse_transforms()
        if not torch.is_grad_enabled():
            return _to_tensors(super().__call__(instances))
        if ENTERED.group is not None:
            raise GraphError(
                "a function of abt.batched gives tensors, whose gradients ab.distributed.group does not add up; leave "
                "the group, and wrap the module in torch's DistributedDataParallel."
            )
        instances = self._met(instances)
        clock = Clock(profiled=self._profile is not None)
        inputs = TensorInputs(self.recorder.calls)
        with inputs.recording_tensors():
            minibatch = self.recorder.read(instances)._replace(inputs=inputs)
            with run_lock(), self._planned(minibatch, clock, training=True, has_aux=None) as (step, rounds):
                if not step.graph.n_instances:
                    return torch.zeros(0)
                passing = Passing(self, step, minibatch)
                self.step += 1
                self._finish(step, rounds)
        columns: list[Any] = list(_Passed.apply(passing, *passing.tensors))  # type: ignore[no-untyped-call]
        return _to_tensors(stack_results(step.graph.structures, self._typed(columns)))

    def record_all(self, instances: Iterable[Any], progress: bool = False, workers: int = 1) -> list[Graph]:
        """Record each instance once, see `autobatch.batched.Batched.record_all`."""
        return super().record_all(self._met(instances), progress, workers)

    def _read(
        self, instances: Iterable[Any], inputs: bool = False, keys: LongArray | None = None
    ) -> tuple[MiniBatch, Clock]:
        return super()._read(self._met(instances), inputs, keys)

    def _met(self, instances: Iterable[Any]) -> list[Any]:
        """The instances, in whose dtype a module without parameters computes."""
        listed = list_instances(instances)
        module = self.recorder.module
        assert isinstance(module, TorchModule)
        module.meet(listed)
        return listed

    def of_programs(self, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Self:
        """Another engine, of what `wrap` makes of the function; the one thread that may use it has no gradients."""
        twin = super().of_programs(wrap)
        twin._is_served = True
        return twin

    def options_now(self, training: bool, has_aux: bool | None) -> Options:
        """The options with the facts of a call, see `autobatch.engine.engine.Engine`."""
        if self._is_served:
            torch.set_grad_enabled(False)
            self._met(())
        return super().options_now(training, has_aux)

    def results_of(self, structures: Sequence[Any], columns: list[Any]) -> list[Any]:
        """What the function returned for each of some instances, with tensors; see `autobatch.api.Batched`."""
        results: list[Any] = _to_tensors(super().results_of(structures, columns))
        return results

    def _typed(self, columns: list[Any]) -> list[Any]:
        """The rows of each slot as tensors of what they stand for."""
        return list(map(as_tensor, columns, self.recorder.slots.dtypes))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy of a batched method is that of the copy of its module."""
        function = self.recorder.function
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(getattr(type(owner), name, None), BatchedMethod):
            return getattr, (owner, name)
        return super().__reduce_ex__(protocol)

    @classmethod
    def of(cls, made: Batched) -> Self:
        """The same function, giving tensors."""
        self = object.__new__(cls)
        self.__setstate__(made.__getstate__())
        return self


class TorchExecutor(Executor):
    """Runs mini-batches, and keeps what torch needs to differentiate the cells that it runs."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._tapes: WeakKeyDictionary[Run, Tape] = WeakKeyDictionary()

    def start(self, step: Step, part: Part, instances: slice, draw: tuple[int, int], *rest: Any, **options: Any) -> Run:
        """Run a part; see `Executor`."""
        if not step.cells.training:
            return super().start(step, part, instances, draw, *rest, **options)
        tape = Tape()
        with tape.open():
            run = super().start(step, part, instances, draw, *rest, **options)
        self._tapes[run] = tape
        return run

    def backward(
        self,
        step: Step,
        run: Run,
        seeds: Mapping[int, NDArray[Any]],
        out: dict[str, Gradient] | None,
        reader: RowReader | None = None,
        totals: dict[str, Total] | None = None,
    ) -> dict[str, Gradient]:
        """Differentiate the run of a part; see `Executor`.

        Args:
            totals: take the gradients that torch finds, where given; else they are added to the others.

        Raises:
            GraphError: there is a reader, and torch finds gradients.
        """
        tape = self._tapes.pop(run)
        with tape.open():
            found = super().backward(step, run, seeds, out, reader)
        if reader is not None:
            _refuse_sums(tape)
        names = {id(p.tensor): name for name, p in self.trainable().items() if isinstance(p, TensorParameter)}
        for tensor, gradient in tape.gradients():
            name = names[id(tensor)]
            if totals is None:
                found[name] += gradient.numpy()
            elif name in totals:
                totals[name].add(gradient)
            else:
                totals[name] = Total(gradient)
        return found

    def read_rows(self, step: Step, run: Run, seeds: Mapping[int, NDArray[Any]], reader: RowReader) -> None:
        """Differentiate the run of a part for a reader; see `Executor`.

        Raises:
            GraphError: torch finds gradients.
        """
        tape = self._tapes.pop(run)
        with tape.open():
            super().read_rows(step, run, seeds, reader)
        _refuse_sums(tape)


def _refuse_sums(tape: Tape) -> None:
    """Raise a GraphError if torch has computed gradients of parameters: they are sums over the instances."""
    if any(True for _ in tape.gradients()):
        raise GraphError(
            "gradients of each instance: torch runs a cell of this function itself, and gives the gradients of its "
            "parameters as sums over instances; freeze these parameters, or leave reduce='none' and clip= out."
        )


class Passing:
    """A mini-batch that has run forward, until it runs backward or its outputs are gone.

    Args:
        batched: runs it.
        step: the mini-batch, planned.
        minibatch: the same, as it was read.

    Attributes:
        tensors: what has gradients: the parameters that are read, and then tensors among the instances.
        columns: per slot, the values of all instances.
    """

    def __init__(self, batched: TorchBatched, step: Step, minibatch: MiniBatch) -> None:
        self._executor, self._step = batched.executor, step
        self._trainable: dict[str, TensorParameter] = self._executor.trainable()  # type: ignore[assignment]
        module = batched.recorder.module
        assert isinstance(minibatch.inputs, TensorInputs)
        assert isinstance(module, TorchModule)
        self._inputs, self._sparse = minibatch.inputs, module.sparse
        self._versions = self._look()
        self._is_done = False
        types = [batched.recorder.types[number] for number in np.unique(step.graph.type_id).tolist()]
        reads = [reads_of(kind.program) for kind in types]
        parameters = frozenset().union(*[of_type.parameters for of_type in reads])
        by_others = frozenset().union(*[of_type.by_others for of_type in reads])
        self._read = {name: p for name, p in self._trainable.items() if id(p) in parameters}
        self.tensors = [*[p.tensor for p in self._read.values()], *self._inputs.tensors]
        self._of_torch = {name for name, p in self._trainable.items() if id(p) not in by_others}
        draws = True in [of_type.draws for of_type in reads]
        self._draw = (int(torch.randint(2**31, ())), 0) if draws else (batched.seed, batched.step)
        self._runs: list[tuple[Part, Run]] = []
        columns = []
        for part, instances in self._executor.parts(step):
            run = self._executor.start(step, part, instances, self._draw)
            columns.append(run.outputs)
            step.counts.append(run.counts())
            if len(step.parts) > 1:
                run.close()  # there is no memory for all of them: each runs once more before it is differentiated
                continue
            self._runs.append((part, run))
            weakref.finalize(self, run.close)
        self.columns = join_columns(columns)
        self._ends = np.cumsum([[len(column) for column in part] for part in columns], axis=0)

    def backward(self, gradients: Mapping[int, NDArray[Any]]) -> list[Any]:
        """Differentiate: the gradient of each of `tensors`.

        Raises:
            GraphError: it has run backward before, or a parameter has changed since it ran forward.
        """
        if self._is_done:
            raise GraphError("a mini-batch is differentiated once, also with retain_graph=True; call it anew.")
        executor, step = self._executor, self._step
        with run_lock():
            executor.refresh()
            if self._look() != self._versions:
                raise GraphError(
                    "a parameter has changed since the mini-batch ran forward; call backward() before "
                    "optimizer.step(), and before parameters are replaced."
                )
            self._is_done = True
            found = {name: self._zeros(name, p) for name, p in self._trainable.items()}
            totals: dict[str, Total] = {}
            read = InputGradients(self._inputs, executor.dtype)
            again = ((part, executor.start(step, part, rows, self._draw)) for part, rows in executor.parts(step))
            firsts = np.zeros(len(self.columns), int)
            for (part, run), ends in zip(self._runs or again, self._ends, strict=True):
                seeds = {slot: gradient[firsts[slot] : ends[slot]] for slot, gradient in gradients.items()}
                firsts = ends
                executor.backward(step, run, seeds, found, totals=totals)
                read.add(part.plan, run)
                run.close()
        grads = [self._gradient(name, found[name], totals.get(name)) for name in self._read]
        return [*grads, *self._inputs.split(read.flat)]

    def _gradient(self, name: str, ours: Gradient, theirs: Total | None) -> torch.Tensor:
        """The gradient of a parameter, of what our programs and what torch find."""
        if theirs is None:
            return _to_gradient(ours)
        return theirs.value if name in self._of_torch else theirs.value + _to_gradient(ours)

    def _zeros(self, name: str, parameter: TensorParameter) -> Gradient:
        if name in self._sparse and id(parameter) in self._step.cells.row_parameters:
            return Rows.zeros(parameter.shape, parameter.dtype)
        return np.zeros(parameter.shape, parameter.dtype)

    def _look(self) -> list[tuple[int, int, bool]]:
        for parameter in self._trainable.values():
            parameter.refresh()
        now = self._executor.trainable()
        return [(p.tensor._version, p.n_assigned, now.get(name) is p) for name, p in self._trainable.items()]


class _Passed(torch.autograd.Function):
    """A mini-batch in torch's graph."""

    @staticmethod
    def forward(ctx: Any, passing: Passing, *tensors: torch.Tensor) -> Any:
        ctx.passing = passing
        ctx.set_materialize_grads(False)
        return tuple(map(torch.from_numpy, passing.columns))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise GraphError(
                "create_graph=True asks for derivatives of gradients, which a batched function does not have; call "
                "torch.autograd.grad on the module itself, one instance at a time."
            )
        given = {slot: np.ascontiguousarray(g.numpy()) for slot, g in enumerate(gradients) if g is not None}
        return None, *ctx.passing.backward(given)


class BatchedMethod:
    """A method of a module of torch that takes mini-batches; made by `@abt.batched`.

    Args:
        function: over one instance.
        options: of `ab.batched`.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        update_wrapper(self, function)
        self._function, self._options = function, options

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self
        made = vars(owner).setdefault("_batched_methods", _Made())
        name = self._function.__name__
        if name not in made:
            made[name] = batched(self._function.__get__(owner), module=owner, **self._options)
        return made[name]

    def __call__(self, *args: Any) -> Any:
        raise GraphError(
            f"{self._function.__name__!r} is a function of no module; give the module whose parameters it reads, "
            f"abt.batched(function, module=model)."
        )


class _Made(dict[str, Any]):
    """The batched methods of a module, which its copies make anew."""

    def __reduce__(self) -> Any:
        return _Made, ()


@overload
def batched(function: Callable[[Any], Any], *, module: torch.nn.Module | None = None, **options: Any) -> Any: ...
@overload
def batched(*, module: torch.nn.Module | None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def batched(function: Any = None, *, module: torch.nn.Module | None = None, **options: Any) -> Any:
    """Turn a function over one instance into one over mini-batches, whose results are tensors with a `grad_fn`.

    Args:
        function: takes one instance and calls cells; a method of a module of torch, a module, a method of a module of
            autobatch (see `abt.as_torch`), or a function. As `@abt.batched` it marks a method in the body of a class.
        module: the owner of the parameters; by default that which `function` is, or is a method of.
        options: those of `ab.batched`: policy, backend, max_bytes, seed, ...
    """
    if function is None:
        return lambda function: batched(function, module=module, **options)
    _refuse_transforms()
    owner = getattr(function, "__self__", function) if module is None else module
    if isinstance(owner, Module):
        owner = as_torch(owner)
    if module is None and not isinstance(owner, torch.nn.Module) and hasattr(function, "__get__"):
        return BatchedMethod(function, options)
    if not isinstance(owner, torch.nn.Module):
        raise GraphError(
            f"abt.batched(function, module=...) takes a method of a module of torch, or a function and the module "
            f"whose parameters it reads, not {function!r} and {module!r}."
        )
    return TorchBatched.of(batched_arrays(function, module=TorchModule(owner), **options))


def _refuse_transforms() -> None:
    """Refuse to run within what torch makes other functions of."""
    if torch.compiler.is_compiling() or torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:
        what = "torch.compile"
    elif torch._C._is_tracing():
        what = "torch.jit.trace"
    elif torch._C._functorch.peek_interpreter_stack() is not None:
        what = "torch.func (grad, vmap, jvp and the like)"
    elif torch.autograd.forward_ad._current_level >= 0:
        what = "torch.autograd.forward_ad"
    else:
        return
    raise GraphError(
        f"{what} cannot take apart a batched function, which records and runs programs of its own; give it the plain "
        f"function of one instance, or call the batched function outside."
    )


def _to_gradient(gradient: Gradient) -> torch.Tensor:
    if not isinstance(gradient, Rows):
        return torch.from_numpy(gradient)
    ids, values = torch.from_numpy(gradient.ids.astype(np.int64)[None]), torch.from_numpy(gradient.values)
    return torch.sparse_coo_tensor(ids, values, gradient.shape, check_invariants=False, is_coalesced=True)


def _to_tensors(x: Any) -> Any:
    """Arrays in a structure of results as tensors."""
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x)
    if isinstance(x, (list, tuple)):
        parts: Sequence[Any] = [_to_tensors(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return {key: _to_tensors(part) for key, part in x.items()} if isinstance(x, dict) else x
