"""Test derivatives inside programs: what they differentiate by, the stages in which they work, and refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import autobatch as ab

EPS = 1e-6
RNG = np.random.default_rng(0)


@dataclass
class Cloud:
    """An instance with one float array and fields without gradients."""

    x: Any
    word: int
    name: str = "cloud"


def test_rows_of_any_number_move_along_rows_inside_a_cell() -> None:
    @ab.cell(ragged=("x",))
    def moved(x: Any) -> Any:
        return ab.jvp(lambda x: ab.sum(x * x), (x,), (x,))[1]

    clouds = [np.full((n, 2), 2.0) for n in (1, 3)]
    assert np.allclose(ab.batched(lambda x: moved(x), backend="reference")(clouds), [moved(x) for x in clouds])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_derivative_by_an_unused_argument_is_zero_even_if_it_is_infinite(backend: str) -> None:
    @ab.cell
    def by_both(x: Any, y: Any) -> Any:
        return ab.grad(lambda x, y: ab.sum(x * x), wrt=lambda x, y: (x, y))(x, y)

    pairs = [(np.array([1.0, 2.0]), np.array([np.inf, np.nan])), (np.ones(2), np.ones(2))]
    found = ab.batched(lambda pair: by_both(*pair), backend=backend)(pairs)
    np.testing.assert_allclose(found, [[[2.0, 4.0], [2.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
    np.testing.assert_array_equal(by_both(*pairs[0]), [(2.0, 4.0), (0.0, 0.0)])


def test_a_pullback_that_is_kept_costs_later_recordings_nothing() -> None:
    kept = list[Any]()
    double = ab.cell(lambda x: 2.0 * x)

    def run(x: Any) -> Any:
        if not kept:
            kept.append(ab.vjp(lambda x: ab.sum(x * x), double(x))[1])
        return double(x)

    batched = ab.batched(run, backend="reference")
    batched([np.ones(2)])
    assert batched.recorder.calls.tapes
    batched([np.ones(2)])
    assert not batched.recorder.calls.tapes


def test_a_cell_differentiates_by_elements_of_its_list() -> None:
    @ab.cell
    def slope(xs: list[Any]) -> Any:
        return ab.grad(lambda xs: ab.sum(xs[0] * xs[1]), wrt=lambda xs: xs[1])(xs)[0]

    points = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert np.allclose(ab.batched(lambda x: slope([*x]), backend="reference")([points, 2 * points]), [[1, 2], [2, 4]])


def test_derivatives_by_one_parameter_are_apart_where_a_list_is_walked() -> None:
    weight = ab.Parameter(np.full(2, 0.5))

    class Held(ab.Module):
        def __init__(self) -> None:
            self.weight = weight

        @ab.cell
        def both(self, xs: list[Any]) -> Any:
            total = sum(xs)
            (first,) = ab.grad(lambda x: ab.sum(weight * x), wrt=lambda x: weight)(total)
            (second,) = ab.grad(lambda x: ab.sum(weight * weight * x), wrt=lambda x: weight)(total)
            return first + second

    held, rows = Held(), np.array([[1.0, 2.0], [3.0, 4.0]])
    batched = ab.batched(lambda x: held.both([*x]), module=held, backend="reference")
    assert np.allclose(batched([rows]), held.both([*rows]))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_rows_that_are_looked_up_have_one_gradient_in_all_nodes(backend: str) -> None:
    class Table(ab.Module):
        def __init__(self) -> None:
            self.table = ab.Parameter(np.arange(6.0).reshape(3, 2))

        @ab.cell
        def slope(self, row: int) -> Any:
            return ab.grad(lambda row: ab.mean(ab.lookup(self.table, row)), wrt=lambda row: self.table)(row)[0]

    table = Table()
    batched = ab.batched(table.slope, module=table, backend=backend)
    assert np.allclose(batched([0, 2, 1]), [table.slope(row) for row in (0, 2, 1)])


def test_a_number_of_numpy_is_one_value_wherever_arguments_hold_it() -> None:
    x = np.float64(2.0)
    assert ab.grad(lambda x, pair: x * pair[0])(x, (x, 1.0)) == 4.0


class Net(ab.Module):
    """Several kinds of cells over points of shape (3,)."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.a, self.b = ab.Linear(3, 3, rng=rng), ab.Linear(3, 3, rng=rng)
        self.o = ab.Parameter(rng.standard_normal(3))
        self.table = ab.Embedding(4, 3, rng=rng)
        self.drop = ab.Dropout(0.5)
        self.factor = 1.5
        self.astype("float64")

    @ab.cell
    def leaf(self, x: Any) -> Any:
        return ab.tanh(self.a(x))

    @ab.cell
    def word(self, word: int, x: Any) -> Any:
        return ab.tanh(self.table(word) * x)

    @ab.cell
    def merge(self, x: Any, y: Any) -> Any:
        h = ab.tanh(self.a(x) + self.b(y))
        return h, ab.dot(h, self.o)

    @ab.cell
    def all_of(self, xs: list[Any]) -> Any:
        return self.factor * ab.sum_n([ab.tanh(self.b(x)) for x in xs])

    @ab.cell(ragged=("x",))
    def rows(self, x: Any) -> Any:
        return ab.tanh(self.b(x))

    @ab.cell
    def noisy(self, x: Any) -> Any:
        return self.drop(ab.sin(x))

    @ab.cell
    def out(self, h: Any) -> Any:
        return ab.dot(self.o, h)

    @ab.cell
    def flat(self, x: Any) -> Any:
        return ab.sum(x * x * x)

    def of_rows(self, cloud: Cloud) -> Any:
        points = list(cloud.x)
        state = self.word(cloud.word, points[0])
        total = 0.0
        for point in points[1:]:
            state, part = self.merge(state, self.leaf(point))
            total = total + part
        return total + self.out(self.all_of(points)) * self.out(state)

    def of_whole(self, cloud: Cloud) -> Any:
        return self.flat(cloud.x)

    def of_elements(self, cloud: Cloud) -> Any:
        x = cloud.x
        return self.flat(x[0]) * x[1, 2] + x[1, 2] * x[0, 0] + ab.sum(x[:, 1] ** 2)

    def of_ragged(self, cloud: Cloud) -> Any:
        h = self.rows(cloud.x)
        return self.out(ab.sum(h, axis=0)) + self.out(h[1]) ** 2 + self.flat(cloud.x[0])

    def of_noise(self, cloud: Cloud) -> Any:
        return ab.sum_n([self.flat(self.noisy(point)) for point in cloud.x])


