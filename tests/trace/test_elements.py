"""Test bodies that walk through lists: those that treat all elements alike have one type, and all are right."""

from __future__ import annotations

import copy
import cProfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import autobatch as ab
import maps
from autobatch.backends.reference import Reference
from autobatch.errors import ShapeError
from autobatch.trace.elements import ListBuilder
from autobatch.trace.tracking import ReadTracker
from helpers.runs.recorded import count_types, traced, types_of
from helpers.runs.ways import each

DIM, TOLERANCE = 3, 1e-10
SIZES: tuple[list[int], ...] = ([1, 2], [20, 3], [5, 5, 1, 2], [7])  # per instance, per node: the length of its lists


class Weights(ab.Module):
    """The parameters of the cells."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.scale, self.shift = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal(DIM))
        self.W, self.U = (
            ab.Parameter(rng.standard_normal((DIM, DIM))),
            ab.Parameter(rng.standard_normal((2 * DIM, DIM))),
        )
        self.out, self.number = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(0.4)
        self.rate = 0.5
        self.astype("float64")

    @ab.cell
    def feed(self, x: Any) -> Any:
        return self.scale * x + self.shift


def draw(sizes: Any = SIZES, seed: int = 0) -> list[list[list[Any]]]:
    rng = np.random.default_rng(seed)
    return [[[rng.standard_normal(DIM) for _ in range(size)] for size in nodes] for nodes in sizes]


def run(weights: Weights, body: Callable[..., Any], sizes: Any = SIZES) -> int:
    """Check a body of a query and two lists against one instance at a time; return the number of its types."""
    call = ab.cell(lambda q, xs, ys: ab.sum(body(weights, q, xs, ys) * weights.out))

    def loss(nodes: list[list[Any]]) -> Any:
        fed = [[weights.feed(x) for x in values] for values in nodes]
        terms = [call(ab.tanh(weights.out), xs, [ab.tanh(x) for x in xs]) for xs in fed]
        return ab.sum_n(terms, shape=())

    instances = draw(sizes)
    for backend in (Reference(poison=True), "cpu"):
        found = ab.batched(loss, module=weights, backend=backend)
        ab.testing.check_batched(loss, found, instances, TOLERANCE)
        ab.testing.check_grads(found, instances, weights, np.random.default_rng(1))
    return count_types(found, "<lambda>")


def gates(w: Weights, xs: Any) -> list[Any]:
    """Walk through a list, for cells to call."""
    made = []
    for x in xs:
        z = w.W @ x
        made.append(ab.sigmoid(z) * ab.where(x > 0.1, x, 2.0 * x))
    return made


def additive(w: Weights, q: Any, xs: Any) -> Any:
    """Apply additive attention (Bahdanau et al. 2015)."""
    scores = [ab.dot(w.scale, ab.tanh(w.W @ q + w.W @ x)) for x in xs]
    return ab.dot_n(ab.softmax_n(scores), xs)


def counted(w: Weights, xs: Any) -> Any:
    total: Any = 0.0
    for x in xs:
        total = total + ab.tanh(x) * w.rate
    return total


def prefixes(xs: Any) -> Any:
    """Sum over prefixes: each element depends on the previous ones."""
    total, made = xs[0] * 0.0, []
    for x in xs:
        total = total + x
        made.append(ab.tanh(total))
    return ab.sum_n(made)


def blocks(w: Weights, x: Any) -> Any:
    """Slice and join parts of one element."""
    left, right = ab.split(w.U @ x, 2)
    return ab.concat([left[:1], right[1:]]) * x[0] + ab.sum(x)


def both(w: Weights, q: Any, xs: Any, ys: Any) -> Any:
    """Return a list unchanged, with attention over it and another list."""
    return xs, ab.attend(q, xs, [w.W @ y for y in ys])


def short(xs: Any) -> Any:
    """Sum at most four values; raise an error for more."""
    if len(xs) > 4:
        raise ValueError("too many")
    return sum(xs)


MAPS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("sum_n", lambda w, q, xs, ys: ab.sum_n([ab.tanh(w.W @ x) for x in xs])),
    ("mean_n", lambda w, q, xs, ys: ab.mean_n([x * q for x in xs])),
    ("max_n", lambda w, q, xs, ys: ab.max_n([x + w.number for x in xs])),
    ("logsumexp_n", lambda w, q, xs, ys: ab.logsumexp_n([2.0 * x for x in xs])),
    ("sum", lambda w, q, xs, ys: sum(ab.tanh(x) for x in xs)),
    ("sum of all", lambda w, q, xs, ys: sum(xs) * q),
    ("loop", lambda w, q, xs, ys: counted(w, xs)),
    ("helper", lambda w, q, xs, ys: ab.sum_n(gates(w, xs))),
    ("zip", lambda w, q, xs, ys: ab.sum_n([x * (w.W @ y) for x, y in zip(xs, ys, strict=True)])),
    ("zip of a map", lambda w, q, xs, ys: ab.sum_n(x * g for x, g in zip(xs, gates(w, ys), strict=True))),
    ("map of a map", lambda w, q, xs, ys: ab.max_n([ab.tanh(g) for g in gates(w, xs)])),
    ("attention", lambda w, q, xs, ys: additive(w, q, xs)),
    ("attention over maps", lambda w, q, xs, ys: ab.attend(q, [w.W @ x for x in xs], gates(w, xs))),
    ("dot_n", lambda w, q, xs, ys: ab.dot_n([ab.dot(q, y) for y in ys], xs)),
    ("tuples", lambda w, q, xs, ys: ab.sum_n([(x, ab.sum(x) * q) for x in xs])[1]),
    ("softmax of vectors", lambda w, q, xs, ys: ab.sum_n([a * x for a, x in zip(ab.softmax_n(xs), xs, strict=True)])),
    ("blocks", lambda w, q, xs, ys: ab.sum_n([blocks(w, x) for x in xs])),
    ("inside out", lambda w, q, xs, ys: ab.tanh(ab.sum_n([x * ab.sum_n(ys) for x in xs]))),
    ("the same twice", lambda w, q, xs, ys: ab.sum_n([w.W @ x for x in xs]) * ab.max_n([w.W @ x for x in xs])),
    ("each", lambda w, q, xs, ys: ab.sum_n(ab.each(lambda x: ab.tanh(w.W @ x) * q, xs))),
    ("each of two", lambda w, q, xs, ys: ab.max_n(ab.each(lambda x, y: x * y + w.shift, xs, ys))),
    ("each of a map", lambda w, q, xs, ys: ab.mean_n(ab.each(ab.tanh, gates(w, xs)))),
    ("each of each", lambda w, q, xs, ys: ab.sum_n(ab.each(ab.tanh, ab.each(lambda x: x * q, xs)))),
    ("each of a pair", lambda w, q, xs, ys: ab.sum_n(ab.each(lambda x: (ab.sum(x), x * q), xs))[1]),
    ("each without it", lambda w, q, xs, ys: ab.sum_n(ab.each(lambda x: q * q, xs))),
    ("each of a parameter", lambda w, q, xs, ys: ab.mean_n(ab.each(lambda x: w.shift, xs))),
    ("each of a number", lambda w, q, xs, ys: ab.sum_n(ab.each(lambda x: 2.0, xs)) * q),
    ("walk through each", lambda w, q, xs, ys: sum(x * 2.0 for x in ab.each(ab.tanh, xs))),
    ("if", lambda w, q, xs, ys: ab.sum_n(xs) if xs else q),
    ("if len", lambda w, q, xs, ys: q if len(xs) == 0 else ab.sum_n(xs)),
)  # fmt: skip
NO_MAPS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("numbered", lambda w, q, xs, ys: ab.sum_n([x * float(k) for k, x in enumerate(xs)])),
    ("divided by the length", lambda w, q, xs, ys: ab.sum_n([w.W @ x for x in xs]) / len(xs)),
    ("divided by the length of a map", lambda w, q, xs, ys: sum(gates(w, xs)) / len(gates(w, xs))),
    ("prefixes", lambda w, q, xs, ys: prefixes(xs)),
    ("pairs", lambda w, q, xs, ys: ab.sum_n([x * y for x in xs for y in ys])),
    ("neighbours", lambda w, q, xs, ys: ab.sum_n([x * y for x, y in pairwise(xs)], shape=DIM)),
    ("first", lambda w, q, xs, ys: ab.sum_n([x - xs[0] for x in xs])),
    ("last of a map", lambda w, q, xs, ys: gates(w, xs)[-1]),
    ("backwards", lambda w, q, xs, ys: ab.sum_n([w.W @ x for x in reversed(xs)])),
    ("some", lambda w, q, xs, ys: ab.sum_n([x for k, x in enumerate(xs) if k % 2 == 0])),
    ("the number of copies", lambda w, q, xs, ys: ab.sum_n([q for _ in xs])),
    ("product", lambda w, q, xs, ys: xs[0] * xs[-1]),
    ("joined", lambda w, q, xs, ys: ab.sum(ab.concat(list(xs))) * q),
    ("each inside each", lambda w, q, xs, ys: ab.sum_n(ab.each(lambda x: ab.sum_n(ab.each(lambda y: x * y, ys)), xs))),
    ("of one length with what is returned", lambda w, q, xs, ys: both(w, q, xs, ys)[0][0]),
    ("begun with the first", lambda w, q, xs, ys: xs[0] + sum(x for x in xs[1:])),
)  # fmt: skip


@pytest.mark.cases(0, 10)
@pytest.mark.parametrize(("name", "body"), MAPS, ids=[name for name, _ in MAPS])
def test_what_treats_all_elements_alike_is_one_type(name: str, body: Callable[..., Any]) -> None:
    assert run(Weights(), body) == 1


@pytest.mark.long
@each("name, body", NO_MAPS)
def test_what_does_not_is_a_type_for_each_length(name: str, body: Callable[..., Any]) -> None:
    assert run(Weights(), body, sizes=([1, 2], [3, 1], [2, 4])) == 4


def matched(w: Weights, xs: Any) -> Any:
    match xs:
        case [a]:
            return a * w.scale
        case [a, *rest]:
            return a - ab.sum_n(rest)
    return 100.0 * w.scale


def remembered(w: Weights, xs: Any) -> Any:
    memo: dict[int, Any] = {}
    for x in xs:
        memo[id(x)] = ab.tanh(x)
    return ab.sum_n([memo[id(x)] for x in xs]) + memo[id(xs[0])]


def changed(xs: Any, change: Callable[[Any], Any]) -> Any:
    change(xs)
    return ab.sum_n(xs, shape=DIM)


def put(xs: Any) -> None:
    xs[0] = 2.0 * xs[0]


def cut(xs: Any) -> None:
    del xs[0]


def double(xs: Any) -> None:
    xs += [3.0 * xs[0]]
    xs *= 2


def placed_twice(xs: Any) -> Any:
    return [float(x is y) for x, y in zip(xs, xs, strict=True)]


AS_LISTS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("a list", lambda w, q, xs, ys: ab.sum_n(xs) if isinstance(xs, list) and not isinstance(xs, tuple) else q),
    ("a sequence", lambda w, q, xs, ys: ab.sum_n(xs) if isinstance(xs, Sequence) and not isinstance(q, list) else q),
    ("a map is a list", lambda w, q, xs, ys: q if isinstance(ab.each(ab.tanh, xs), list) else ab.sum_n(xs)),
    ("matched", lambda w, q, xs, ys: matched(w, xs)),
    ("not the first", lambda w, q, xs, ys: ab.sum_n([x for x in xs if x is not xs[0]], shape=DIM)),
    ("is the last", lambda w, q, xs, ys: ab.sum_n([x * (2.0 if x is xs[-1] else 1.0) for x in xs])),
    ("is in a slice", lambda w, q, xs, ys: q * float(xs[0] is xs[:1][0]) + xs[-1]),
    ("pairs of others", lambda w, q, xs, ys: ab.sum_n([x * y for x in xs for y in xs if x is not y], shape=DIM)),
    ("the same twice", lambda w, q, xs, ys: ab.sum_n([k * x for k, x in zip(placed_twice(xs), xs, strict=True)])),
    ("a number of objects", lambda w, q, xs, ys: len({id(x) for k in range(3) for x in xs}) * q),
    ("of a map", lambda w, q, xs, ys: sum(x is y for x, y in zip(*[gates(w, xs)] * 2, strict=True)) * q + xs[0]),
    ("remembered", lambda w, q, xs, ys: remembered(w, xs)),
    ("put", lambda w, q, xs, ys: changed(xs, put)),
    ("cut", lambda w, q, xs, ys: changed(xs, cut)),
    ("doubled", lambda w, q, xs, ys: changed(xs, double)),
    ("appended", lambda w, q, xs, ys: changed(xs, lambda xs: xs.append(q))),
    ("copied", lambda w, q, xs, ys: ab.sum_n(copy.copy(xs)) + ab.sum_n(copy.deepcopy(xs))),
    ("of gradients", lambda w, q, xs, ys: sum(ab.grad(lambda zs: ab.sum(ab.sum_n(ab.each(ab.tanh, zs))))(xs))),
)  # fmt: skip


@each("name, body", AS_LISTS)
def test_a_list_in_a_cell_is_a_list_of_the_same_objects(name: str, body: Callable[..., Any]) -> None:
    run(Weights(), body, sizes=([1, 2], [3, 1], [2, 5]))


def test_explain_says_which_cell_has_a_type_for_each_length_and_why() -> None:
    weights = Weights()
    function: Callable[[Any], Any] = lambda xs: ab.sum(xs[0] - xs[-1])  # noqa: E731
    call: Any = ab.cell(function)
    call.name = "ends"
    batched = ab.batched(lambda xs: call([weights.feed(x) for x in xs]), module=weights)
    told = str(batched.explain([nodes[0] for nodes in draw(([2], [3]))]))
    assert (
        "ends has a type for each length of xs, because the body does not treat all elements alike; for one type, "
        "write a map" in told
    )


@pytest.mark.slow
def test_a_body_that_changes_at_some_length_is_one_type_for_the_others() -> None:
    def body(w: Weights, q: Any, xs: Any, ys: Any) -> Any:
        made = [w.W @ x for x in xs]
        return ab.max_n(made) if len(made) > 4 else ab.sum_n(made)

    assert run(Weights(), body, sizes=([1, 3], [5], [2, 4], [6, 5], [3])) == 3  # up to 4, of 5, of 6


@pytest.mark.slow
def test_a_body_may_refuse_lists_that_nobody_passes() -> None:
    assert run(Weights(), lambda w, q, xs, ys: short(xs) * q, sizes=([1, 3], [2, 4])) == 1
    assert run(Weights(), lambda w, q, xs, ys: short(xs) * q, sizes=([4, 4], [4])) == 1


@pytest.mark.slow
def test_without_children_a_cell_that_walks_is_a_type_of_its_own() -> None:
    def body(w: Weights, q: Any, xs: Any, ys: Any) -> Any:
        return ab.sum_n([ab.tanh(x) for x in xs], shape=DIM) + q

    assert run(Weights(), body, sizes=([0, 2], [1, 0], [3])) == 2


@pytest.mark.parametrize("name", maps.MODELS)
def test_models_with_a_map_have_one_type_per_cell_and_give_what_two_cells_give(name: str) -> None:
    make, draw_instance = maps.MODELS[name]
    model, rng = make(np.random.default_rng(0), DIM).astype("float64"), np.random.default_rng(1)
    instances = [draw_instance(rng) for _ in range(12)]
    one = ab.batched(model.loss)
    two = ab.batched(lambda x: model.loss(x, in_one=False), module=model)
    value, grads = one.value_and_grad(instances)
    names = [kind.name for kind in types_of(one)]
    cells = {"node", "look", "receive", "forward"} & {*names}
    assert [names.count(cell) for cell in cells] == [1] * len(cells)
    assert cells
    expected, expected_grads = two.value_and_grad(instances)
    np.testing.assert_allclose(value, expected, rtol=TOLERANCE)
    for parameter, grad in grads.items():
        np.testing.assert_allclose(grad, expected_grads[parameter], rtol=1e-8, atol=TOLERANCE, err_msg=parameter)


@each(
    "body",
    [
        lambda xs: ab.sum_n([ab.dropout(x, 0.5) for x in xs]),
        lambda xs: ab.sum_n(ab.each(lambda x: ab.dropout(x, 0.5), xs)),
        lambda xs: ab.sum_n([x + ab.normal(DIM) for x in xs]),
        lambda xs: ab.sum_n(ab.each(lambda x: x * ab.normal(DIM), xs)),
    ],
)
def test_each_element_draws_random_numbers_of_its_own(body: Any) -> None:
    weights = Weights()
    call = ab.cell(body)

    def loss(xs: list[Any]) -> Any:
        return call([weights.feed(x) for x in xs])

    instances = [nodes[0] for nodes in draw(([4], [2], [4]))]
    found = ab.batched(loss, module=weights, seed=3)(instances)
    for key, instance in enumerate(instances):
        with ab.randomness(seed=3, key=key):
            np.testing.assert_allclose(found[key], loss(instance), rtol=TOLERANCE)


def test_what_a_body_reads_is_guarded_at_every_length() -> None:
    weights = Weights()
    call = ab.cell(lambda xs: ab.sum(counted(weights, xs)))

    def loss(xs: list[Any]) -> Any:
        return call([weights.feed(x) for x in xs])

    batched = ab.batched(loss, module=weights)
    instances = [nodes[0] for nodes in draw(([2], [5], [1]))]
    for rate in (0.5, 2.0, 0.5):
        weights.rate = rate
        ab.testing.check_batched(loss, batched, instances, TOLERANCE)


def test_a_longer_list_traces_once_more_and_no_type_is_added() -> None:
    weights = Weights()
    call = ab.cell(lambda xs: ab.sum_n([ab.tanh(x) for x in xs]))
    batched = ab.batched(lambda xs: call([weights.feed(x) for x in xs]), module=weights)
    counts = []
    for size in (2, 2, 3, 9, 9, 3):
        batched([nodes[0] for nodes in draw(([size],))])
        counts.append((len(types_of(batched)), traced(batched)))
    n_types, n_traced = zip(*counts, strict=True)
    assert len(set(n_types)) == 1
    assert np.diff(n_traced).tolist() == [0, 0, 1, 0, 0]  # 3 was tried together with 2


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ShapeError, match="must have one length, got lengths 1 and 2"):
        ab.each(lambda x, y: x * y, [1.0], [1.0, 2.0])


def test_a_new_length_costs_no_reports_and_no_instructions_per_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing runs the body once per element. Everything else happens as often for 20 elements as for 2000."""
    weights, counts = Weights(), Counter[str]()

    def counting(kind: Any, name: str) -> None:
        original = getattr(kind, name)

        def call(self: Any, *args: Any) -> Any:
            counts[name] += 1
            return original(self, *args)

        monkeypatch.setattr(kind, name, call)

    counting(ReadTracker, "hear")
    counting(ReadTracker, "_read")
    counting(ListBuilder, "_append")
    gates = ab.cell(lambda q, xs: ab.sum_n([ab.sigmoid(q + weights.W @ x) * (x - weights.rate) for x in xs]))
    loss = ab.batched(lambda n: ab.sum(gates(weights.shift, [np.ones(DIM)] * n)), module=weights, backend="reference")
    loss([2000])
    found = []
    for n in (20, 2001):
        counts.clear()
        loss([n])
        found.append(dict(counts))
    assert found[0] == found[1]
    assert found[0]["hear"] < 200  # functions, not calls
    assert count_types(loss, "<lambda>") == 1


