"""Test that recorded values act as tensors outside cells: `isinstance`, attributes, methods and functions."""

from __future__ import annotations

import gc
import pickle
from abc import ABC
from collections.abc import Callable, Iterator
from functools import partial, singledispatch
from typing import Any, Optional, Union

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import GraphError


class Net(nn.Module):
    """A cell, `lin`, and modules that are not cells."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.plain = abt.cell(nn.Linear(3, 3)), nn.Linear(3, 3)
        self.lstm, self.gru = nn.LSTM(3, 3), nn.GRU(3, 3, bidirectional=True)
        self.mha, self.emb, self.conv = nn.MultiheadAttention(4, 2), nn.Embedding(7, 3), nn.Conv1d(3, 2, 2, padding=1)
        self.double()


torch.manual_seed(0)
NET = Net()
ROWS = [torch.randn(3).double(), torch.randn(3).double()]

IDIOMS: dict[str, Callable[[Any], Any]] = {
    "data": lambda v: v.data * 2 + v,
    "detach": lambda v: v.detach() * 2 + v,
    "v[[0,2]]": lambda v: v[[0, 2]],
    "v[(True..)]": lambda v: v[[True, False, True]],
    "v[tensor]": lambda v: v[torch.tensor([0, 2])],
    "v[mask const]": lambda v: v[torch.tensor([True, False, True])],
    "v[None]": lambda v: v[None],
    "v[...,0]": lambda v: v[..., 0],
    "v[..., [0]]": lambda v: v[..., [0, 1]],
    "v[:,None]": lambda v: v[:, None] * v,
    "v[argmax]": lambda v: v[v.argmax()],
    "outer idx": lambda v: torch.outer(v, v)[[0, 1], [1, 2]],
    "outer idx2": lambda v: torch.outer(v, v)[torch.arange(3), torch.tensor([1, 2, 0])],
    "%": lambda v: v % 0.7,
    "sum(input=)": lambda v: torch.sum(input=v) * v,
    "stack(tensors=)": lambda v: torch.stack(tensors=[v, v]).sum(0),
    "cat(tensors=)": lambda v: torch.cat(tensors=[v, 2 * v], dim=0),
    "add(other=)": lambda v: torch.add(input=v, other=1) + torch.add(v, other=v, alpha=2) + v.mul(other=3),
    "where(input=)": lambda v: torch.where(condition=v > 0, input=v, other=-2 * v),
    "linear(input=)": lambda v: F.linear(input=v, weight=NET.plain.weight),
    "clamp_(input=)": lambda v: torch.relu_(input=v * 1) + torch.zeros_like(input=v),
    "checkpoint": lambda v: checkpoint(lambda x, y: torch.tanh(x) * y, v, y=v, use_reentrant=False),
    "% v": lambda v: v % v.abs().sum(),
    "tensor % v": lambda v: torch.ones(3).double() % v,
    "pos": lambda v: +v,
    "abs": lambda v: abs(v),
    "neg": lambda v: -v,
    "pow": lambda v: v**2 + 2**v,
    "inv": lambda v: v * (~(v > 0)),
    "new fill": lambda v: v + v.detach().new(1, 3).fill_(0.0)[0],
    "new_zeros": lambda v: v + v.new_zeros(3),
    "new_full": lambda v: v + v.new_full((3,), 2.0),
    "new_tensor": lambda v: v + v.new_tensor([1.0, 2.0, 3.0]),
    "new_ones dtype": lambda v: v + v.new_ones(3, dtype=torch.float32),
    "zeros_like": lambda v: torch.zeros_like(v) + v,
    "zeros_like fill": lambda v: torch.zeros_like(v).fill_(2) + v,
    "full_like": lambda v: torch.full_like(v, 3.0) + v,
    "full_like of value": lambda v: torch.full_like(v, 1.0) * v,
    "empty_like": lambda v: torch.empty_like(v).zero_() + v,
    "as_tensor": lambda v: torch.as_tensor(v) * 2,
    "as_tensor list": lambda v: torch.as_tensor([v[0], v[1]]) * v[0],
    "tensor list": lambda v: torch.tensor([v[0], v[1], 3.0]) * v[0],
    "tensor nested": lambda v: torch.tensor([[v[0], v[1]], [3.0, v[2]]]).double() * v[0],
    "tensor v": lambda v: torch.tensor(v) * v,
    "asarray": lambda v: torch.asarray(v) * v,
    "as_tensor dtype": lambda v: torch.as_tensor(v, dtype=torch.float32),
    "pack": lambda v: NET.lstm(rnn.pack_sequence([v[None], v[None]]))[0].data.sum(0),
    "pack lens": lambda v: NET.lstm(rnn.pack_sequence([torch.stack([v, v]), v[None]]))[0].data.sum(0),
    "pack pad": lambda v: rnn.pad_packed_sequence(
        NET.lstm(rnn.pack_padded_sequence(torch.stack([torch.stack([v, v]), torch.stack([v, v])], 1), [2, 1]))[0]
    )[0].sum((0, 1)),
    "pack unsorted": lambda v: rnn.pad_packed_sequence(
        NET.gru(
            rnn.pack_padded_sequence(
                torch.stack([torch.stack([v, v]), torch.stack([v, v])], 0),
                torch.tensor([1, 2]),
                batch_first=True,
                enforce_sorted=False,
            )
        )[0],
        batch_first=True,
    )[0].sum((0, 1)),
    "pad_sequence": lambda v: rnn.pad_sequence([torch.stack([v, v]), v[None]]).sum((0, 1)),
    "lstm": lambda v: NET.lstm(v[None])[0].sum(0),
    "lstm batch": lambda v: NET.lstm(v[None, None])[1][0].sum((0, 1)),
    "gru": lambda v: NET.gru(torch.stack([v, v]))[0].sum(0),
    "mha": lambda v: NET.mha(*[torch.stack([torch.cat([v, v[:1]])] * 2)] * 3)[0].sum(0),
    "embedding of argmax": lambda v: NET.emb(v.argmax()) * v,
    "conv": lambda v: NET.conv(v[:, None])[:, 0],
    "float": lambda v: v.float(),
    "double": lambda v: v.double(),
    "to": lambda v: v.to(torch.float64) + v.to("cpu"),
    "to dtype": lambda v: v.to(torch.float32),
    "to other": lambda v: v.to(v),
    "type_as": lambda v: v.type_as(v) * 2,
    "type(dtype)": lambda v: v.type(torch.float32),
    "cpu": lambda v: v.cpu() * 2,
    "contiguous": lambda v: v.contiguous().view(3, 1),
    "clone": lambda v: v.clone() * 2,
    "is_contiguous": lambda v: v * float(v.is_contiguous()),
    "size": lambda v: v * v.size(0) * v.size(-1) * len(v.size()),
    "dim": lambda v: v * v.dim() * v.ndim * v.ndimension(),
    "numel": lambda v: v * v.numel() * torch.numel(v) * v.nelement(),
    "element_size": lambda v: v * v.element_size() * v.itemsize * v.nbytes,
    "device": lambda v: v + torch.ones(3, device=v.device, dtype=v.dtype),
    "is_cuda": lambda v: v * (2 if v.is_cuda else 3),
    "get_device": lambda v: v * v.get_device(),
    "layout": lambda v: v * (2 if v.layout is torch.strided else 3),
    "is_sparse": lambda v: v * (2 if v.is_sparse else 3),
    "grad": lambda v: v * (2 if v.grad is None else 3),
    "type str": lambda v: v * (2 if v.type() == "torch.DoubleTensor" else 3),
    "H": lambda v: torch.outer(v, v).H[0],
    "mT": lambda v: torch.outer(v, v).mT[0],
    "T": lambda v: torch.outer(v, v).T[0],
    "t()": lambda v: torch.outer(v, v).t()[0],
    "real": lambda v: v.real,
    "is_float": lambda v: v * (2 if torch.is_floating_point(v) else 3) * (2 if v.is_floating_point() else 3),
    "is_complex": lambda v: v * (2 if torch.is_complex(v) else 3),
    "is_tensor": lambda v: v * (2 if torch.is_tensor(v) else 3),
    "is_signed": lambda v: v * (2 if v.is_signed() else 3),
    "is_same_size": lambda v: v * (2 if v.is_same_size(v) else 3),
    "result_type": lambda v: v.to(torch.result_type(v, 1.0)),
    "finfo": lambda v: v.masked_fill(v < 0, torch.finfo(v.dtype).min),
    "max": lambda v: v.max(),
    "max two": lambda v: v.max(0)[0] * v,
    "max named": lambda v: torch.max(v, 0).values * v,
    "max of two": lambda v: torch.max(v, v * 2),
    "unbind": lambda v: sum(x * 2 for x in v.unbind()),
    "iter": lambda v: sum(x * 2 for x in v),
    "len": lambda v: v * len(v),
    "chunk": lambda v: v.chunk(3)[1],
    "split": lambda v: v.split([1, 2])[1],
    "split unpack": lambda v: (lambda a, b: a * b)(*v.split([1, 2])),
    "topk": lambda v: v.topk(2)[0],
    "sort": lambda v: v.sort()[0],
    "gather": lambda v: v.gather(0, torch.tensor([0, 0, 1])),
    "index_select": lambda v: v.index_select(0, torch.tensor([0, 2])),
    "masked_select": lambda v: torch.masked_select(v, torch.tensor([True, False, True])),
    "scatter_add": lambda v: torch.zeros(3).double().scatter_add(0, torch.tensor([0, 0, 1]), v),
    "index_add": lambda v: torch.zeros(3).double().index_add(0, torch.tensor([0, 0, 1]), v),
    "where": lambda v: torch.where(v > 0, v, torch.zeros(())),
    "where num": lambda v: torch.where(v > 0, v, 0.0),
    "F.relu": lambda v: F.relu(v),
    "F.softmax": lambda v: F.softmax(v, dim=-1),
    "F.dropout eval": lambda v: F.dropout(v, 0.5, False),
    "F.cross_entropy": lambda v: F.cross_entropy(v[None], torch.tensor([1])),
    "F.nll": lambda v: F.nll_loss(F.log_softmax(v[None], 1), torch.tensor([2])),
    "F.mse": lambda v: F.mse_loss(v, torch.ones(3).double()),
    "F.one_hot": lambda v: F.one_hot(torch.tensor(1), 3) * v,
    "F.pad": lambda v: F.pad(v, (1, 2)),
    "F.linear": lambda v: F.linear(v, NET.plain.weight),
    "plain": lambda v: NET.plain(v),
    "plain batch": lambda v: NET.plain(v[None])[0],
    "sequential": lambda v: nn.Sequential(nn.Tanh(), nn.ReLU())(v),
    "bilinear": lambda v: torch.einsum("i,ij,j->", v, NET.plain.weight, v),
    "einsum": lambda v: torch.einsum("i,j->ij", v, v),
    "bmm": lambda v: torch.bmm(v[None, None], v[None, :, None]),
    "baddbmm": lambda v: torch.addmm(v, v[None], NET.plain.weight)[0],
    "repeat": lambda v: v.repeat(2, 1),
    "expand": lambda v: v.expand(2, -1),
    "expand_as": lambda v: v.expand_as(torch.ones(2, 3)),
    "view_as": lambda v: v.view_as(torch.ones(3, 1)),
    "reshape": lambda v: v.reshape(1, -1),
    "flatten": lambda v: v[None].flatten(),
    "permute": lambda v: torch.outer(v, v).permute(1, 0),
    "squeeze": lambda v: v[None].squeeze(),
    "unsqueeze": lambda v: v.unsqueeze(0),
    "norm": lambda v: v.norm(),
    "std": lambda v: v.std(),
    "cumsum": lambda v: v.cumsum(0),
    "flip": lambda v: v.flip(0),
    "roll": lambda v: v.roll(1),
    "tril": lambda v: torch.outer(v, v).tril(),
    "diag": lambda v: torch.diag(v),
    "logsumexp": lambda v: v.logsumexp(0),
    "clamp": lambda v: v.clamp(min=0),
    "prod": lambda v: v.prod(),
    "lerp": lambda v: torch.lerp(v, v * 2, 0.3),
    "any": lambda v: v * (v > 0).any(),
    "all": lambda v: v * torch.all(v > 0),
    "eq": lambda v: v * (v == v.max()),
    "ne": lambda v: v * (v != v.max()),
    "long": lambda v: v.long() + v,
    "int mult": lambda v: v * 2,
    "bool": lambda v: v.bool() * v,
    "reversed": lambda v: sum(reversed([*v])),
    "kl": lambda v: F.kl_div(F.log_softmax(v, 0), F.softmax(v * 2, 0), reduction="sum"),
    "tensor - v": lambda v: torch.ones(3).double() - v,
    "1/v": lambda v: 1 / v,
    "sum list": lambda v: sum([v, v]),
    "sum start": lambda v: sum([v, v], torch.zeros(3).double()),
    "torch.sum": lambda v: torch.sum(v),
    "sum dims": lambda v: v.sum(dim=0, keepdim=True),
    "mean dtype": lambda v: v.mean(dtype=torch.float32),
    "torch.atleast": lambda v: torch.atleast_2d(v),  # type: ignore[no-untyped-call]
    "broadcast": lambda v: torch.broadcast_tensors(v, torch.ones(2, 3))[0],  # type: ignore[no-untyped-call]
    "meshgrid": lambda v: torch.meshgrid(v, v, indexing="ij")[0],
    "cartesian": lambda v: torch.cartesian_prod(v, v),
    "cdist": lambda v: torch.cdist(v[None], v[None]),
    "cosine": lambda v: F.cosine_similarity(v, v * 2 + 1, dim=0),
    "autograd.grad": lambda v: torch.autograd.grad(v.sum(), v, create_graph=True)[0] * v,
    "fmod": lambda v: v.fmod(0.7),
    "true_divide": lambda v: torch.true_divide(v, 2),
    "div mode": lambda v: torch.div(v, 2, rounding_mode="floor") + v,
    "sub alpha": lambda v: torch.sub(v, v, alpha=2),
    "add alpha": lambda v: torch.add(v, v, alpha=2),
    "addcmul": lambda v: torch.addcmul(v, v, v, value=2),
    "layer_norm": lambda v: F.layer_norm(v, (3,)),
    "normalize": lambda v: F.normalize(v, dim=0),
    "glu": lambda v: F.glu(torch.cat([v, v])),
    "min list": lambda v: torch.min(v),
    "tensor_split": lambda v: v.tensor_split(3)[0],
    "narrow": lambda v: v.narrow(0, 1, 2),
    "select": lambda v: v.select(0, 1),
    "take": lambda v: v.take(torch.tensor([0, 2])),
    "nonzero const": lambda v: v[torch.tensor([1, 0, 1]).nonzero().squeeze(1)],
}


@pytest.mark.filterwarnings("ignore")  # from torch, for the reference values
@pytest.mark.parametrize("name", IDIOMS)
def test_idioms_give_what_torch_gives(name: str) -> None:
    abt.check_batched(lambda x: IDIOMS[name](NET.lin(x)), ROWS, module=NET, backend="reference")


@singledispatch
def kind_of(x: Any) -> str:
    return "other"


@kind_of.register
def _(x: Tensor) -> str:
    return "tensor"


def by_match(x: Any) -> str:
    match x:
        case Tensor():
            return "tensor"
        case _:
            return "other"


def leaves(nested: Any) -> Iterator[Any]:
    if torch.is_tensor(nested):
        yield nested
    elif isinstance(nested, list):
        for part in nested:
            yield from leaves(part)


OPTIONAL: Any = Optional[Tensor]  # noqa: UP045
UNION: Any = Union[list, Tensor]  # noqa: UP007
LEGACY_UNION: Any = Union[list, torch.FloatTensor]  # noqa: UP007
IS_A = partial(isinstance)


class Registered(ABC):  # noqa: B024
    """A class with tensors as virtual instances."""


class Unregistered(ABC):  # noqa: B024
    """A class without virtual instances."""


Registered.register(Tensor)


class Checker:
    """`isinstance` as attributes."""

    check = staticmethod(isinstance)

    def __init__(self) -> None:
        self.is_a = isinstance


CHECKER = Checker()


def by_legacy_match(x: Any) -> bool:
    match x:
        case torch.FloatTensor():
            return True
        case _:
            return False


def isinstance_of_legacy(kind: Any) -> Callable[[Any], Any]:
    return lambda v: isinstance(v, kind)


REFUSED: dict[str, Callable[[Any], Any]] = {
    **{kind.__name__: isinstance_of_legacy(kind) for kind in (torch.FloatTensor, torch.LongTensor, torch.BoolTensor)},
    "in a tuple": isinstance_of_legacy((list, (int, torch.FloatTensor))),
    "by attribute": lambda v: isinstance(v, torch.FloatTensor),
    "in a union": isinstance_of_legacy(LEGACY_UNION),
    "match": by_legacy_match,
    "conditional": lambda v: isinstance(v, torch.FloatTensor if v is not None else Tensor),
    "computed": lambda v: isinstance(v, type(torch.FloatTensor(1)) and torch.FloatTensor),
    "starred": lambda v: isinstance(*(v, torch.FloatTensor)),
    "partial": lambda v: partial(isinstance, v)(torch.FloatTensor),
    "call": lambda v: (lambda: isinstance)()(v, Tensor),
    "literal table": lambda v: {"is": isinstance}["is"](v, Tensor),
}


@pytest.mark.parametrize("question", REFUSED)
def test_a_class_whose_check_reads_memory_or_that_is_unknown_is_refused(question: str) -> None:
    with pytest.raises(ab.GraphError, match="isinstance"):
        abt.batched(lambda x: REFUSED[question](NET.lin(x)), module=NET, backend="reference")(ROWS)


QUESTIONS: dict[str, Callable[[Any], bool]] = {
    "isinstance": lambda v: isinstance(v, Tensor),
    "of several": lambda v: isinstance(v, (list, torch.Tensor)),
    "by keyword of another name": lambda v, isinst=isinstance: isinst(v, torch.Tensor),  # type: ignore[misc]
    "in lines": lambda v: isinstance(
        v,
        Tensor,
    ),
    "is_tensor": torch.is_tensor,
    "all": lambda v: all(isinstance(x, Tensor) for x in [v, v]),
    "list": lambda v: [isinstance(x, Tensor) for x in [v, v]] == [True, True],
    "map": lambda v: all(map(torch.is_tensor, [v, v])),
    "filter": lambda v: len([*filter(torch.is_tensor, [v, None, v])]) == 2,
    "match": lambda v: by_match(v) == "tensor",
    "singledispatch": lambda v: kind_of(v) == "tensor",
    "attribute": lambda v: v.__class__ is Tensor,
    "getattr": lambda v: getattr(v, "__class__") is Tensor,  # noqa: B009
    "builtins": lambda v: __import__("builtins").isinstance(v, Tensor),
    "leaves": lambda v: len([*leaves([[v], [None, [v]]])]) == 2,
    "no parameter": lambda v: not isinstance(v, nn.Parameter),
    "no list": lambda v: not isinstance(v, (list, tuple, dict, int, float, str)),
    "conditional": lambda v: isinstance(v if v is not None else None, Tensor),
    "optional": lambda v: isinstance(v, OPTIONAL),
    "union": lambda v: isinstance(v, UNION) and isinstance(v, list | Tensor),
    "attribute that is isinstance": lambda v: CHECKER.is_a(v, Tensor) and Checker.check(v, Tensor),
    "partial": lambda v: IS_A(v, Tensor),
    "partial of the value": lambda v: (lambda is_a: is_a(Tensor))(partial(isinstance, v)),
    "table": lambda v, table={"is": [isinstance]}: table["is"][0](v, Tensor),  # type: ignore[misc]
    "registered": lambda v: isinstance(v, Registered) and not isinstance(v, Unregistered),
    "often": lambda v: all(isinstance(v, Tensor) for _ in range(100)),
}
SOURCES: dict[str, Callable[[Any], Any]] = {
    "cell": lambda x: NET.lin(x),
    "op": lambda x: NET.lin(x) + 1,
    "function": lambda x: torch.cumsum(NET.lin(x), 0),
    "stack": lambda x: torch.stack([NET.lin(x), x]),
    "row": lambda x: torch.stack([NET.lin(x), x])[0],
    "slice": lambda x: torch.stack([NET.lin(x), x])[1:],
    "part": lambda x: NET.lin(x).chunk(3)[1],
    "ints": lambda x: NET.lin(x).argmax(),
    "bools": lambda x: NET.lin(x) > 0,
    "parameter": lambda x: NET.plain.weight.sum(),
    "gradient": lambda x: (
        torch.autograd.grad(NET.lin(x).pow(2).sum(), NET.plain.weight, allow_unused=True)[0]
        or torch.autograd.grad((v := NET.lin(x)).pow(2).sum(), v)[0]
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_recorded_value_is_a_tensor(question: str, source: str) -> None:
    asked = []

    def program(x: Tensor) -> Tensor:
        asked.append(QUESTIONS[question](SOURCES[source](x)))
        return NET.lin(x)  # type: ignore[no-any-return]

    abt.batched(program, module=NET, backend="reference")(ROWS)
    assert asked == [True, True]


def test_values_are_tensors_in_async_programs_and_in_bodies() -> None:
    @abt.cell
    def body(x: Tensor) -> Tensor:
        assert isinstance(x, Tensor)
        return x * 2 if torch.is_tensor(x * 2) else x

    async def program(x: Tensor) -> Tensor:
        h = NET.lin(x)
        assert isinstance(h, Tensor)
        await ab.value(h)
        assert torch.is_tensor(h)
        return body(h)

    abt.check_batched(program, ROWS, module=NET, backend="reference")


class Doubled(torch.autograd.Function):
    """A function with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.parametrize("function", [Doubled.apply, torch.vmap(torch.tanh)])
