"""Test variadic forms: any number of values per node, in one batch, equal to torch over one node at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.errors import AutobatchError, GraphError, ShapeError
from helpers.fakes.counting_backend import Counting
from helpers.runs.recorded import count_types
from helpers.runs.ways import each

TOLERANCE = 1e-10
DIM = 3
SIZES: tuple[list[int], ...] = ([0, 1, 2], [20, 0], [], [5, 5, 3, 1], [7], [0])  # the number of values per node


class Weights(ab.Module):
    """A scale and shift for the inputs of a form, a factor for its output, and a query."""

    def __init__(self, shape: tuple[int, ...] = (DIM,)) -> None:
        rng = np.random.default_rng(7)
        self.scale, self.shift = ab.Parameter(rng.standard_normal(shape)), ab.Parameter(rng.standard_normal(shape))
        self.out, self.query = ab.Parameter(rng.standard_normal(shape)), ab.Parameter(rng.standard_normal(DIM))
        self.astype("float64")

    @ab.cell
    def feed(self, x: Any) -> Any:
        return self.scale * x + self.shift

    @ab.cell
    def pair(self, x: Any) -> Any:
        return self.scale * x, ab.sum(x * self.shift)


def draw(shape: tuple[int, ...] = (DIM,), seed: int = 0, sizes: Any = SIZES) -> list[list[list[Any]]]:
    rng = np.random.default_rng(seed)
    return [[[rng.standard_normal(shape) for _ in range(size)] for size in nodes] for nodes in sizes]


def check(weights: Weights, loss: Callable[[Any], Any], instances: list[Any]) -> ab.Batched:
    """Check values against eager, and gradients against central differences."""
    run = ab.batched(loss, module=weights, backend=Reference(poison=True))
    ab.testing.check_batched(loss, run, instances, TOLERANCE)
    ab.testing.check_grads(run, instances, weights, np.random.default_rng(1))
    return run


def compare(weights: Weights, loss: Callable[[Any], Any], twin: Callable[..., Any], instances: list[Any]) -> Any:
    """Check as above, and compare value and gradients with a torch function."""
    run = check(weights, loss, instances)
    value, grads = run.value_and_grad(instances)
    tensors = {name: torch.tensor(p.data, requires_grad=True) for name, p in weights.parameters().items()}
    total = sum(twin(tensors, instance) for instance in instances) / len(instances)
    expected = torch.autograd.grad(total, list(tensors.values()), allow_unused=True)
    np.testing.assert_allclose(value, total.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    for (name, grad), tensor in zip(grads.items(), expected, strict=True):
        np.testing.assert_allclose(
            grad, 0.0 if tensor is None else tensor, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
        )
    return run


def zero(shape: tuple[int, ...] = (DIM,)) -> Any:
    return torch.zeros(shape, dtype=torch.float64)


def torch_attend(query: Any, keys: list[Any], values: list[Any], scale: float = 1.0) -> Any:
    weights = torch.softmax(torch.stack(keys) @ query * scale, 0)
    return torch.tensordot(weights, torch.stack(values), 1)


# Each form, in autobatch (of a list, the shape of its values and a query) and in torch (for non-empty lists).
FORMS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("sum_n", lambda xs, shape, q: ab.sum_n(xs, shape=shape), lambda xs, q: torch.stack(xs).sum(0)),
    ("mean_n", lambda xs, shape, q: ab.mean_n(xs, shape=shape), lambda xs, q: torch.stack(xs).mean(0)),
    ("max_n", lambda xs, shape, q: ab.max_n(xs, shape=shape), lambda xs, q: torch.stack(xs).amax(0)),
    (
        "twice",
        lambda xs, shape, q: ab.sum_n(xs, shape=shape) * ab.max_n(xs, shape=shape) - ab.mean_n(xs, shape=shape),
        lambda xs, q: torch.stack(xs).sum(0) * torch.stack(xs).amax(0) - torch.stack(xs).mean(0),
    ),
)
ATTENTION: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("attend", lambda xs, shape, q: ab.attend(q, xs, xs, shape=shape), lambda xs, q: torch_attend(q, xs, xs)),
    (
        "attend scaled",
        lambda xs, shape, q: ab.attend(q, xs, xs, scale=0.25, shape=shape),
        lambda xs, q: torch_attend(q, xs, xs, 0.25),
    ),
)
BOTH = [(form, twin) for _, form, twin in (*FORMS, *ATTENTION)]


@each("in_cell", [True, False])
@each("form, twin", BOTH)
def test_any_number_of_values(form: Any, twin: Any, in_cell: bool) -> None:
    weights = Weights()

    def body(values: Any) -> Any:
        return ab.sum(ab.tanh(form(values, (DIM,), weights.query)) * weights.out)

    call = ab.cell(body) if in_cell else body

    def loss(nodes: list[list[Any]]) -> Any:
        return ab.sum_n([call([weights.feed(x) for x in values]) for values in nodes], shape=())

    def torch_loss(p: Any, nodes: list[list[Any]]) -> Any:
        total = zero(())
        for values in nodes:
            fed = [p["scale"] * torch.as_tensor(x) + p["shift"] for x in values]
            total = total + (torch.tanh(twin(fed, p["query"]) if fed else zero()) * p["out"]).sum()
        return total

    run = compare(weights, loss, torch_loss, draw())
    if in_cell:
        run(draw())
        assert run.last.batches == 5  # arrays, the constant instance, feeds, forms of 0 to 20 values, sums


@each("shape", [(), (2,), (2, 3)])
@each("name, form, twin", FORMS)
def test_values_of_any_shape(name: str, form: Any, twin: Any, shape: tuple[int, ...]) -> None:
    weights = Weights(shape)
    call = ab.cell(lambda values: ab.sum(form(values, shape, None) * weights.out))

    def loss(nodes: list[list[Any]]) -> Any:
        return ab.sum_n([call([weights.feed(x) for x in values]) for values in nodes], shape=())

    def torch_loss(p: Any, nodes: list[list[Any]]) -> Any:
        fed = [[p["scale"] * torch.as_tensor(x) + p["shift"] for x in values] for values in nodes]
        return sum(((twin(xs, None) * p["out"]).sum() for xs in fed if xs), zero(()))

    compare(weights, loss, torch_loss, draw(shape))


@each("shape", [(), (2,), (2, 3)])
@each("query", ["parameter", "array", "value"])
def test_attention_over_keys_and_values(query: str, shape: tuple[int, ...]) -> None:
    weights, array = Weights(shape), np.array([0.5, -1.0, 2.0])
    call = ab.cell(lambda q, keys, values: ab.sum(ab.attend(q, keys, values, shape=shape) * weights.out))
    double = ab.cell(lambda x: 2.0 * x)

    def loss(nodes: list[list[tuple[Any, Any]]]) -> Any:
        asked = {"parameter": weights.query, "array": array, "value": double(array)}[query]
        total = ab.sum_n([], shape=())
        for node in nodes:
            keys, values = [double(key) for key, _ in node], [weights.feed(value) for _, value in node]
            total = total + call(asked, keys, values)
        return total

    def torch_loss(p: Any, nodes: list[list[tuple[Any, Any]]]) -> Any:
        asked = {"parameter": p["query"], "array": torch.tensor(array), "value": torch.tensor(2 * array)}[query]
        total = zero(())
        for node in (node for node in nodes if node):
            keys = [2 * torch.as_tensor(key) for key, _ in node]
            values = [p["scale"] * torch.as_tensor(value) + p["shift"] for _, value in node]
            total = total + (torch_attend(asked, keys, values) * p["out"]).sum()
        return total

    both = zip(draw(), draw(shape, seed=1), strict=True)
    instances = [[list(zip(k, v, strict=True)) for k, v in zip(keys, values, strict=True)] for keys, values in both]
    compare(weights, loss, torch_loss, instances)


@pytest.mark.parametrize("in_cell", [True, False], ids=["cell", "outside"])
@pytest.mark.parametrize("as_bundles", [True, False], ids=["outputs", "tuples"])
def test_tuples_of_values(in_cell: bool, as_bundles: bool) -> None:
    """(h, c) pairs, as returned by a node or built from two nodes, reduced part by part."""
    weights, shapes = Weights(), ((DIM,), ())

    def body(pairs: Any) -> Any:
        (total, n), (largest, _), (mean, _) = (form(pairs, shape=shapes) for form in (ab.sum_n, ab.max_n, ab.mean_n))
        return ab.sum((total * n + largest - mean) * weights.out)

    call = ab.cell(body) if in_cell else body

    def loss(nodes: list[list[Any]]) -> Any:
        made = [[weights.pair(x) for x in xs] for xs in nodes]
        if not as_bundles:
            made = [[(h, ab.sum(ab.tanh(h))) for h, _ in pairs] for pairs in made]
        return ab.sum_n([call(pairs) for pairs in made], shape=())

    def torch_loss(p: Any, nodes: list[list[Any]]) -> Any:
        total = zero(())
        for xs in (xs for xs in nodes if xs):
            h = torch.stack([p["scale"] * torch.as_tensor(x) for x in xs])
            c = torch.stack([torch.as_tensor(x) @ p["shift"] for x in xs]) if as_bundles else torch.tanh(h).sum(1)
            total = total + ((h.sum(0) * c.sum() + h.amax(0) - h.mean(0)) * p["out"]).sum()
        return total

    compare(weights, loss, torch_loss, draw())


# Bodies that use more than a reduction of lists: the length becomes part of the type.

BODIES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("length", lambda xs: ab.sum_n(xs) / len(xs)),
    ("first and last", lambda xs: xs[0] - xs[-1]),
    ("slice", lambda xs: ab.sum_n(xs[1:], shape=(DIM,)) * xs[0]),
    ("reversed", lambda xs: next(iter(reversed(xs)))),
    ("added to", lambda xs: ab.mean_n([*xs, 2.0 * xs[0]])),
    ("list + list", lambda xs: ab.max_n(xs + [xs[0] * 0.5])),  # noqa: RUF005
    ("list + list, reversed", lambda xs: ab.max_n([xs[0] * 0.5] + xs)),  # noqa: RUF005
    ("times", lambda xs: ab.sum_n(xs * 3)),
    ("==", lambda xs: np.zeros(DIM) if xs == [] else ab.sum_n(xs)),
    ("copy", lambda xs: ab.sum_n(xs.copy())),
)


@each("name, body", BODIES)
def test_lists_whose_length_the_body_uses(name: str, body: Any) -> None:
    weights = Weights()
    call = ab.cell(lambda values: ab.sum(body(values) * weights.out))

    def loss(nodes: list[list[Any]]) -> Any:
        return ab.sum_n([call([weights.feed(x) for x in values]) for values in nodes])

    instances = draw(sizes=([1, 2], [3], [1, 1, 2]))
    run = check(weights, loss, instances)
    assert count_types(run, "<lambda>") == 3  # one for each length


def test_a_list_of_fixed_length_beside_one_of_any() -> None:
    weights = Weights()

    @ab.cell
    def call(pair: Any, values: Any, unused: Any, named: Any) -> Any:
        left, right = pair
        return ab.sum((left - right) * ab.sum_n(values, shape=(DIM,)) * ab.max_n(named["all"]) * weights.out)

    def loss(values: list[Any]) -> Any:
        fed = [weights.feed(x) for x in values]
        return call([fed[0], fed[-1]], fed[1:], fed[:2], {"all": fed, "none": []})

    instances = draw(sizes=[[k] for k in (1, 5, 2, 9, 2)])
    flat = [nodes[0] for nodes in instances]
    check(weights, loss, flat)


def test_a_list_of_lists_is_fixed_outside_and_of_any_length_inside() -> None:
    weights = Weights()
    call = ab.cell(lambda lists: ab.sum(ab.sum_n(lists[0], shape=(DIM,)) * ab.max_n(lists[1], shape=(DIM,))))

    def loss(nodes: list[list[Any]]) -> Any:
        return call([[weights.feed(x) for x in values] for values in nodes])

    instances = draw(sizes=([0, 3], [1, 1], [4, 0], [2, 5]))
    run = check(weights, loss, instances)
    assert count_types(run, "<lambda>") == 1


def test_a_cell_may_return_its_list() -> None:
    weights = Weights()
    call = ab.cell(lambda x, values: (x, values))

    def loss(values: list[Any]) -> Any:
        x, same = call(weights.query, [weights.feed(v) for v in values])
        return ab.sum(ab.sum_n([x, *same]) * weights.out)

    instances = [nodes[0] for nodes in draw(sizes=([1], [4], [0]))]
    check(weights, loss, instances)


def test_parameters_arrays_and_values_in_one_list_tuple_or_generator() -> None:
    weights, array = Weights(), np.array([1.0, 2.0, 3.0])
    call = ab.cell(lambda values: ab.sum(ab.mean_n(values) * weights.out))

    def loss(values: list[Any]) -> Any:
        fed = [weights.feed(x) for x in values]
        mixed = [weights.query, array, *fed]
        return call([*fed, *mixed]) + ab.sum(ab.max_n(x for x in mixed)) + ab.sum(ab.sum_n(tuple(mixed)))

    instances = [nodes[0] for nodes in draw(sizes=([1], [4], [0]))]
    check(weights, loss, instances)


def test_equal_largest_values_share_the_gradient() -> None:
    weights = Weights()
    call = ab.cell(lambda values: ab.sum(ab.max_n(values) * weights.out))

    def loss(values: list[Any]) -> Any:
        return call([weights.feed(x) for x in values])

    def torch_loss(p: Any, values: list[Any]) -> Any:
        return (torch.stack([p["scale"] * torch.as_tensor(x) + p["shift"] for x in values]).amax(0) * p["out"]).sum()

    run = ab.batched(loss, module=weights)
    instances = [[np.ones(DIM)] * 3, [np.array([0.0, 1.0, 0.0]), np.zeros(DIM), np.zeros(DIM)]]
    _, grads = run.value_and_grad(instances)
    tensors = {name: torch.tensor(p.data, requires_grad=True) for name, p in weights.parameters().items()}
    names = ("scale", "shift", "out")
    total = sum(torch_loss(tensors, i) for i in instances) / 2
    for name, expected in zip(names, torch.autograd.grad(total, [tensors[n] for n in names]), strict=True):
        np.testing.assert_allclose(grads[name], expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [3, (np.int64(3),), [3]], ids=repr)
def test_the_shape_of_an_element_may_be_written_as_for_numpy(shape: Any) -> None:
    weights = Weights()
    inside = ab.cell(lambda xs: ab.sum_n(xs, shape=shape) + ab.attend(weights.query, xs, xs, shape=shape))

    def loss(values: list[Any]) -> Any:
        fed = [weights.feed(x) for x in values]
        return ab.sum((inside(fed) + ab.max_n(fed, shape=shape)) * weights.out)

    instances = [nodes[0] for nodes in draw(sizes=([0], [4], [1]))]
    check(weights, loss, instances)


@pytest.mark.parametrize(("form", "twin"), BOTH[:3])
def test_infinities_and_nan_stay_within_their_node(form: Any, twin: Any) -> None:
    call = ab.cell(lambda values: form(values, (2,), None))
    nodes = [[[1.0, -np.inf], [np.inf, -np.inf]], [[np.nan, 1.0], [2.0, 3.0]], [[5.0, 6.0]], [], [[1e30, -1e30]] * 3]
    found = ab.batched(lambda values: call([np.array(x) for x in values]))(nodes)
    expected = [twin([torch.tensor(x) for x in node], None).numpy() if node else np.zeros(2) for node in nodes]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("form", "twin"), BOTH)
def test_kernels_need_only_what_cupy_has(form: Any, twin: Any) -> None:
    weights = Weights()
    call = ab.cell(lambda values: ab.sum(form(values, (DIM,), weights.query) * weights.out))

    def loss(nodes: list[list[Any]]) -> Any:
        return ab.sum_n([call([weights.feed(x) for x in values]) for values in nodes], shape=())

    run, instances = ab.batched(loss, module=weights), draw()
    expected = run(instances)
    expected_grads = {name: grad.copy() for name, grad in run.value_and_grad(instances)[1].items()}
    run.backend = Counting()
    np.testing.assert_allclose(run(instances), expected, rtol=1e-12)
    for name, grad in run.value_and_grad(instances)[1].items():
        np.testing.assert_allclose(grad, expected_grads[name], rtol=1e-12, atol=1e-14)


# Refusals of forms.


def in_cell(body: Callable[..., Any], *arguments: Any) -> Any:
    call = ab.cell(body)
    return ab.batched(lambda instance: call(*instance))([arguments])


ONE, OTHER = np.zeros(2), np.zeros(3)
UNEQUAL = "must have equal lengths|as many keys as values"


@each(
    "body, lists, text",
    [
        (ab.sum_n, ([],), "is empty, so the shape of the result is unknown; give the shape of one element"),
        (ab.mean_n, ([],), "is empty, so the shape of the result is unknown; give the shape of one element"),
        (ab.max_n, ([],), "is empty, so the shape of the result is unknown; give the shape of one element"),
        (
            lambda xs: ab.attend(ONE, xs, xs),
            ([],),
            "is empty, so the shape of the result is unknown; give the shape of one element",
        ),
        (ab.sum_n, ([ONE, OTHER],), r"shape"),
        (ab.max_n, ([ONE, OTHER],), r"must have one shape, got \(2,\) and \(3,\)"),
        (ab.mean_n, ([(ONE, ONE), ONE],), "tuples of one length, got a mixture"),
        (ab.sum_n, ([(ONE, ONE), (ONE,)],), "tuples of one length, got a mixture"),
        (lambda k, v: ab.attend(ONE, k, v), ([ONE, ONE], [ONE]), UNEQUAL),
        (lambda k, v: ab.attend(ONE, k, v, shape=(2,)), ([], [ONE]), UNEQUAL),
        (lambda k, v: ab.attend(ONE, k, v), ([OTHER], [ONE]), r"got \(2,\) and \(3,\)"),
        (lambda k, v: ab.attend(np.zeros((2, 2)), k, v), ([OTHER], [ONE]), r"got \(2, 2\) and \(3,\)"),
        (lambda k, v: ab.attend(ONE, k, v), ([ONE], [(ONE, ONE)]), "single values, got tuples"),
        (lambda k, v: ab.attend(ONE, k, v), ([(ONE, ONE)], [ONE]), "single values, got tuples"),
    ],
)
def test_refused(body: Any, lists: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        body(*lists)
    with pytest.raises(AutobatchError, match=text):
        in_cell(body, *lists)


def test_lists_of_different_lengths_are_refused_whenever_they_come() -> None:
    """Also after calls of equal lengths, which the generated fast path handles, and outside cells."""
    weights = Weights()
    inside = ab.cell(lambda keys, values: ab.attend(weights.query, keys, values))
    for call in (inside, lambda keys, values: ab.attend(weights.query, keys, values)):

        def loss(sizes: tuple[int, int], call: Any = call) -> Any:
            made = [[weights.feed(np.ones(DIM)) for _ in range(size)] for size in sizes]
            return ab.sum(call(*made))

        run = ab.batched(loss, module=weights)
        assert run([(2, 2), (1, 1), (3, 3)]).shape == (3,)
        with pytest.raises(
            GraphError,
            match=r"must have equal lengths, got \d of 'keys' and \d of 'values'",
        ):
            run([(2, 2), (2, 3)])
        assert run([(2, 2)]).shape == (1,)


def test_an_empty_list_behind_an_array_of_any_length() -> None:
    @ab.cell(ragged=("rows",))
    def both(rows: Any, xs: list[Any]) -> Any:
        return ab.sum(rows, axis=0) + ab.sum_n(xs, shape=(2,))

    instances = [(np.ones((3, 2)), []), (np.ones((1, 2)), [np.ones(2)])]
    found = ab.batched(lambda pair: both(*pair), backend="reference")(instances)
    assert np.array_equal(found, [[3.0, 3.0], [2.0, 2.0]])