ENERGIES = ("of_rows", "of_whole", "of_elements", "of_ragged", "of_noise")


def clouds() -> list[Cloud]:
    rng = np.random.default_rng(1)
    return [Cloud(rng.standard_normal((n, 3)), n % 4) for n in (2, 5, 3, 2)]


def squared(gradient: Any) -> Any:
    """Return the sum of squares of a gradient of any structure."""
    if isinstance(gradient, (tuple, list)):
        return ab.sum_n([squared(part) for part in gradient])
    return ab.sum(gradient * gradient)


def eagerly(function: Callable[..., Any], instances: list[Any]) -> np.ndarray[Any, Any]:
    """Run a function on each instance, with the random numbers that a batched run would draw."""
    found = []
    for key, instance in enumerate(instances):
        with ab.randomness(seed=0, step=0, key=key):
            found.append(np.asarray(ab.eager(function, instance), np.float64))
    return np.array(found)


def slope(function: Callable[[], float], array: np.ndarray[Any, Any], index: Any) -> float:
    """Return the derivative with respect to an element of `array`, by central differences."""
    before = array[index]
    found = []
    for step in (EPS, -EPS):
        array[index] = before + step
        found.append(function())
    array[index] = before
    return (found[0] - found[1]) / (2 * EPS)


@pytest.mark.parametrize("energy", ENERGIES)
def test_gradients_are_central_differences(energy: str) -> None:
    model, instances = Net(), clouds()
    function = getattr(model, energy)
    for key, cloud in enumerate(instances):
        with ab.randomness(key=key):
            _, (gradient,) = ab.value_and_grad(function, wrt=lambda c: c.x)(cloud)

        def value(cloud: Cloud = cloud, key: int = key) -> float:
            with ab.randomness(key=key):
                return float(function(cloud))

        assert gradient.shape == cloud.x.shape
        for index in np.ndindex(cloud.x.shape):
            assert np.isclose(gradient[index], slope(value, cloud.x, index), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("energy", ENERGIES)
def test_batched_programs_with_gradients_are_the_eager_ones(energy: str, backend: str) -> None:
    model, instances = Net(), clouds()
    function = getattr(model, energy)

    def loss(cloud: Cloud) -> Any:
        value, (gradient,) = ab.value_and_grad(function, wrt=lambda c: c.x)(cloud)
        return value + squared(list(gradient))

    batched = ab.batched(loss, module=model, backend=backend)
    assert np.allclose(batched(instances), eagerly(loss, instances), rtol=1e-10)
    value, grads, inputs = batched.value_and_grad(instances, reduce="sum", inputs=True)
    total: Callable[[], float] = lambda: float(eagerly(loss, instances).sum())  # noqa: E731
    assert np.isclose(value, total())
    for number, index in ((0, (1, 2)), (1, (1, 2)), (2, (0, 0))):
        assert np.isclose(inputs[number].x[index], slope(total, instances[number].x, index), rtol=1e-5, atol=1e-6)
    of_parameters: list[tuple[str, tuple[int, ...]]] = [("a.weight", (0, 1)), ("b.weight", (2, 1)), ("o", (1,))]
    for name, at in of_parameters:
        parameter = model.parameters()[name]
        array = np.array(parameter.data)

        def moved(parameter: Any = parameter, array: Any = array) -> float:
            parameter.data = array
            return total()

        assert np.isclose(grads[name][at], slope(moved, array, at), rtol=1e-5, atol=1e-6)
        moved()


def by_values(model: Net, cloud: Cloud) -> Any:
    h = model.leaf(cloud.x[0])
    return squared(ab.grad(lambda y: model.out(model.merge(y, h)[0]))(model.leaf(cloud.x[1])))


def by_a_structure(model: Net, cloud: Cloud) -> Any:
    given = {"left": model.leaf(cloud.x[0]), "right": (model.leaf(cloud.x[1]), "no value")}
    g = ab.grad(lambda pair: model.merge(pair["left"], pair["right"][0])[1])(given)
    assert g["right"][1] is None
    return squared([g["left"], g["right"][0]])


def by_all_outputs(model: Net, cloud: Cloud) -> Any:
    both = model.merge(cloud.x[0], cloud.x[1])
    return squared(ab.grad(lambda pair: model.out(pair[0]) * pair[1])(both))


def by_parameters(model: Net, cloud: Cloud) -> Any:
    return squared(ab.grad(model.of_rows, wrt=lambda c: (model.a.weight, model.o, model.table.weight))(cloud))


def by_a_parameter_outside_cells(model: Net, cloud: Cloud) -> Any:
    before = ab.sum(model.o)
    (g,) = ab.grad(lambda c: ab.sum(model.o * model.leaf(c.x[0])) * before, wrt=lambda c: model.o)(cloud)
    return squared(g) + before


def by_rows_of_a_cell(model: Net, cloud: Cloud) -> Any:
    rows = model.rows(cloud.x)
    return squared(list(ab.grad(lambda r: model.out(ab.sum(r, axis=0)) + model.flat(r[0]))(rows)))


def by_a_list(model: Net, cloud: Cloud) -> Any:
    points = [model.leaf(point) for point in cloud.x]
    return squared(ab.grad(lambda xs: model.out(model.all_of(xs)) * model.out(xs[0]))(points))


def by_what_is_not_used(model: Net, cloud: Cloud) -> Any:
    g, unused = ab.grad(lambda c, y: model.flat(c.x[0]), wrt=lambda c, y: (c.x, y))(cloud, model.leaf(cloud.x[0]))
    return squared(list(g)) + ab.sum(unused) + model.out(unused)


def twice(model: Net, cloud: Cloud) -> Any:
    inner: Any = lambda c: squared(list(ab.grad(model.of_rows, wrt=lambda c: c.x)(c)[0]))  # noqa: E731
    return squared(list(ab.grad(inner, wrt=lambda c: c.x)(cloud)[0]))


def along(model: Net, cloud: Cloud) -> Any:
    direction = np.cos(np.arange(cloud.x.size)).reshape(cloud.x.shape)
    value, tangent = ab.jvp(model.of_rows, (cloud,), (direction,), wrt=lambda c: c.x)
    gradients, products = ab.hvp(model.of_rows, (cloud,), (direction,), wrt=lambda c: c.x)
    return value * tangent + squared([*gradients[0], *products[0]])


def along_parameters(model: Net, cloud: Cloud) -> Any:
    wrt: Any = lambda c: (model.a.weight, model.o)  # noqa: E731
    directions = np.cos(np.arange(9.0)).reshape(3, 3), np.sin(np.arange(3.0))
    return ab.jvp(model.of_rows, (cloud,), directions, wrt=wrt)[1] ** 2


def pulled(model: Net, cloud: Cloud) -> Any:
    (h, s), pull = ab.vjp(model.merge, model.leaf(cloud.x[0]), model.leaf(cloud.x[1]))
    return squared([*pull((h, s)), *pull((2.0 * h, 0.0 * s))])


def with_aux(model: Net, cloud: Cloud) -> Any:
    def energy(c: Cloud) -> Any:
        h = model.leaf(c.x[0])
        return model.out(h), (h, "aux")

    (value, (h, text)), (g,) = ab.value_and_grad(energy, wrt=lambda c: c.x, has_aux=True)(cloud)
    (g2,), (h2, _) = ab.grad(energy, wrt=lambda c: c.x, has_aux=True)(cloud)
    assert text == "aux"
    return value + ab.sum(h) + squared(list(g)) * ab.sum(h2) + squared(list(g2))


PROGRAMS = (
    by_values, by_a_structure, by_all_outputs, by_parameters, by_a_parameter_outside_cells, by_rows_of_a_cell,
    by_a_list, by_what_is_not_used, twice, along, along_parameters, pulled, with_aux,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_the_same_batched_and_eager(program: Callable[[Net, Cloud], Any]) -> None:
    model, instances = Net(), clouds()
    function: Any = lambda cloud: program(model, cloud)  # noqa: E731
    batched = ab.batched(function, module=model, backend="reference")
    assert np.allclose(batched(instances), eagerly(function, instances), rtol=1e-9)
    _, grads, inputs = batched.value_and_grad(instances, reduce="sum", inputs=True)
    total: Callable[[], float] = lambda: float(eagerly(function, instances).sum())  # noqa: E731
    assert np.isclose(inputs[1].x[1, 0], slope(total, instances[1].x, (1, 0)), rtol=1e-5, atol=1e-6)
    array = np.array(model.o.data)

    def moved() -> float:
        model.o.data = array
        return total()

    assert np.isclose(grads["o"][1], slope(moved, array, (1,)), rtol=1e-5, atol=1e-6)


def test_a_value_around_a_function_is_a_constant() -> None:
    inner: Any = lambda x: ab.grad(lambda y: x + y)(x)  # noqa: E731
    program: Any = lambda x: ab.grad(lambda x: x * inner(x))(x)  # noqa: E731
    assert float(program(2.0)) == 1.0
    assert np.array_equal(ab.batched(lambda x: program(x * 1.0))([np.array(2.0), np.array(3.0)]), [1.0, 1.0])
    cell = ab.cell(lambda x: program(x))
    assert np.array_equal(ab.batched(lambda x: cell(x))([np.array(2.0), np.array(3.0)]), [1.0, 1.0])


def test_derivatives_to_any_order() -> None:
    fourth = ab.grad(ab.grad(ab.grad(ab.grad(ab.sin))))
    assert np.isclose(float(fourth(0.5)), np.sin(0.5))
    batched = ab.batched(lambda x: fourth(ab.stop_gradient(x)), backend="reference")
    assert np.allclose(batched([np.array(0.5), np.array(1.5)]), np.sin([0.5, 1.5]), rtol=1e-6)


def test_derivatives_inside_cells() -> None:
    model = Net()

    @ab.cell
    def inside(x: Any) -> Any:
        value, g = ab.value_and_grad(lambda y: ab.sum(ab.tanh(model.a(y)) ** 2))(x)
        (by_weight,) = ab.grad(lambda y: ab.sum(ab.tanh(model.a(y))), wrt=lambda y: model.a.weight)(x)
        _, tangent = ab.jvp(lambda y: ab.tanh(model.b(y)), (x,), (g,))
        return value + squared([g, by_weight, tangent])

    instances = [cloud.x[0] for cloud in clouds()]
    program: Any = lambda x: inside(x)  # noqa: E731
    batched = ab.batched(program, module=model)
    assert np.allclose(batched(instances), eagerly(program, instances), rtol=1e-10)
    _, _, inputs = batched.value_and_grad(instances, reduce="sum", inputs=True)
    total: Callable[[], float] = lambda: float(eagerly(program, instances).sum())  # noqa: E731
    assert np.isclose(inputs[0][1], slope(total, instances[0], 1), rtol=1e-5)
    assert set(batched.recorder.types.names) == {"constant", "input", "inside"}


def test_derivatives_over_the_elements_of_lists_in_cells() -> None:
    @ab.cell
    def inside(xs: list[Any]) -> Any:
        return ab.sum_n(ab.each(ab.grad(lambda y: ab.sum(ab.sin(y))), xs))

    program: Any = lambda xs: ab.sum(inside([2.0 * x for x in xs]))  # noqa: E731
    instances = [list(cloud.x) for cloud in clouds()]
    assert np.allclose(ab.batched(program)(instances), eagerly(program, instances), rtol=1e-5)


def test_derivatives_of_a_list_that_had_one_length_only() -> None:
    """A longer second list would need another type; the derivative of the body is recorded anyway."""

    @ab.cell
    def cell(xs: list[Any], ys: list[Any]) -> Any:
        return ab.sum_n([2.0 * x for x in xs], shape=(2,)) + ab.sum_n(
            [x * y for x, y in zip(ys, ys[::-1], strict=True)], shape=(2,)
        )

    @ab.cell
    def start(x: Any) -> Any:
        return ab.tanh(x)

    def program(x: Any) -> Any:
        h = start(x)
        return ab.sum(cell([h] * 6, [h])), ab.grad(lambda t: ab.sum(cell([t * t], [t])))(h)

    instances = [np.array([0.5, 1.5]), np.array([-1.0, 0.25])]
    found = ab.batched(program, backend="reference")(instances)
    for part, expected in zip(found, zip(*(ab.eager(program, x) for x in instances), strict=True), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-6)


def test_second_derivatives_know_the_length_of_a_list_that_the_first_did_not_read() -> None:
    """The unread list is as long as another one that the body walks through, as values and keys in attention."""

    @ab.cell
    def start(x: Any) -> Any:
        return 2.0 * x

    @ab.cell
    def read(state: Any, keys: list[Any], values: list[Any]) -> Any:
        total = sum(keys) if len(keys) else 0.0 * state
        return ab.attend(state, keys, values) + total

    def program(item: Any) -> Any:
        state, direction, along, *rows = map(start, item)
        keys, values = rows[::2], rows[1::2]

        def moved(state: Any) -> Any:
            return ab.jvp(lambda value: read(state, keys, [value, *values[1:]]), (values[0],), (direction,))[1]

        return ab.jvp(moved, (state,), (along,))[1]

    instances = [RNG.standard_normal((3 + 2 * n, 3)) for n in (6, 2, 3, 1)]
    found = ab.batched(program, backend="reference")(instances)
    np.testing.assert_allclose(found, [ab.eager(program, x) for x in instances], rtol=1e-4, atol=1e-6)


def test_async_programs_take_awaited_numbers_as_constants() -> None:
    model = Net()

    async def energy(cloud: Cloud) -> Any:
        h, n = model.leaf(cloud.x[0]), 0
        while n < 3 and await ab.value(model.out(h)) > -0.3:
            h, n = model.leaf(h + cloud.x[1]), n + 1
        return model.out(h)

    async def loss(cloud: Cloud) -> Any:
        value, (g,) = await ab.value_and_grad(energy, wrt=lambda c: c.x)(cloud)
        seen = float(await ab.value(ab.sum(g[0])))
        (by_o,) = await ab.grad(energy, wrt=lambda c: model.o)(cloud)
        h, pull = ab.vjp(model.leaf, cloud.x[1])
        norm = await ab.value(ab.sum(h * h))
        return value + seen * squared(list(g)) + ab.sum(by_o) + ab.sum(pull(h)[0]) * norm

    instances = clouds()
    batched = ab.batched(loss, module=model, backend="reference")
    assert np.allclose(batched(instances), eagerly(loss, instances), rtol=1e-9)
    assert batched.last is not None
    assert batched.last.rounds > 2


def test_types_of_gradients_are_named_and_take_few_batches() -> None:
    model, instances = Net(), clouds()

    def loss(cloud: Cloud) -> Any:
        return squared(list(ab.grad(model.of_rows, wrt=lambda c: c.x)(cloud)[0]))

    batched = ab.batched(loss, module=model, backend="reference")
    report = batched.explain(instances)
    names = {line.name for line in report.types}
    assert {"gradient of merge", "gradient of leaf", "gradient of word", "gradient of all_of"} <= names
    energy = ab.batched(model.of_rows, backend="reference").prepare(instances).parts[0].plan.schedule
    n_gradient = sum(line.batches for line in report.types if line.name.startswith("gradient of"))
    assert n_gradient <= energy.n_batches + 1


def test_cells_that_read_something_else_are_differentiated_anew() -> None:
    model, instances = Net(), clouds()
    loss: Any = lambda cloud: squared(list(ab.grad(model.of_rows, wrt=lambda c: c.x)(cloud)[0]))  # noqa: E731
    batched = ab.batched(loss, module=model, backend="reference")
    graphs = batched.record_all(instances)
    for factor in (1.5, 0.5, 2.5, 1.5):
        model.factor = factor
        expected = eagerly(loss, instances)
        assert np.allclose(batched(graphs), expected, rtol=1e-9)
        assert np.allclose(batched(instances), expected, rtol=1e-9)


def test_graphs_with_gradients_go_to_other_processes() -> None:
    model, other, instances = Net(), Net(), clouds()
    loss: Any = lambda m: lambda cloud: squared(list(ab.grad(m.of_rows, wrt=lambda c: c.x)(cloud)[0]))  # noqa: E731
    graphs = ab.batched(loss(model), module=model).record_all(instances)
    pickled = pickle.loads(pickle.dumps(graphs))
    batched = ab.batched(loss(other), module=other, backend="reference")
    assert np.allclose(batched(pickled), eagerly(loss(model), instances), rtol=1e-9)


def test_what_cannot_be_differentiated_is_refused() -> None:
    model, cloud = Net(), clouds()[0]
    with pytest.raises(ab.GraphError, match=r"must return a scalar, got .*of shape \(3,\)"):
        ab.grad(model.leaf)(cloud.x[0])
    with pytest.raises(ab.GraphError, match="must be among the arguments of the function"):
        ab.grad(model.of_rows, wrt=lambda c: c.x[0])(cloud)
    with pytest.raises(ab.GraphError, match="wrt must contain a float array"):
        ab.grad(model.of_rows, wrt=lambda c: c.word)(cloud)
    with pytest.raises(ab.GraphError, match="would lose its gradient"):
        ab.grad(lambda c: float(model.of_rows(c)))(cloud)
    with pytest.raises(ab.GraphError, match="would lose its gradient"):
        ab.grad(lambda c: ab.sum(np.asarray(c.x)))(cloud)
    with pytest.raises(ab.GraphError, match="must have arguments or wrt, got neither"):
        ab.grad(lambda: model.out(cloud.x[0]))()
    with pytest.raises(ab.ShapeError, match="tangents must have the shapes of the values"):
        ab.jvp(model.leaf, (cloud.x[0],), (np.ones(4),))
    with pytest.raises(ab.ShapeError, match="gradients must have the shapes of the results"):
        ab.vjp(model.leaf, cloud.x[0])[1](np.ones(4))
    with pytest.raises(ab.GraphError, match="has_aux"):
        ab.grad(model.of_rows, wrt=lambda c: c.x, has_aux=True)(cloud)
    with pytest.raises(ab.GraphError, match="pass has_aux=True"):
        ab.grad(lambda c: (model.of_rows(c), c.word), wrt=lambda c: c.x)(cloud)
    with pytest.raises(ab.DataError, match="wrt of grad must be a function or None, got 0"):
        ab.grad(model.of_rows, wrt=0)(cloud)  # type: ignore[arg-type]
    with pytest.raises(ab.GraphError, match="tuples"):
        ab.hvp(model.flat, cloud.x, cloud.x)
    with pytest.raises(ab.GraphError, match="inside a differentiated function"):
        ab.grad(ab.batched(model.flat))([cloud.x])
    kept = list[Any]()

    def keeping(cloud: Cloud) -> Any:
        value, pull = ab.vjp(model.flat, cloud.x)
        kept.append(pull)
        return value

    ab.batched(keeping, module=model)([cloud])
    with pytest.raises(ab.GraphError, match="must be called inside its program"):
        kept[0](1.0)
    refused = ab.batched(lambda c: ab.sum(ab.grad(model.leaf)(c.x[0])), module=model)
    with pytest.raises(ab.GraphError, match="must return a scalar"):
        refused([cloud])


def test_instances_whose_loss_is_constant_have_gradients_of_zero() -> None:
    """A molecule of one atom has no pairs, and an empty one has no rows."""
    pair = ab.cell(lambda a, b: ab.sum((a - b) ** 2))

    def energy(x: Any) -> Any:
        return ab.sum_n([pair(x[i], x[j]) for i in range(len(x)) for j in range(i)], shape=())

    instances = [np.ones((1, 3)), np.arange(6.0).reshape(2, 3), np.ones((0, 3))]
    programs: list[Callable[[Any], list[Any]]] = [
        lambda x: list(ab.grad(energy)(x)),
        lambda x: list(ab.vjp(energy, x)[1](1.0)[0]),
        lambda x: list(ab.hvp(energy, (x,), (x,))[1][0]),
        lambda x: [ab.jvp(energy, (x,), (x,))[1]],
        lambda x: [ab.grad(lambda x: 2.0)(x)],
    ]
    for program in programs:
        found = ab.batched(program, backend="reference")(instances[:2] if program(instances[2]) else instances)
        for values, x in zip(found, instances, strict=False):
            assert np.allclose(values, program(x))


def test_an_array_and_its_gradient_by_rows_are_combined() -> None:
    model = Net()

    def step(cloud: Cloud) -> Any:
        (g,) = ab.grad(model.of_rows, wrt=lambda c: c.x)(cloud)
        moved = Cloud(cloud.x - 0.1 * g, cloud.word)
        (g2,) = ab.grad(model.of_rows, wrt=lambda c: c.x)(moved)
        return squared(list(g2)) + ab.sum(cloud.x * g)

    instances = clouds()
    batched = ab.batched(step, module=model, backend="reference")
    assert np.allclose(batched(instances), eagerly(step, instances), rtol=1e-9)
    _, _, inputs = batched.value_and_grad(instances, reduce="sum", inputs=True)
    total: Callable[[], float] = lambda: float(eagerly(step, instances).sum())  # noqa: E731
    assert np.isclose(inputs[1].x[1, 0], slope(total, instances[1].x, (1, 0)), rtol=1e-5, atol=1e-6)


def test_a_derived_function_is_batched_with_the_module_of_what_it_derives() -> None:
    model, instances = Net(), [cloud.x[0] for cloud in clouds()]
    found = ab.batched(ab.grad(model.flat), backend="reference")(instances)
    assert np.allclose(found, [3.0 * x * x for x in instances])
    assert np.allclose(ab.batched(ab.grad(model.out), backend="reference")(instances), model.o.data)


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("a reduction of a list", lambda x: ab.sum(ab.sum_n([x, x], shape=(3, 2)))),
        ("a reduction of a list", lambda x: ab.sum(ab.max_n([x, x]))),
        ("einsum", lambda x: ab.einsum("ij,ij->", x, x)),
        ("matmul of stacks", lambda x: ab.sum(np.ones((2, 2, 3)) @ x)),
    ],
)
def test_rows_of_any_number_are_refused_where_sizes_are_needed(what: str, function: Callable[[Any], Any]) -> None:
    cell = ab.cell(ragged=("x",))(lambda x: function(x))
    with pytest.raises(ab.ShapeError, match=f"{what} needs values of known sizes, got one with n rows"):
        ab.batched(cell, backend="reference")([np.ones((3, 2))])
