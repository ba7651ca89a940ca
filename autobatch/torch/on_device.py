"""Batched functions of torch modules on the device of their module: the backend, the stream, and the results.

The backend, the policy and the rewrites that are left to autobatch are chosen again when the module moves. Work on a
GPU runs on torch's current stream, and `torch.autocast` to bfloat16 sets the precision of products there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from autobatch.api import Batched
from autobatch.api import batched as batched_arrays
from autobatch.backends.base import Backend, Run
from autobatch.backends.options import Options
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.engine.results import Differentiation
from autobatch.engine.session import Call
from autobatch.graph.graph import Graph
from autobatch.params.parameter import FLOAT32
from autobatch.torch.memory import working_on
from autobatch.torch.modules import TorchModule
from autobatch.torch.opaque import Reads, reads_of
from autobatch.trace.record import Recorder


def reads_in(recorder: Recorder, graph: Graph) -> list[Reads]:
    """Return the reads of each type in a graph."""
    return [reads_of(recorder.types[number].program) for number in np.unique(graph.type_id).tolist()]


class DeviceCall(Call):
    """A call in the context of work on the device of the parameters."""

    _session: OnDevice
    _context: ExitStack

    def __enter__(self) -> Step:
        self._session.drawn = None
        with ExitStack() as context:
            context.enter_context(self._session.on_device())
            step = super().__enter__()
            self._context = context.pop_all()
        return step

    def __exit__(self, *error: Any) -> None:
        with self._context:
            super().__exit__(*error)
        self._session.drop_copies()


class Chosen(NamedTuple):
    """The choice of a backend for the device of the parameters.

    Attributes:
        given: the backend, "auto", and the policy and rewrites, as given by the user.
        backend, options: the chosen ones.
    """

    given: dict[str, Any]
    backend: Backend
    options: Options


class OnDevice(Batched):
    """A function of one instance, run on mini-batches on the device of its torch module."""

    _make_call = DeviceCall

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self._chosen: Chosen | None = None
        self.drawn: tuple[int, int] | None = None  # by the current call

    @classmethod
    def of(cls, made: Batched, options: Mapping[str, Any]) -> Self:
        """Convert a batched function, made with these options."""
        given = {name: options.get(name, "auto") for name in ("backend", "policy", "rewrites")}
        self = object.__new__(cls)
        chosen = Chosen(given, made.backend, made.options) if given["backend"] == "auto" else None
        self.__setstate__(made.__getstate__() | {"chosen": chosen})
        return self

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"chosen": self._chosen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._chosen = state.get("chosen")

    @property
    def torch_module(self) -> TorchModule:
        module = self.recorder.module
        assert isinstance(module, TorchModule)
        return module

    def on_device(self) -> AbstractContextManager[None]:
        return working_on(self.torch_module.device)

    def drop_copies(self) -> None:
        """Free the copies of the instances' tensors on the host."""
        self.torch_module.copies = None

    @property
    def _result_store(self) -> Store:  # type: ignore[override]
        """Return the memory in which a call returns its results, that of the parameters."""
        return self.parameters.store

    def draw_of(self, step: Step) -> tuple[int, int]:
        """Return the seed and the number on which random numbers of a step depend, see `Session`.

        They follow torch's own generator, so `torch.manual_seed` reproduces them.
        """
        if self.drawn is None and any(reads.draws for reads in reads_in(self.recorder, step.graph)):
            self.drawn = int(torch.randint(2**31, ())), 0
        return self.drawn or super().draw_of(step)

    def run(
        self,
        step: Step,
        differentiation: Differentiation | None = None,
        draw: tuple[int, int] | None = None,
        to: Store | None = HOST,
    ) -> list[Run]:
        """Run the parts one after the other, see `Session`."""
        return super().run(step, differentiation, draw or self.draw_of(step), to)

    def options_now(self, training: bool, has_aux: bool | None) -> Options:
        """Return the options of a call, see `autobatch.engine.session.Session`."""
        now = super().options_now(training, has_aux)
        if self._follow(now.store):
            now = super().options_now(training, has_aux)
        return now._replace(precision="bf16") if self._is_cast(now) else now

    def _follow(self, store: Store) -> bool:
        """Switch to the backend of the device that holds the parameters, and to its policy and rewrites.

        Returns:
            Whether the backend has changed; False if the backend was chosen by name, or assigned.
        """
        chosen = self._chosen
        if chosen is None or self.backend is not chosen.backend or getattr(self.backend, "device", HOST) is store:
            return False
        made, own = batched_arrays(self.recorder.function, module=self.recorder.module, **chosen.given), self.options
        self.backend = made.backend
        # What the user has assigned since stays.
        if own.policy is chosen.options.policy:
            own = own._replace(policy=made.options.policy)
        if own.rewrites == chosen.options.rewrites:
            own = own._replace(rewrites=made.options.rewrites)
        self.options, self._chosen = own, Chosen(chosen.given, made.backend, made.options)
        return True

    def _is_cast(self, now: Options) -> bool:
        """Return whether `torch.autocast` asks for products of bfloat16 on the device."""
        if now.store is HOST or now.precision != "float32" or now.dtype != FLOAT32:
            return False
        kind = self.torch_module.device.type
        return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.bfloat16

    def _record_rounds(self, instances: list[Any]) -> Graph:
        with self.on_device():
            return super()._record_rounds(instances)