def test_functions_whose_code_needs_tensors_are_refused_in_a_sentence(function: Any) -> None:
    with pytest.raises(ab.GraphError, match=r"was given a recorded value.*; call it in a cell\.\nwhile instance 0"):
        abt.batched(lambda x: function(NET.lin(x)), module=NET, backend="reference")(ROWS)
    in_a_cell: Any = abt.cell(lambda x: torch.vmap(torch.tanh)(x))
    abt.check_batched(lambda x: in_a_cell(NET.lin(x)), ROWS, module=NET, backend="reference")


NOT_FOR_C: dict[str, Callable[[Any], Any]] = {
    "arange": lambda v: torch.arange(v[0]),
    "full": lambda v: torch.full((3,), v[0]),
    "zeros": lambda v: torch.zeros(v.argmax()),
    "zeros of a tuple": lambda v: torch.zeros((v.argmax(), 2)),
    "view": lambda v: torch.ones(3).view(v.argmax()),
    "expand": lambda v: torch.ones(3).expand(v.argmax(), 3),
    "repeat": lambda v: torch.ones(3).repeat(v.argmax()),
    "alpha": lambda v: torch.add(torch.ones(3), 1, alpha=v[0]),
    "dim": lambda v: torch.ones(3).sum(v.argmax()),
    "Tensor": lambda v: torch.Tensor(v),
    "FloatTensor": lambda v: torch.FloatTensor([v[0]]),
    "map of arange": lambda v: [*map(torch.arange, [v[0]])],
    "map of isinstance": lambda v: [*map(isinstance, [v], [Tensor])],
    "scalar_tensor": lambda v: torch.scalar_tensor(v[0]),
    "sparse": lambda v: torch.sparse_coo_tensor(torch.tensor([[0, 1, 2]]), v),
    "dlpack": lambda v: torch.utils.dlpack.to_dlpack(v),  # type: ignore[attr-defined]
    "vmap": lambda v: torch.vmap(lambda x: x * 2)(v),
    "func.grad": lambda v: torch.func.grad(lambda x: x.sum())(v),
    "backward": lambda v: torch.autograd.backward(v.sum()),
    "item": lambda v: v[0].item(),
    "tolist": lambda v: v.tolist(),
    "numpy": lambda v: v.numpy(),
    "float": lambda v: float(v[0]),
    "int": lambda v: int(v.argmax()),
    "if": lambda v: 1 if v[0] > 0 else 2,
    "index": lambda v: [1, 2, 3][v.argmax()],
    "format": lambda v: f"{v[0]:.2f}",
    "data_ptr": lambda v: v.data_ptr(),
    "stride": lambda v: v.stride(),
    "storage": lambda v: v.untyped_storage(),
    "pickle": pickle.dumps,
    "cuda": lambda v: v.to("cuda"),
    "out": lambda v: torch.add(v, 1, out=torch.empty(3).double()),
    "nested": lambda v: torch.nested.nested_tensor([v, v]),
    "attribute": lambda v: v.no_such_attribute,
}