def test_what_is_called_for_a_later_element_alone_is_guarded() -> None:
    weights, settings = Weights(), {"late": 1.0}

    def late() -> float:
        return settings["late"]

    def scale(i: int) -> float:
        return late() if i >= 10 else 1.0

    call = ab.cell(lambda xs: ab.sum(ab.sum_n([x * scale(i) for i, x in enumerate(xs)])))

    def loss(n: int) -> Any:
        return call([weights.feed(np.full(DIM, i + 1.0)) for i in range(n)])

    run = ab.batched(loss, module=weights, backend="reference")
    for _ in range(2):
        for n in (2, 12, 30, 12):
            ab.testing.check_batched(loss, run, [n], TOLERANCE)
        settings["late"] = 3.0


def test_a_map_that_fails_leaves_nothing_behind() -> None:
    weights = Weights()

    @ab.cell
    def drop(xs: list[Any]) -> Any:
        try:
            ab.each(lambda x: ab.dot(x, np.ones(7)), xs)
        except ShapeError:
            return ab.dropout(ab.sum_n(xs), 0.5)

    run = ab.batched(lambda n: drop([np.ones(DIM)] * n), module=weights, backend="reference")
    run([2, 3, 4])
    assert count_types(run, "drop") == 1


@each("profiler", [cProfile.Profile(), None])
def test_long_lists_are_traced_beside_a_profiler(profiler: Any) -> None:
    weights = Weights()
    call = ab.cell(lambda xs: ab.sum(ab.sum_n([ab.tanh(x) for x in xs])))
    run = ab.batched(lambda n: call([np.ones(DIM)] * n), module=weights, backend="reference")
    with profiler or nullcontext():
        assert run([50, 7, 51]) == pytest.approx(np.tanh(1.0) * DIM * np.array([50, 7, 51]))
    assert count_types(run, "<lambda>") == 1
