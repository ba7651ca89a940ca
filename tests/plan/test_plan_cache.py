"""Test cached plans: what a repeated mini-batch skips, what counts as repeated, and that results are bit-identical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.backends.reference import Reference
from autobatch.engine import planning
from autobatch.errors import GraphError, PlanError
from autobatch.graph.graph import Graph
from autobatch.memplan.planner import MemoryPlanner
from autobatch.plan.plan import Plan, PlannedTypes
from autobatch.plan.plan_cache import PlanCache, Planned
from autobatch.policies.fsm.qlearning import keep_learning
from autobatch.schedule.schedule import Schedule
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.recorded import module_of

V = 20


class Chains(ab.Module):
    """A chain over words whose state is updated with each word, with optional dropout."""

    def __init__(self, rate: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((V, 5)))
        self.gates = ab.Linear(10, 5, rng=rng)
        self.rate = rate

    @ab.cell
    def read(self, word: int, scale: float) -> Any:
        return scale * ab.lookup(self.table, word)

    @ab.cell
    def step(self, state: Any, read: Any) -> Any:
        return ab.tanh(self.gates(ab.concat((ab.dropout(state, self.rate) if self.rate else state, read))))

    @ab.cell
    def twice(self, state: Any) -> Any:
        return 2.0 * state

    @ab.cell
    def norm(self, state: Any) -> Any:
        return ab.sum(state**2)

    def state(self, words: tuple[int, ...], scale: float) -> Any:
        state: Any = np.zeros(5)
        for word in words:
            state = self.step(state, self.read(word, scale))
        return state

    def loss(self, words: tuple[int, ...], scale: float = 1.0) -> Any:
        return self.norm(self.state(words, scale))

    def with_name(self, instance: tuple[str, tuple[int, ...]]) -> Any:
        name, words = instance
        return self.loss(words), name

    def either(self, instance: tuple[str, tuple[int, ...]]) -> Any:
        kind, words = instance
        state = self.state(words, 0.5 if kind == "scaled" else 1.0)
        if kind == "twice":
            state = self.twice(state)
        return [self.norm(state), state] if kind == "list" else [self.norm(state)]


class Counting(MemoryPlanner):
    """Counts the graphs that it places."""

    placed = 0

    def place(self, graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
        Counting.placed += 1
        return super().place(graph, schedule, cells)


@pytest.fixture(autouse=True)
def _nothing_placed() -> None:
    Counting.placed = 0


def make(model: Any, method: str = "loss", **options: Any) -> ab.Batched:
    options.setdefault("backend", Reference(poison=True))
    options.setdefault("policy", "agenda")
    return ab.batched(getattr(model, method), planner=Counting(), **options)


def draw_words(n: int, seed: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(V, size=rng.integers(1, 8)).tolist()) for _ in range(n)]


def anew(graphs: list[Graph]) -> list[Graph]:
    """Copy graphs without anything remembered about them."""
    return [Graph(g.words.copy(), g.floats.copy(), g.types, g.structures, g.keys.copy()) for g in graphs]


def run(loss: ab.Batched, graphs: list[Graph]) -> list[Any]:
    """Return losses, value and gradients."""
    losses = loss(graphs)
    value, grads = loss.value_and_grad(graphs)
    return [losses, value, *(np.array(g) for g in grads.values())]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def hit(loss: ab.Batched) -> bool | None:
    assert loss.last is not None
    return loss.last.plan_hit


def test_a_minibatch_that_comes_again_skips_merge_rewrite_schedule_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = make(Chains())
    graphs = loss.record_all(draw_words(8, seed=1))
    first = run(loss, graphs)
    assert (Counting.placed, hit(loss)) == (2, False)
    monkeypatch.setattr("autobatch.trace.record.merge_graphs", refuse)
    monkeypatch.setattr(planning, "rewrite", refuse)
    monkeypatch.setattr(planning, "make_schedule", refuse)
    for again in (graphs, anew(graphs)):
        loss.step = 0
        assert_same(run(loss, again), first)
        assert (Counting.placed, hit(loss)) == (2, True)
    assert loss.last is not None
    assert loss.last.plan_hit_rate == 4 / 6
    assert (loss.last.schedule_ms, loss.last.place_ms) == (0.0, 0.0)
    report = loss.explain(graphs)
    assert (report.plan_hit, report.plan_hit_rate) == (True, 5 / 7)
    assert "the plan came from the cache; hit rate 71%" in str(report)


def refuse(*_: Any) -> Any:
    raise AssertionError("planned again")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
def test_results_are_those_without_a_cache_bit_for_bit(start: int) -> None:
    """Random programs, and mini-batches drawn repeatedly from a few, with a cache that is too small for them."""
    for seed in range(start, 8, 4):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True).astype("float64")
        instances = draw_instances(rng, model, n=6)
        options: dict[str, Any] = {"rewrites": "all"} if seed % 2 else {}
        kept, planned = (make(model, policy="auto", plan_cache=size, **options) for size in (5, 0))
        losses = kept, planned
        recorded = [loss.record_all(instances) for loss in losses]
        pool = [rng.integers(6, size=rng.integers(1, 5)).tolist() for _ in range(4)]
        for number in rng.integers(4, size=14):
            batches = [[graphs[i] for i in pool[number]] for graphs in recorded]
            one, other = (run(loss, batch) for loss, batch in zip(losses, batches, strict=True))
            assert_same(one, other)
            assert kept.last is not None
            assert planned.last is not None
            counts = ("nodes", "batches", "launches", "copied_bytes", "planned_bytes", "unseen_share")
            assert [getattr(kept.last, name) for name in counts] == [getattr(planned.last, name) for name in counts]
        assert kept.last is not None
        assert kept.last.plan_hit_rate > 0.2
        assert len(kept.planning.cache) == 5
        assert (hit(planned), planned.planning.cache.lookups) == (None, 0)


def to_float64(loss: ab.Batched) -> None:
    module_of(loss).astype("float64")


def freeze(loss: ab.Batched) -> None:
    module_of(loss).parameters()["table"].trainable = False


class Revised:
    """A user's policy that may report changed schedules."""

    name, revision = "revised", 0

    def schedule(self, graph: Graph) -> Schedule:
        return policies.get("agenda").schedule(graph)