@pytest.mark.parametrize("name", NOT_FOR_C)
def test_what_needs_memory_or_numbers_of_a_value_is_an_error(name: str) -> None:
    """Torch's C++ code takes a value for a tensor and would read its memory."""

    def program(x: Tensor) -> Any:
        NOT_FOR_C[name](NET.lin(x))
        return NET.lin(x)

    for _ in range(2):
        with pytest.raises(
            (
                ab.AutobatchError,
                TypeError,
                ValueError,
                RuntimeError,
                AttributeError,
                AssertionError,
                pickle.PicklingError,
            )
        ) as error:
            abt.batched(program, module=NET, backend="reference")(ROWS)
        assert "ab." not in str(error.value).replace("ab.value", "").replace("ab.batched", "")
    gc.collect()


REQUIRING: dict[str, Callable[[Any, Tensor], Any]] = {
    "cell": lambda net, x: net.lin(x),
    "detached": lambda net, x: net.lin(x).detach(),
    "data": lambda net, x: net.lin(x).data,
    "of detached": lambda net, x: net.lin(net.lin(x).detach()),
    "op of detached": lambda net, x: net.lin(x).detach() * 2,
    "mixture": lambda net, x: net.lin(x).detach() * 2 + net.lin(x),
    "condition": lambda net, x: net.lin(x) > 0,
    "argmax": lambda net, x: net.lin(x).argmax(),
    "float of ints": lambda net, x: net.lin(x).argmax().double(),
    "parameter": lambda net, x: net.plain.weight[0],
    "frozen": lambda net, x: net.frozen(x),
    "op of frozen": lambda net, x: net.frozen(x) + x,
    "frozen of values": lambda net, x: net.frozen(net.lin(x)),
    "stack": lambda net, x: torch.stack([net.frozen(x), net.lin(x)]),
    "stack of frozen": lambda net, x: torch.stack([net.frozen(x), x]),
    "no_grad": lambda net, x: without_gradient(net, x),
    "run by torch": lambda net, x: net.lin(x).cumsum(0),
}


