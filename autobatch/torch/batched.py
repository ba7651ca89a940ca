"""A function of one instance that calls torch modules, run on mini-batches, as one function in torch's own graph.

The outputs are tensors. Their `grad_fn` is a single function: it runs our backward stages, and returns to torch the
gradient of each parameter and of each tensor among the instances. Torch accumulates and propagates them as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, Self, overload
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray

from autobatch.api import batched as batched_arrays
from autobatch.arguments import show
from autobatch.backends.base import RowReader, Run
from autobatch.backends.options import Options
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Clock, Step
from autobatch.engine.group import ENTERED
from autobatch.engine.session import Call
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.inspect.profiling import Profile
from autobatch.inspect.report import Report
from autobatch.keywords import refuse
from autobatch.params.module import Module
from autobatch.params.sparse_rows import Gradient
from autobatch.system.locks import run_lock
from autobatch.torch.calls import Tape, Total
from autobatch.torch.entering import TensorInputs
from autobatch.torch.flow import Reaching
from autobatch.torch.kinds import as_tensor, to_floats
from autobatch.torch.memory import to_array
from autobatch.torch.modules import TorchModule, as_torch
from autobatch.torch.on_device import DeviceCall, OnDevice
from autobatch.torch.parameters import TensorParameter
from autobatch.torch.passing import Passed, Passing, gradients_of, put_numbers
from autobatch.torch.results import stack_tensors, to_tensors
from autobatch.torch.tangents import (
    Along,
    Directions,
    Moved,
    ReadInputs,
    TangentModule,
    check_inputs,
    check_values,
    slots_of_tangents,
)
from autobatch.trace.record import list_instances
from autobatch.tracebacks import hide_frames


class TorchBatched(OnDevice):
    """A function of one instance, run on mini-batches; made by `abt.batched`."""

    _is_served = False
    _derivative: TorchBatched | None = None

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self._tapes: WeakKeyDictionary[Run, Tape] = WeakKeyDictionary()
        self.reaching = Reaching()
        self.recorder.on_forget = self._drop_derivative

    def _drop_derivative(self) -> None:
        """Drop the derivative, which may hold replaced modules; it is rebuilt on the next use."""
        self._derivative = None

    def __call__(self, instances: Iterable[Any]) -> Any:
        """Compute `[function(x) for x in instances]`, stacked, as tensors that can be differentiated.

        Gradients of gradients, by `create_graph=True`, run the instances again, see `autobatch.torch.passing`.

        Args:
            instances: arguments of the function, or graphs from `record_all`.

        Returns:
            The structure of the function's result, with tensors (B, *shape). Lists, and their elements, stay per
            instance. If shapes differ between instances, a list with one tensor per instance. A tensor of shape (0,)
            for no instances.

        Raises:
            GraphError: torch compiles, traces or transforms the call; or a group of `ab.distributed` is entered.
        """
        _refuse_transforms()
        if not torch.is_grad_enabled():
            return to_tensors(super().__call__(instances))
        if ENTERED.group is not None:
            raise GraphError(
                "a function of abt.batched returns tensors, whose gradients ab.distributed.group does not add up; "
                "leave the group, and wrap the module in torch's DistributedDataParallel."
            )
        try:
            instances = self._met(instances)
            clock = Clock(profiled=self._profile is not None)
            inputs = TensorInputs(self.recorder.calls)
            with inputs.recording_tensors():
                minibatch = self.recorder.read(instances)._replace(inputs=inputs)
                call = DeviceCall(self, minibatch, clock, training=True, has_aux=None)
                with run_lock(), call as step:
                    if not step.graph.keys.size:
                        return torch.zeros(0, device=self.torch_module.device)
                    passing = Passing(self, step, minibatch)
                    self.step += 1
                    self._finish(call)
            columns: list[Any] = list(Passed.apply(passing, *passing.tensors))  # type: ignore[no-untyped-call]
            return stack_tensors(step.graph.structures, self._typed(columns))
        except Exception as error:
            hide_frames(error)
            raise

    _stack_results = staticmethod(stack_tensors)

    def along(
        self, passing: Passing, gradients: Mapping[int, torch.Tensor], directions: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Differentiate the gradients of a mini-batch of this function.

        These are the gradients of `sum(g * y)` for outputs y with gradients g. Along the given directions d, they
        change by the gradients of `sum(g * (dy along d))`, and the gradient with respect to g is dy along d.

        Args:
            passing: the mini-batch.
            gradients: the gradients of outputs, by slot.
            directions: for each of its tensors, the gradient of its gradient; None for zeros.

        Returns:
            The gradients of the gradients of outputs, then those of its tensors.

        Raises:
            GraphError: an op or a cell has no second derivative, or the instances have changed.
        """
        derivative = self._derived()
        module = derivative.recorder.module
        assert isinstance(module, TangentModule)
        n, of_parameters = len(passing.read), list[tuple[TensorParameter, TensorParameter, torch.Tensor]]()
        for (name, parameter), d in zip(passing.read.items(), directions[:n], strict=True):
            if d is not None:
                d = d.to_dense() if d.is_sparse else d
                of_parameters.append((parameter, module.tangent(name, parameter, d.requires_grad), d))
        with torch.enable_grad():  # so that functions of inputs have gradients, as in the first run
            dtype = passing.dtype
            # A view of each: inputs are identified by object, and a direction may be a tensor of an instance too.
            of_inputs = {k: to_floats(d.view_as(d), dtype) for k, d in enumerate(directions[n:]) if d is not None}
            moved = Directions([(parameter, tangent) for parameter, tangent, _ in of_parameters], of_inputs)
            instances = [Moved(instance, moved) for instance in passing.instances]
            held = [(tangent, d.detach()) for _, tangent, d in of_parameters]
            own = derivative._pass(instances, passing.draw, [*passing.held, *held])
        tables = self.recorder.slots, derivative.recorder.slots
        check_inputs(passing.inputs.tensors, moved.met)
        check_values(*tables, passing.columns, own.columns)
        slots = slots_of_tangents(*tables, gradients)
        # To torch, the run depends on the directions themselves; tangents only hold their numbers.
        instead = {id(tangent.tensor): d for _, tangent, d in of_parameters}
        own.tensors = [instead.get(id(x), x) for x in own.tensors]
        columns = Passed.apply(own, *own.tensors)  # type: ignore[no-untyped-call]
        given = {slots[slot]: g for slot, g in gradients.items()}
        found = dict(zip(map(id, own.tensors), gradients_of(own, given), strict=True))
        of_tensors = [*(p.tensor for p in passing.read.values()), *moved.met]
        return [*(columns[slot] for slot in given), *(found.get(id(x)) for x in of_tensors)]

    def _pass(self, instances: list[Any], draw: tuple[int, int], held: list[Any]) -> Passing:
        """Run a mini-batch of `Moved` instances.

        If cells were traced, it is recorded a second time. Types keep more products from then on, and
        `torch.autograd.gradgradcheck` needs results that are bit-identical to those of later calls.
        """
        instances, traces = self._met(instances), self.recorder.calls.traces
        n_traced = -1
        while traces.n_traced != n_traced:
            n_traced, inputs = traces.n_traced, ReadInputs(self.recorder.calls)
            with inputs.recording_tensors():
                minibatch = self.recorder.read(instances)._replace(inputs=inputs)
        with run_lock():
            put_numbers(held)
            call = DeviceCall(self, minibatch, Clock(), training=True, has_aux=None)
            with call as step:
                passing = Passing(self, step, minibatch, draw, held)
                self._finish(call)
        return passing

    def _derived(self) -> TorchBatched:
        """Return the directional derivative of the function, made once."""
        found = self._derivative
        if found is None or (found.planner, found.backend) != (self.planner, self.backend):
            function, module, *made, _ = self.__getstate__()["made"]
            found = object.__new__(TorchBatched)
            found.__setstate__({"made": (Along(function), TangentModule(module), *made, 0), "step": 0})
            self._derivative = found
        found.options = self.options
        return found

    def record_all(self, instances: Iterable[Any], progress: bool = False, workers: int = 1) -> list[Graph]:
        """Record each instance once, see `autobatch.batched.Batched.record_all`."""
        found = super().record_all(self._met(instances), progress, workers)
        self.drop_copies()
        return found

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Record tensors with gradients as inputs; free the copies of the instances' tensors when the context ends."""
        try:
            with TensorInputs(self.recorder.calls).recording_tensors():
                yield
        finally:
            self.drop_copies()

    # Inspection methods take the same instances as a call, and compute no gradients.

    def explain(self, instances: Iterable[Any], *options: Any, **named: Any) -> Report:
        """Run a mini-batch and report what happened, see `autobatch.batched.Batched.explain`."""
        with self._recording():
            return super().explain(instances, *options, **named)

    def profile(self, instances: Iterable[Any] | None = None, *options: Any, **named: Any) -> Profile:
        """Report where the time goes, see `autobatch.batched.Batched.profile`."""
        with self._recording():
            return super().profile(instances, *options, **named)

    def prepare(self, instances: Iterable[Any], *options: Any, **named: Any) -> Step:
        """Plan a mini-batch without running it, see `autobatch.batched.Batched.prepare`."""
        with self._recording(), self.on_device():
            return super().prepare(instances, *options, **named)

    def merged(self, instances: Iterable[Any]) -> Graph:
        """Return the graph of a mini-batch as policies see it, see `autobatch.batched.Batched.merged`."""
        with self._recording():
            return super().merged(self._met(instances))

    def _scheduled(self, instances: Iterable[Any]) -> list[Graph]:
        with self._recording():
            return super()._scheduled(instances)

    def _call(self, instances: Iterable[Any], *options: Any, **named: Any) -> Call:
        return super()._call(self._met(instances), *options, **named)

    def _met(self, instances: Iterable[Any]) -> list[Any]:
        """Return the instances as a list; a module without parameters computes in their dtype from now on."""
        listed = list_instances(instances)
        self.torch_module.meet(listed)
        return listed

    def of_programs(self, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Self:
        """Return another engine, of `wrap(function)`, for use by one thread, in which gradients are off."""
        twin = super().of_programs(wrap)
        twin._is_served = True
        return twin

    def options_now(self, training: bool, has_aux: bool | None) -> Options:
        """Return the options of a call, see `autobatch.engine.session.Session`."""
        if self._is_served:
            # Grad mode belongs to a thread; this runs in the one that serves.
            torch.set_grad_enabled(False)
            self._met(())
        return super().options_now(training, has_aux)

    def results_of(self, structures: Sequence[Any], columns: list[Any]) -> list[Any]:
        """Return the function's result for each instance, with tensors; see `autobatch.api.Batched`."""
        results: list[Any] = to_tensors(super().results_of(structures, columns))
        return results

    def _typed(self, columns: list[Any]) -> list[Any]:
        """Convert the rows of each slot to tensors of the dtype that they represent."""
        return list(map(as_tensor, columns, self.recorder.slots.dtypes))

    def forward(self, step: Step, run: Run, to: Store | None = HOST) -> None:
        """Compute the values of a part; see `Session`."""
        if not step.cells.training:
            super().forward(step, run, to)
            return
        tape = Tape()
        with tape.open():
            super().forward(step, run, to)
        self._tapes[run] = tape

    def backward(
        self,
        step: Step,
        run: Run,
        seeds: Mapping[int, NDArray[Any]],
        out: dict[str, Gradient] | None,
        reader: RowReader | None = None,
        totals: dict[str, Total] | None = None,
    ) -> dict[str, Gradient]:
        """Differentiate the run of a part; see `Session`.

        Args:
            step, run, seeds, out, reader: see `Session`.
            totals: receives the gradients that torch computes, by name; if None, they are added to the others.

        Raises:
            GraphError: there is a reader, and torch computes gradients of parameters.
        """
        tape = self._tapes.pop(run)
        with tape.open():
            found = super().backward(step, run, seeds, out, reader)
        if reader is not None:
            _refuse_sums(tape)
        names = {id(p.tensor): name for name, p in self.parameters.trainable.items() if isinstance(p, TensorParameter)}
        for tensor, gradient in tape.gradients():
            name = names[id(tensor)]
            if totals is None:
                found[name] += to_array(gradient)
            elif name in totals:
                totals[name].add(gradient)
            else:
                totals[name] = Total(gradient)
        return found

    def read_rows(self, step: Step, run: Run, seeds: Mapping[int, NDArray[Any]], reader: RowReader) -> None:
        """Differentiate the run of a part for a reader; see `Session`.

        Raises:
            GraphError: torch computes gradients of parameters.
        """
        tape = self._tapes.pop(run)
        with tape.open():
            super().read_rows(step, run, seeds, reader)
        _refuse_sums(tape)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Reduce a batched method to its module and place, so that its copy belongs to the copy of the module."""
        owner = getattr(self.recorder.function, "__self__", None)
        made = getattr(owner, "__dict__", {}).get("_batched_methods", {})
        for kind in type(owner).__mro__:
            for name, method in vars(kind).items():
                if isinstance(method, BatchedMethod) and made.get(method) is self:
                    return _batched_method, (owner, kind, name)
        return super().__reduce_ex__(protocol)


def _refuse_sums(tape: Tape) -> None:
    """Raise a GraphError if torch has computed gradients of parameters, because they are sums over the instances."""
    if any(True for _ in tape.gradients()):
        raise GraphError(
            "gradients of each instance are not available, because torch runs a cell of this function itself, and "
            "computes the gradients of its parameters as sums over instances; freeze these parameters, or leave "
            "reduce='none' and clip= out."
        )


class BatchedMethod:
    """A method of a torch module that takes mini-batches; made by `@abt.batched`.

    Args:
        function: the method of one instance.
        options: the options of `ab.batched`.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        update_wrapper(self, function)
        self._function, self._options = function, options

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self
        made = vars(owner).get("_batched_methods")
        if made is None or made.owner is not owner:  # that of the original in a shallow copy
            made = vars(owner)["_batched_methods"] = _Made(owner)
        if self not in made:  # not by name, which the methods of base classes, lambdas and wrappers share
            made[self] = batched(self._function.__get__(owner), module=owner, **self._options)
        return made[self]

    def __call__(self, *args: Any) -> Any:
        raise GraphError(
            f"{self._function.__name__!r} must be a method of a module; for a function, give the module whose "
            f"parameters it reads, abt.batched(function, module=model)."
        )


def _batched_method(owner: Any, kind: type, name: str) -> Any:
    """Return the batched method of a module that has this name in the body of this class."""
    return vars(kind)[name].__get__(owner)


class _Made(dict[BatchedMethod, Any]):
    """The batched methods of a module; copies of the module start with none."""

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner

    def __reduce__(self) -> Any:
        return _Made, ()


@overload
def batched(function: Callable[[Any], Any], *, module: torch.nn.Module | None = None, **options: Any) -> Any: ...
@overload
def batched(*, module: torch.nn.Module | None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def batched(function: Any = None, *, module: torch.nn.Module | None = None, **options: Any) -> Any:
    """Convert a function of one instance to one of mini-batches, whose results are tensors with a `grad_fn`.

    Args:
        function: a function of one instance that calls cells: a method of a torch module, a module, a method of a
            module of autobatch (see `abt.as_torch`), or a function. As a decorator, `@abt.batched` marks a method in
            the body of a class.
        module: the owner of the parameters; by default the module that `function` is, or is a method of.
        options: the options of `ab.batched`: policy, backend, max_bytes, seed, ...
    """
    refuse(batched, options, batched_arrays)
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
            f"abt.batched(function, module=...) must be given a method of a torch module, or a function and the module "
            f"whose parameters it reads, got {show(function)} and {show(module)}."
        )
    return TorchBatched.of(batched_arrays(function, module=TorchModule(owner), **options), options)


def _refuse_transforms() -> None:
    """Raise a GraphError within a transform of torch, such as torch.compile."""
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
        f"{what} cannot transform a batched function, which records and runs programs of its own; give it the plain "
        f"function of one instance, or call the batched function outside."
    )