CHANGES: dict[str, Callable[[ab.Batched], Any]] = {
    "policy": lambda loss: setattr(loss, "policy", policies.get("depth")),
    "policy object": lambda loss: setattr(loss, "policy", policies.get("agenda")),
    "revision": lambda loss: setattr(loss.policy, "revision", 1),
    "planner": lambda loss: setattr(loss, "planner", Counting(joins=False)),
    "trainable": freeze,
    "dtype": to_float64,
    "rewrites": lambda loss: setattr(loss, "rewrites", ()),
    "max_bytes": lambda loss: setattr(loss, "max_bytes", 10**9),
    "types": lambda loss: loss.record_all([("twice", (1,))]),
    "slots": lambda loss: loss.record_all([("list", (1,))]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_plan_depends_on_makes_it_another_one(change: str) -> None:
    loss = make(Chains(), "either", policy=Revised())
    graphs = loss.record_all([("", (1, 2)), ("", (3,))])
    run_training = change == "trainable"
    other = make(module_of(loss), "loss")
    trained = other.record_all([(1, 2)])
    call: Callable[[], Any] = (lambda: other.value_and_grad(trained)) if run_training else (lambda: loss(graphs))
    for n_placed in (1, 1):
        call()
        assert Counting.placed == n_placed
    CHANGES[change](other if run_training else loss)
    for n_placed in (2, 2):
        call()
        assert Counting.placed == n_placed


def test_training_is_planned_apart_and_so_is_other_content() -> None:
    loss = make(Chains(), "either")
    same, word, order, longer, scaled = (
        loss.record_all([("", (1, 2)), ("", (3,))]),
        loss.record_all([("", (1, 4)), ("", (3,))]),
        loss.record_all([("", (3,)), ("", (1, 2))]),
        loss.record_all([("", (1, 2, 3)), ("", (3,))]),
        loss.record_all([("scaled", (1, 2)), ("", (3,))]),
    )
    for number, graphs in enumerate((same, word, order, longer, scaled, same[:1]), start=1):
        loss(graphs)
        loss(anew(graphs))
        assert Counting.placed == number
    trained = make(Chains())
    graphs = trained.record_all([(1, 2)])
    run(trained, graphs)
    run(trained, graphs)
    assert Counting.placed == 8


def test_the_one_not_used_for_longest_goes() -> None:
    loss = make(Chains(), plan_cache=2)
    a, b, c = ([graph] for graph in loss.record_all([(1,), (2, 2), (3, 3, 3)]))
    hits = []
    for graphs in (a, b, a, c, a, b, c):
        loss(graphs)
        hits.append(hit(loss))
    assert hits == [False, False, True, False, True, False, False]
    assert len(loss.planning.cache) == 2


def test_masks_go_by_the_keys_of_the_instances_at_hand() -> None:
    model = Chains(rate=0.5)
    kept, planned = (make(model, seed=3, plan_cache=size) for size in (4, 0))
    first, second, third = kept.record_all([(1, 2, 3)] * 3)
    other = planned.record_all([(1, 2, 3)] * 3)
    results = [run(kept, graphs) for graphs in ([first, second], [second, first], [third, third])]
    assert (hit(kept), Counting.placed) == (True, 2)
    planned.step = 0
    expected = [run(planned, [other[i], other[j]]) for i, j in ((0, 1), (1, 0), (2, 2))]
    for found, right in zip(results, expected, strict=True):
        assert_same(found, right)
    kept.step = 0
    np.testing.assert_array_equal(kept([second, first]), results[0][0][::-1])
    third.key = first.key
    np.testing.assert_array_equal(kept([third, second]), results[0][0])
    assert len({float(x) for result in results for x in result[0]}) > 2


def test_what_is_returned_beside_values_is_that_of_the_instances_at_hand() -> None:
    loss = make(Chains(), "with_name")
    graphs = loss.record_all([("one", (1, 2)), ("two", (1, 2))])
    assert loss(graphs[:1])[1] == ["one"]
    losses, names = loss(graphs[1:])
    assert (hit(loss), names, losses.shape) == (True, ["two"], (1,))


def test_parts_are_found_as_they_were_cut() -> None:
    model = Chains(rate=0.5)
    kept, planned = (make(model, plan_cache=size) for size in (4, 0))
    words = draw_words(12, seed=2)
    graphs, others = kept.record_all(words), planned.record_all(words)
    kept.value_and_grad(graphs)
    assert kept.last is not None
    kept.max_bytes = planned.max_bytes = kept.last.planned_bytes // 3
    expected = run(planned, others)
    for _ in range(2):
        kept.step = 0
        assert_same(run(kept, graphs), expected)
    assert kept.last is not None
    assert (hit(kept), kept.last.parts > 2, len(kept.planning.cache)) == (True, True, 3)


def test_what_is_recorded_afresh_is_not_looked_for() -> None:
    loss = make(Chains())
    words = draw_words(3, seed=3)
    for instances in (words, words, []):
        loss(instances)
        assert loss.planning.cache.lookups == 0
    assert (hit(loss), len(loss.planning.cache)) == (None, 0)


def test_graphs_of_another_function_are_refused_though_they_hold_the_same() -> None:
    model = Chains()
    loss, other = make(model), make(model)
    graphs = loss.record_all([(1, 2)])
    loss(graphs)
    (stranger,) = other.record_all([(1, 2)])
    assert stranger.digest == graphs[0].digest
    with pytest.raises(GraphError, match="record all instances with the same batched function"):
        loss([stranger])


def test_digests_tell_contents_apart() -> None:
    loss = make(Chains(), "either")
    one, two, floats = loss.record_all([("", (1, 2)), ("", (1, 3)), ("scaled", (1, 2))])
    assert len({one.digest, two.digest, floats.digest}) == 3
    assert anew([one])[0].digest == one.digest
    assert anew([one])[0].digest != anew([two])[0].digest


def test_a_policy_that_learns_in_use_decides_as_without_a_cache() -> None:
    """The plan of a mini-batch that taught something is not reused; later plans are."""
    model = draw_model(np.random.default_rng(5), smooth=True)
    instances = draw_instances(np.random.default_rng(6), model, n=8)
    outcomes = []
    for size in (8, 0):
        loss = make(model, plan_cache=size)
        graphs = loss.record_all(instances)
        loss.learn_policy([graphs[:2]], online=True, episodes=20)
        outcomes.append([run(loss, part) for part in (graphs, graphs, graphs[4:], graphs, graphs[4:], graphs)])
    for found, expected in zip(*outcomes, strict=True):
        assert_same(found, expected)
    assert policies.get("score").revision == 0
    machine: Any = loss.policy
    before = machine.revision
    machine.learner = None
    assert machine.revision != before
    keep_learning(machine)
    assert machine.revision == before


def test_only_numbers_of_plans_are_taken() -> None:
    for wrong in (-1, 1.5, True, "all"):
        with pytest.raises(PlanError, match=r"plan_cache must be an int of at least 0, got .*; 0 keeps no plans"):
            make(Chains(), plan_cache=wrong)


def test_a_cache_against_a_list() -> None:
    """Random keys, compared with a list of the last N distinct ones."""
    rng = np.random.default_rng(0)
    cache, recent, n_hits = PlanCache(3), list[int](), 0
    plan, policy = Planned(None, (), 0), policies.get("score")  # type: ignore[arg-type]
    for key in rng.integers(6, size=300).tolist():
        found = cache.find(key, policy)
        assert (found is not None) == (key in recent)
        n_hits += found is not None
        if found is None:
            cache.keep(key, plan)
        recent = [key, *(k for k in recent if k != key)][:3]
    assert (cache.hits, cache.lookups, cache.hit_rate) == (n_hits, 300, n_hits / 300)
    assert cache.find(recent[0], policies.get("agenda")) is None
    assert len(cache) == 0