def without_gradient(net: Any, x: Tensor) -> Any:
    with torch.no_grad():
        return net.lin(x)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = abt.cell(nn.Linear(3, 3).double().requires_grad_(False))


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("name", REQUIRING)
def test_requires_grad_is_what_torch_says(name: str, asks: bool) -> None:
    net, rows = Frozen(), [x.clone().requires_grad_(asks) for x in ROWS]
    expected = [REQUIRING[name](net, x).requires_grad for x in rows]
    found = []

    def program(x: Tensor) -> Any:
        value = REQUIRING[name](net, x)
        found.append(value.requires_grad)
        assert value.is_leaf is not value.requires_grad
        return net.lin(x)

    abt.batched(program, module=net, backend="reference")(rows)
    assert found == expected
    with torch.no_grad():
        abt.batched(program, module=net, backend="reference")(rows)
    assert found[2:] == [False, False]


STACKED: dict[str, Callable[[Tensor], Tensor]] = {
    "bools": lambda h: h > 0,
    "bools of one number": lambda h: (h > 0).any(),
    "ints": lambda h: h.argmax(),
    "halves": lambda h: h.half(),
    "floats": lambda h: h,
}
REDUCED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum(0)": lambda s: s.sum(0),
    "sum()": lambda s: s.sum(),
    "keepdim": lambda s: s.sum(0, keepdim=True),
    "amax": lambda s: s.amax(0),
    "mul": lambda s: s * s,
    "add 1": lambda s: s + 1,
    "input=": lambda s: torch.sum(input=s, dim=0),
}


