"""Test parameters, their names in modules, and state that is loaded completely or not at all."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import CheckpointError, DataError, GraphError, ShapeError
from autobatch.nn.layers import Linear
from autobatch.params.module import Module, check_entries
from autobatch.params.parameter import Parameter
from helpers.models.small_modules import NAMES, Head, Model, Tied, values_of
from helpers.runs.ways import each

# --- Parameter


@each("data", [1, 2.5, [1, 2], np.ones((2, 3)), np.ones(2, np.int64), np.ones(2, bool), np.zeros(0)])
def test_a_parameter_is_float32_at_first(data: Any) -> None:
    parameter = Parameter(data)
    assert parameter.dtype == np.float32
    assert parameter.shape == np.shape(data)
    np.testing.assert_array_equal(parameter.data, np.asarray(data, np.float32))


def test_a_parameter_copies_its_data() -> None:
    data = np.ones(2, np.float32)
    parameter = Parameter(data)
    data[:] = 5.0
    assert parameter.data.tolist() == [1.0, 1.0]


def test_assigning_data_copies_in_place() -> None:
    parameter = Parameter([1.0, 2.0])
    array = parameter.data
    parameter.data = [3, 4]
    parameter.data += 1.0
    parameter.data = parameter.data[::-1]
    assert parameter.data is array
    assert array.tolist() == [5.0, 4.0]
    assert array.dtype == np.float32


@pytest.mark.parametrize("values", [1.0, [1.0], [[1.0, 2.0]], [1.0, 2.0, 3.0]])
def test_assigning_another_shape_is_refused(values: Any) -> None:
    parameter = Parameter([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"cannot assign .* to a Parameter of shape \(2,\)"):
        parameter.data = values
    assert parameter.data.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("data", ["abc", [1 + 2j], [[1.0], [1.0, 2.0]], None, {"a": 1}])
def test_what_holds_no_real_numbers_is_no_parameter(data: Any) -> None:
    with pytest.raises(DataError, match=r"cannot make a Parameter: .*; give an array of real numbers\."):
        Parameter(data)


def test_a_parameter_is_no_array() -> None:
    with pytest.raises(GraphError, match=r"Parameter of shape \(2,\) to a NumPy array"):
        np.asarray(Parameter([1.0, 2.0]))


def test_a_parameter_changes_dtype_in_place() -> None:
    parameter = Parameter([0.1])
    assert parameter.astype("float64") is parameter
    assert parameter.dtype == np.float64
    assert parameter.data[0] == np.float32(0.1)
    array = parameter.data
    assert parameter.astype(np.float64).data is array


def test_parameters_hash_by_identity_and_print() -> None:
    first, second = Parameter([1.0]), Parameter([1.0])
    assert len(dict.fromkeys([first, second, first])) == 2
    assert repr(first) == "Parameter(shape=(1,), dtype=float32)"
    assert repr(Parameter(1.0, trainable=False)) == "Parameter(shape=(), dtype=float32, trainable=False)"


# --- the walk


def test_names_follow_the_order_of_definition() -> None:
    parameters = Model().parameters()
    assert list(parameters) == NAMES
    assert [name for name, parameter in parameters.items() if not parameter.trainable] == ["frozen"]


def test_a_shared_parameter_has_its_first_name() -> None:
    model = Tied()
    assert list(model.parameters()) == ["embedding"]
    assert model.parameters()["embedding"] is model.output.weight


def test_cycles_end() -> None:
    first, second = Head(), Head()
    first.other, second.other = second, first  # type: ignore[attr-defined]
    ring: list[Any] = [first]
    ring.append(ring)
    second.ring = ring  # type: ignore[attr-defined]
    assert list(first.parameters()) == ["scale", "other.scale"]
    first.load_state_dict(first.state_dict())


def test_modules_that_all_know_each_other_are_walked_once() -> None:
    heads = [Head(float(i)) for i in range(30)]
    for head in heads:
        head.all = heads  # type: ignore[attr-defined]
    assert len(heads[0].parameters()) == 30
    heads[0].load_state_dict(heads[0].state_dict())


def test_a_long_chain_of_modules_is_walked() -> None:
    last = first = Head()
    for _ in range(5000):
        last.next = Head()  # type: ignore[attr-defined]
        last = last.next  # type: ignore[attr-defined]
    assert len(first.parameters()) == 5001


def test_two_parameters_of_one_name_are_refused() -> None:
    head = Head()
    head.both = {1: Parameter(1.0), "1": Parameter(2.0)}  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match=r"two parameters of Head are both named 'both\.1'; rename"):
        head.parameters()


def test_functions_put_in_place_of_methods_are_passed_over() -> None:
    model = Model()
    vars(model)["cell"] = lambda x: x
    assert list(model.parameters()) == NAMES


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_model_is_another_one_with_the_same_numbers(clone: Callable[[Tied], Tied]) -> None:
    model = Tied()
    other = clone(model)
    assert values_of(other) == values_of(model)
    assert other.again.weight is other.embedding
    other.embedding.data += 1.0
    assert values_of(other) != values_of(model)


# --- dtype


def test_astype_reaches_every_parameter_and_returns_the_module() -> None:
    model = Model()
    assert model.dtype == np.float32
    assert model.astype("float64") is model
    assert model.dtype == np.float64
    assert {parameter.dtype for parameter in model.parameters().values()} == {np.dtype(np.float64)}
    assert Module().dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "int32", "no such type", None, ">f4"])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    model = Model()
    with pytest.raises(DataError, match=r"dtype of parameters must be 'float32' or 'float64', got "):
        model.astype(dtype)
    assert model.dtype == np.float32


def test_mixed_dtypes_are_named() -> None:
    model = Model()
    model.layers[1].scale.astype("float64")
    expected = r"Model differ in dtype: 'table' is float32 and 'layers\.1\.scale' is float64; call astype\(\)"
    with pytest.raises(GraphError, match=expected):
        _ = model.dtype


# --- state


def test_state_survives_a_round_trip() -> None:
    model, other = Model(), Model()
    state = model.state_dict()
    for parameter in other.parameters().values():
        parameter.data = parameter.data + 1.0
    other.load_state_dict(state)
    assert list(state) == NAMES
    assert values_of(other) == values_of(model)
    state["table"][:] = 100.0
    assert values_of(other) == values_of(model)


def test_numbers_are_cast_to_the_dtype_of_the_model() -> None:
    head = Head()
    head.load_state_dict({"scale": np.array([1, 2, 3])})
    assert head.dtype == np.float32
    assert head.scale.data.tolist() == [1.0, 2.0, 3.0]
    head.astype("float64").load_state_dict({"scale": np.full(3, 0.1)})
    assert head.scale.data.tolist() == [0.1] * 3


SHARED = [("embedding",), ("output.weight",), ("again.weight",), ("embedding", "output.weight", "again.weight")]


@pytest.mark.parametrize("names", SHARED, ids=",".join)
def test_a_shared_parameter_loads_from_any_or_all_of_its_names(names: tuple[str, ...]) -> None:
    model = Tied()
    array = np.array([[5.0, np.nan], [7.0, 8.0]])
    model.load_state_dict(dict.fromkeys(names, array))
    np.testing.assert_array_equal(model.embedding.data, array)


def test_a_shared_parameter_that_was_stored_twice_differently_is_refused() -> None:
    model = Tied()
    before = values_of(model)
    with pytest.raises(CheckpointError, match=r"'embedding' and 'output\.weight' are one parameter of the model"):
        model.load_state_dict({"embedding": np.zeros((2, 2)), "output.weight": np.ones((2, 2))})
    assert values_of(model) == before


def broken_states() -> dict[str, tuple[Callable[[dict[str, Any]], object], str]]:
    return {
        "missing": (lambda state: state.pop("frozen"), r"missing: 'frozen'; build"),
        "unexpected": (lambda state: state.update(other=np.ones(2)), r"unexpected: 'other'; build"),
        "module": (lambda state: state.update(pair=np.ones(2)), r"unexpected: 'pair'; build"),
        "below": (lambda state: state.update({"table.x": np.ones(2)}), r"unexpected: 'table\.x'; build"),
        "shape": (
            lambda state: state.update(frozen=np.ones((1, 2))),
            r"of another shape: 'frozen' \(\(1, 2\) instead of \(2,\)\); build",
        ),
        "text": (
            lambda state: state.update(frozen=["a", "b"]),
            r"cannot load 'frozen' from the state dict: the value holds <U1, not real numbers; give an array",
        ),
        "ragged": (lambda state: state.update(frozen=[[1], [1, 2]]), r"cannot load 'frozen' .* not an array"),
        "all": (
            lambda state: (state.pop("table"), state.update(other=np.ones(2), frozen=np.ones(3))),
            r"cannot load the state dict into Model: missing: 'table'; unexpected: 'other'; of another shape: 'frozen'",
        ),
    }


@each("kind", broken_states())
def test_a_state_that_does_not_fit_changes_nothing(kind: str) -> None:
    spoil, message = broken_states()[kind]
    model = Model()
    before = values_of(model)
    state: dict[str, Any] = {name: array + 1.0 for name, array in model.state_dict().items()}
    spoil(state)
    with pytest.raises(CheckpointError, match=message):
        model.load_state_dict(state)
    assert values_of(model) == before


@pytest.mark.parametrize("strict", [True, False])
def test_names_of_parameters_are_text(strict: bool) -> None:
    state: Any = {1: np.ones(2)}
    with pytest.raises(CheckpointError, match="must be strs, got 1"):
        Tied().load_state_dict(state, strict)


def test_long_lists_of_names_are_cut() -> None:
    with pytest.raises(CheckpointError, match=r"^cannot try: missing: '0', '1', '2', '3', '4' and 15 more; build"):
        check_entries("cannot try", {}, {str(i): () for i in range(20)})


def test_a_torch_state_dict_loads() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    twin = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4))
    twin[2].weight = twin[1].weight

    class Layers(Module):
        def __init__(self, rng: np.random.Generator) -> None:
            layers = [Linear(3, 4, rng=rng), Linear(4, 4, rng=rng, bias=False), Linear(4, 4, rng=rng)]
            layers[2].weight = layers[1].weight
            self.layers = layers

    model = Layers(np.random.default_rng(0))
    model.load_state_dict({f"layers.{name}": tensor for name, tensor in twin.state_dict().items()})
    for name, tensor in twin.named_parameters():
        np.testing.assert_array_equal(model.parameters()[f"layers.{name}"].data, tensor.detach().numpy())


@each("kind", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "int32", "bool"])
def test_tensors_of_torch_are_numbers_like_any_other(kind: str) -> None:
    """Of any type, with autograd history, and strided. Nothing checks for torch explicitly."""
    torch = pytest.importorskip("torch", reason="compares with torch")
    numbers = torch.tensor([[0.5, -2.0], [1.0, 0.0], [3.0, 1.5]]).to(getattr(torch, kind)).T[1]
    wanted = numbers.double().numpy()
    if numbers.is_floating_point():
        numbers = torch.nn.Parameter(numbers)
    head = Head()
    head.load_state_dict({"scale": numbers})
    np.testing.assert_array_equal(head.scale.data, wanted)
    np.testing.assert_array_equal(Parameter(numbers).data, wanted)
    head.scale.data = numbers
    np.testing.assert_array_equal(head.scale.data, wanted)


def test_tensors_without_real_numbers_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    head = Head()
    with pytest.raises(CheckpointError, match="the value holds complex64, not real numbers; give an array"):
        head.load_state_dict({"scale": torch.ones(3, dtype=torch.complex64)})
    with pytest.raises(CheckpointError, match="cannot load 'scale' from the state dict: the value is not an array"):
        head.load_state_dict({"scale": torch.ones(3).to_sparse()})
    assert head.scale.data.tolist() == [0.0] * 3


def test_what_does_not_fit_may_be_left_out() -> None:
    """As in torch, missing and unexpected names are returned, and other shapes are refused anyway."""
    torch = pytest.importorskip("torch", reason="compares with torch")
    model, twin = Model(), torch.nn.ParameterDict({"frozen": torch.zeros(2), "scale": torch.ones(2)})
    before = values_of(model)
    state: dict[str, Any] = {"frozen": np.array([5.0, 6.0]), "other": "no array", "pair": np.ones(2)}
    missing, unexpected = found = model.load_state_dict(state, strict=False)
    assert values_of(model) == {**before, "frozen": [5.0, 6.0]}
    assert (missing, unexpected) == ([name for name in NAMES if name != "frozen"], ["other", "pair"])
    theirs = twin.load_state_dict({"frozen": torch.zeros(2), "other": torch.ones(1)}, strict=False)
    assert found._fields == theirs._fields
    assert theirs == (["scale"], ["other"])
    assert model.load_state_dict(model.state_dict()) == ([], [])
    with pytest.raises(CheckpointError, match=r"Model: of another shape: 'frozen' \(\(3,\) instead of \(2,\)\);"):
        model.load_state_dict({"frozen": np.ones(3), "other": np.ones(1)}, strict=False)
    assert values_of(model) == {**before, "frozen": [5.0, 6.0]}


class Swapped(ab.Module):
    def __init__(self) -> None:
        self.a, self.b = ab.Parameter([1.0, 2.0]), ab.Parameter([3.0, 5.0])

    @ab.cell
    def loss(self, x: Any) -> Any:
        return ab.sum(self.a * x + self.b * x * x)


def test_parameters_that_change_places_after_they_were_traced() -> None:
    model = Swapped()
    loss, x = ab.batched(model.loss), np.array([2.0, 1.0])
    assert float(loss([x])[0]) == 21.0
    model.a, model.b = model.b, model.a
    assert float(loss([x])[0]) == float(ab.batched(model.loss)([x])[0]) == float(np.asarray(model.loss(x))) == 17.0
    np.testing.assert_array_equal(loss.value_and_grad([x])[1]["a"], [2.0, 1.0])


def test_a_module_without_parameters_computes_in_the_type_of_what_it_is_given() -> None:
    """In eager mode, dropout in a float64 model once rounded to float32."""
    x = np.array([0.1, 0.3])
    assert np.asarray(ab.Dropout(0.0)(x)).dtype == np.float64
    assert np.asarray(ab.Dropout(0.0)(x.astype(np.float32))).dtype == np.float32


# Names that every module has.


TAKEN = [
    "parameters", "train", "eval", "state_dict", "load_state_dict", "save", "load", "to", "astype", "dtype", "training",
    "other_names",
]  # fmt: skip
FREE = ["modules", "places", "recording", "methods", "store", "adopts", "named_parts", "layers", "device", "name"]


class Held(ab.Module):
    """A cell, and a list under any name."""

    def __init__(self, name: str) -> None:
        rng = np.random.default_rng(0)
        setattr(self, name, [ab.Linear(3, 3, rng=rng), ab.Linear(3, 1, rng=rng)])
        self.name_of_layers = name

    def loss(self, x: Any) -> Any:
        for layer in getattr(self, self.name_of_layers):
            x = layer(x)
        return ab.sum(x)


@pytest.mark.parametrize("name", FREE)
def test_a_list_of_layers_has_any_name_but_those_of_methods(name: str) -> None:
    model = Held(name)
    loss = ab.batched(model.loss)
    value, grads = loss.value_and_grad([np.ones(3)])
    np.testing.assert_allclose(value, model.loss(np.ones(3)), rtol=1e-6)
    assert list(grads) == [f"{name}.{k}.{what}" for k in (0, 1) for what in ("weight", "bias")]
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert list(again.eval().to("cpu").astype("float64").state_dict()) == list(grads)
    made = type("Made", (ab.Module,), {name: [1, 2]})
    assert getattr(made(), name) == [1, 2]


@pytest.mark.parametrize("name", TAKEN)
def test_the_names_of_methods_are_refused_at_assignment(name: str) -> None:
    with pytest.raises(GraphError, match=rf"^Held\.{name} cannot be of type list: "):
        Held(name)
    with pytest.raises(GraphError, match=rf"^Made\.{name} cannot be of type list"):
        type("Made", (ab.Module,), {name: [1, 2]})
    mixin = type("Mixin", (), {name: [1, 2]})
    with pytest.raises(GraphError, match=rf"^Made\.{name} cannot be of type list"):
        type("Made", (mixin, ab.Module), {})


def test_methods_are_replaced_by_methods_alone() -> None:
    type("Made", (ab.Module,), {"parameters": lambda self: {}})
    with pytest.raises(GraphError, match=r"^Made\.parameters cannot be of type property"):
        type("Made", (ab.Module,), {"parameters": property(lambda self: {})})


def test_every_name_that_a_module_has_is_refused() -> None:
    for name in dir(ab.Module):
        if not name.startswith("__"):
            with pytest.raises(GraphError, match=f"{name} cannot be of type list"):
                Held(name)


def test_a_method_may_replace_a_method() -> None:
    class Counting(ab.Module):
        other_names = MappingProxyType({"w": "weight"})
        training = False

        def parameters(self) -> dict[str, Parameter]:
            return {}

        @property
        def dtype(self) -> np.dtype[Any]:
            return np.dtype(np.float64)

        @staticmethod
        def load(*_: Any) -> Any:
            return "loaded"

    model = Counting()
    assert not model.parameters()
    assert (str(model.dtype), model.load("a file"), model.training) == ("float64", "loaded", False)
    assert model.train().training is True
    with pytest.raises(GraphError, match=r"^Made\.dtype cannot be of type function"):
        type("Made", (ab.Module,), {"dtype": lambda self: np.float64})


class Shared(ab.Module):
    """A module with modules in containers, shared modules, and itself."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.start = Parameter(np.zeros(4), trainable=False)
        self.layers = [Linear(4, 8, rng=rng), Linear(8, 2, rng=rng, bias=False)]
        self.drop, self.sizes, self.gates = ab.Dropout(0.5), [[4], [8]], {"a": ab.LayerNorm(3)}
        self.again, self.whole = self.layers[0], self
        self.tied = Linear(4, 8, rng=rng)
        self.tied.weight = self.layers[0].weight


PRINTED = """\
Shared(
  (start): Parameter(shape=(4,), dtype=float32, trainable=False)
  (layers): list(
    (0): Linear(weight=(8, 4), bias=(8,))
    (1): Linear(weight=(2, 8))
  )
  (drop): Dropout(rate=0.5)
  (gates): dict(
    (a): LayerNorm(weight=(3,), bias=(3,), eps=1e-05)
  )
  (again): Linear, the same as layers.0
  (whole): Shared, the same as the root
  (tied): Linear(
    (weight): Parameter, the same as layers.0.weight
    (bias): Parameter(shape=(8,), dtype=float32)
  )
)"""


def test_a_module_prints_as_a_tree() -> None:
    assert str(Shared()) == PRINTED
    assert repr(Linear(2, 3, rng=np.random.default_rng(0))) == "Linear(weight=(3, 2), bias=(3,))"


def test_a_chain_of_5000_modules_prints() -> None:
    first = last = Module()
    for _ in range(5000):
        last.next = Module()  # type: ignore[attr-defined]
        last = last.next  # type: ignore[attr-defined]
    assert str(first).count("(next): Module(") == 5000
