"""Test that work on a GPU runs on torch's current stream, in torch's memory, with stand-ins for CuPy and torch.cuda."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import autograd, nn

import autobatch.torch as abt
from autobatch.devices.device import Launch
from autobatch.torch import current_stream
from autobatch.torch.memory import working_on
from helpers.runs.tensors_on_device import TorchDevice


class Stream:
    """Stands in for a stream of torch; notes the streams that it waits for."""

    device_index = 0

    def __init__(self, number: int) -> None:
        self.cuda_stream, self.waited = number, list[Any]()

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class OutOfMemory(MemoryError):
    """Stands in for CuPy's error."""


class Cuda:
    """Stands in for `torch.cuda` and `cupy.cuda`: the entered contexts, and the allocated addresses."""

    def __init__(self) -> None:
        self.stream, self.entered, self.held, self.is_full = Stream(7), list[Any](), dict[int, Any](), False
        self.memory = SimpleNamespace(OutOfMemoryError=OutOfMemory)

    def current_stream(self, device: int | None = None) -> Stream:
        return self.stream

    def caching_allocator_alloc(self, size: int, device: int, stream: Stream) -> int:
        if self.is_full:
            raise torch.OutOfMemoryError("CUDA out of memory")
        address = 1 << 20 | len(self.held)
        self.held[address] = size, device, stream
        return address

    def caching_allocator_delete(self, address: int) -> None:
        del self.held[address]

    def memory_reserved(self, device: int) -> int:
        return 100

    @contextmanager
    def _entered(self, *about: Any) -> Iterator[None]:
        self.entered.append(about)
        yield
        assert self.entered.pop() == about

    def ExternalStream(self, address: int, device: int) -> Any:
        return self._entered("stream", address, device)

    def using_allocator(self, malloc: Any) -> Any:
        return self._entered("allocator", malloc)

    def PythonFunctionAllocator(self, malloc: Any, free: Any) -> Any:
        return SimpleNamespace(malloc=malloc, free=free)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    found, cupy = Cuda(), ModuleType("cupy")
    cupy.cuda = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for name in ("current_stream", "caching_allocator_alloc", "caching_allocator_delete", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, getattr(found, name))
    monkeypatch.setattr(current_stream, "_last", {})
    current_stream._allocator.cache_clear()
    yield found
    current_stream._allocator.cache_clear()


def test_cupy_works_on_the_stream_of_torch_with_the_memory_of_torch(cuda: Cuda) -> None:
    with working_on(torch.device("cpu")):
        assert cuda.entered == []
    with working_on(torch.device("cuda", 0)):
        (_, address, device), (_, malloc) = cuda.entered
        assert (address, device) == (7, 0)
        memory = malloc(64, 0)
        assert cuda.held == {memory: (64, 0, cuda.stream)}
        current_stream._allocator().free(memory, 0)
        assert cuda.held == {}
        cuda.is_full = True
        with pytest.raises(OutOfMemory) as caught:
            malloc(64, 0)
        assert caught.value.args == (64, 100)
    assert cuda.entered == []


def test_another_stream_waits_for_the_one_that_used_the_buffers(cuda: Cuda) -> None:
    first, second = cuda.stream, Stream(8)
    for stream in (first, first, second, second, first):
        cuda.stream = stream
        with working_on(torch.device("cuda", 0)):
            pass
    assert second.waited == [first]
    assert first.waited == [second]


def test_all_launches_of_a_step_run_in_the_context(tensors: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, backward, second derivatives, inference and reports."""
    depth, launches, launch = [0], list[int](), tensors.store.launch

    @contextmanager
    def noted(device: torch.device) -> Iterator[None]:
        assert device.type == tensors.place.type
        depth[0] += 1
        yield
        depth[0] -= 1

    def note_launch(kernel: Any, about: Launch) -> None:
        launches.append(depth[0])
        launch(kernel, about)

    monkeypatch.setattr(tensors.store, "launch", note_launch)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    tensors.hold(model)
    run = abt.batched(abt.cell(model))
    monkeypatch.setattr(type(run), "on_device", lambda self: noted(self.torch_module.device))
    rows = [torch.ones(3), torch.zeros(3)]
    (g,) = autograd.grad(run(rows).sum(), [next(model.parameters())], create_graph=True)
    autograd.backward(g.pow(2).sum())
    with torch.no_grad():
        run(rows)
    run.explain(rows)
    assert len(launches) > 6
    assert min(launches) > 0
    assert depth == [0]