@pytest.mark.parametrize("kind", STACKED)
@pytest.mark.parametrize("name", REDUCED)
def test_stacks_give_the_dtype_that_torch_gives(name: str, kind: str) -> None:
    def run(x: Tensor) -> Tensor:
        h = NET.lin(x)
        return REDUCED[name](torch.stack([STACKED[kind](h), STACKED[kind](h * 2)]))

    found, wanted = abt.batched(run, module=NET, backend="reference")(ROWS), torch.stack([run(x) for x in ROWS])
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted)


SHAPES: dict[str, Callable[[Any], Any]] = {
    "a vector": lambda v: v,
    "a number": lambda v: v.sum(),
    "a matrix": lambda v: torch.outer(v, v)[:, :2],
    "a stack": lambda v: torch.stack([v, v, v]),
    "part of a stack": lambda v: torch.stack([v, v, v])[1:],
    "complex numbers": lambda v: torch.complex(v, v),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_sizes(name: str) -> None:
    def count(v: Any) -> Any:
        x = SHAPES[name](v)
        assert all(isinstance(shape, torch.Size) for shape in (x.shape, x.shape[:1]))
        like = (x.reshape(x.shape) + x.new_zeros(x.shape)).abs()
        return like.sum() * x.shape.numel() + x[None].shape[1:].numel() * v

    def ends(v: Any) -> Any:
        x = SHAPES[name](v)
        return x.shape, x.size(), v

    found = abt.batched(lambda x: count(NET.lin(x)), module=NET)(ROWS)
    torch.testing.assert_close(found, torch.stack([count(NET.lin(x)) for x in ROWS]))
    shape, size, _ = abt.batched(lambda x: ends(NET.lin(x)), module=NET)(ROWS)
    want = ends(ROWS[0])[0]
    assert [x.tolist() for x in shape] == [x.tolist() for x in size] == [[n, n] for n in want]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "t": lambda v: torch.outer(v, v).t(),
    "permute": lambda v: torch.outer(v, v).permute(1, 0),
    "mT": lambda v: torch.outer(v, v).mT,
    "a column": lambda v: torch.outer(v, v)[:, 0],
    "every second": lambda v: v[::2],
    "expand": lambda v: v[:, None].expand(3, 3),
    "a stack, transposed": lambda v: torch.stack([v, v]).t(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_refuse_to_say_whether_they_are_contiguous(name: str) -> None:
    assert not VIEWS[name](ROWS[0]).is_contiguous()
    with pytest.raises(GraphError, match=r"torch\.Tensor\.is_contiguous needs the memory"):
        abt.batched(lambda x: x if VIEWS[name](NET.lin(x)).is_contiguous() else -x, module=NET)(ROWS)


@pytest.mark.parametrize("make", [lambda v: v, lambda v: torch.outer(v, v), lambda v: torch.stack([v, v])])
def test_what_is_no_view_is_contiguous(make: Callable[[Any], Any]) -> None:
    assert make(ROWS[0]).is_contiguous()
    found = abt.batched(lambda x: x if make(NET.lin(x)).is_contiguous() else -x, module=NET)(ROWS)
    torch.testing.assert_close(found, torch.stack(ROWS))


def test_values_equal_neither_none_nor_strings() -> None:
    """As tensors in torch, which needs no numbers for it."""
    layer = abt.cell(nn.Linear(2, 2))

    def known(x: Tensor) -> Any:
        h = layer(x)
        told = h == None, h != None, h == None, h != None, h == "mean", h != "mean"  # noqa: E711
        return h if told == (False, True) * 3 else h * 0

    xs = [torch.ones(2), torch.zeros(2)]
    torch.testing.assert_close(abt.batched(known, module=layer)(xs), layer(torch.stack(xs)))
