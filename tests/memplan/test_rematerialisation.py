"""Test recomputation: equal gradients, the cheapest choice, and only values that can be recomputed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.errors import GraphError, PlanError
from autobatch.graph.rewrite import PASSES
from autobatch.ir.autodiff import compute_again, differentiate
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import SHARED, CellProgram, Constant, Instruction, Var, Weight
from autobatch.ir.program_check import check_derivative, may_be_made_again
from autobatch.memplan.cell.rematerialisation import PRICES, Prices, rematerialise
from autobatch.memplan.planner import MemoryPlanner
from autobatch.trace.record import Recorder
from helpers.checkers.parity import assert_equal
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import place_batch
from helpers.runs.program_runs import Results, draw_parameters, draw_rows, run_derivative
from helpers.twins.cases import CASES, Case

ARITHMETIC = {"add", "sub", "mul", "neg", "relu", "where"}
BACKENDS: list[Callable[[], Any]] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
KEPT = MemoryPlanner(recomputes="nothing", reuses=False)
pytestmark = pytest.mark.usefixtures("_checked")


def planners() -> list[MemoryPlanner]:
    """Return planners that recompute as much as possible: with other switches on, off, and without reused columns."""
    off: dict[str, Any] = dict.fromkeys(("simplifies", "joins", "stacks", "sums", "cuts", "hoists", "fuses"), False)
    return [
        MemoryPlanner(recomputes="all"),
        MemoryPlanner(recomputes="all", reuses=False),
        MemoryPlanner(recomputes="all", **off),
        MemoryPlanner(recomputes="more"),
    ]


def derivatives(seed: int, smooth: bool = True) -> list[Derivative]:
    """Return the derivatives of the cells of a random model."""
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=smooth)
    recorder = Recorder(model.everything, model)
    recorder.record(draw_instances(rng, model, n=4))
    return [differentiate(node_type.program) for node_type in recorder.types.types]


# --- equal gradients ---


@pytest.mark.cases(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models(case: Case) -> None:
    model, instances = case.draw(seed=3, n_instances=5, dim=4)
    expected = ab.batched(model.loss, planner=KEPT).value_and_grad(instances)
    for planner, backend in product(planners(), BACKENDS):
        assert_equal(ab.batched(model.loss, planner=planner, backend=backend()).value_and_grad(instances), expected)


@pytest.mark.cases(0, 15)
@pytest.mark.parametrize("seed", range(100))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, n=4)
    options: dict[str, Any] = {"policy": "agenda", "rewrites": PASSES}
    plain = ab.batched(model.everything, planner=KEPT, **options)
    expected = plain.value_and_grad(instances, has_aux=True)
    for planner, backend in product(planners(), BACKENDS):
        loss = ab.batched(model.everything, planner=planner, backend=backend(), **options)
        assert_equal(loss.value_and_grad(instances, has_aux=True), expected)


def run_stage_by_stage(derivative: Derivative, drawn: Any) -> Results:
    """Run a derivative, checking that its stages read only saved values, the inputs' columns and leaves."""
    leaves = {index for index, var in enumerate(derivative.vars) if not isinstance(var.source, Instruction)}
    known = leaves | {*derivative.saved, *derivative.kept, *derivative.incoming}
    for stage in (derivative.backward, derivative.weights):
        made: set[int] = set()
        for index in stage:
            source = derivative.vars[index].source
            assert isinstance(source, Instruction)
            assert set(source.args) <= known | made
            made.add(index)
        known -= {*derivative.incoming} - leaves - {*derivative.saved}
    return run_derivative(derivative, drawn)


@pytest.mark.slow
def test_random_cells_keep_their_bits_and_know_their_operands() -> None:
    """The same op runs on the same operands, so gradients are bit-identical for cells of all kinds."""
    n_again = n_saved = n_left = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        for derivative in derivatives(seed, smooth=seed % 2 == 0):
            again = rematerialise(derivative, PRICES["all"])
            check_derivative(again)
            draw_parameters(derivative.program, rng)
            drawn = draw_rows(derivative.program, rng)
            with np.errstate(all="ignore"):
                found, expected = run_stage_by_stage(again, drawn), run_derivative(derivative, drawn)
            np.testing.assert_equal(found._asdict(), expected._asdict())
            n_again += len(again.again)
            n_saved, n_left = n_saved + columns(derivative), n_left + columns(again)
    assert n_again > 200
    assert n_left != n_saved


def columns(derivative: Derivative) -> int:
    """Count the saved columns."""
    return sum(derivative.vars[index].size for index in derivative.saved)


@pytest.mark.parametrize("backend", BACKENDS, ids=["reference", "cpu"])
def test_arithmetic_made_again_gives_the_same_bits(backend: Callable[[], Any]) -> None:
    rng = np.random.default_rng(0)
    matrix, scale = ab.Parameter(rng.standard_normal((5, 5))), ab.Parameter(rng.standard_normal(5))

    class Model(ab.Module):
        def __init__(self) -> None:
            self.matrix, self.scale = matrix, scale
            self.astype("float64")

        @ab.cell
        def turn(self, x: Any, y: Any) -> Any:
            z, kept = self.matrix @ x, self.scale * y
            return (1.0 - z) * kept + z * (x - kept), (1.0 - z) * x

        def loss(self, n: int) -> Any:
            x, y = np.linspace(-1.0, 1.0, 5), np.linspace(2.0, 1.0, 5)
            for _ in range(n):
                x, y = self.turn(x, y)
            return ab.sum(x * y)

    model, found = Model(), []
    for planner in (KEPT, MemoryPlanner(), MemoryPlanner(recomputes="all")):
        loss = ab.batched(model.loss, planner=planner, backend=backend())
        value, grads = loss.value_and_grad([1, 2, 3])
        cell = next(c for c in place_batch(model.loss, [1, 2, 3], planner=planner).used if c.type.name == "turn")
        assert cell.derivative is not None
        found.append((value.tobytes(), *(grads[name].tobytes() for name in ("matrix", "scale"))))
        assert bool(cell.derivative.again) == (planner is not KEPT)
    assert found[0] == found[1] == found[2]


# --- the choice ---


def cost(derivative: Derivative, again: Iterable[int], prices: Prices) -> float:
    """Return the cost of a choice: values written and read, additional inputs read, and arithmetic."""
    changed = compute_again(derivative, again)
    weights = set(read_by(changed, changed.weights)) | {
        root(changed.vars, i) for _, parts in changed.tables for scatter in parts for i in scatter
    }
    total, before = 0.0, set(read_by(derivative, derivative.backward))
    for index in changed.saved:
        if index < len(derivative.program.vars) and index not in weights:
            total += changed.vars[index].size * (prices.write + prices.read)
    made = set(changed.again)
    known = {
        arg for arg in read_by(changed, made) if arg not in made and arg not in before and not is_shared(changed, arg)
    }
    leaves = [a for a in known if a in weights or a in changed.kept or not has_op(changed, a)]
    total += sum(changed.vars[arg].size * prices.read for arg in leaves)
    for index in made:
        source = changed.vars[index].source
        assert isinstance(source, Instruction)
        total += changed.vars[index].size * prices.of(source.op)
    return total


def has_op(derivative: Derivative, index: int) -> bool:
    return isinstance(derivative.vars[index].source, Instruction)


def is_shared(derivative: Derivative, index: int) -> bool:
    return derivative.vars[index].domain == SHARED or isinstance(derivative.vars[index].source, Constant | Weight)


def read_by(derivative: Derivative, stage: Iterable[int]) -> Iterator[int]:
    for index in stage:
        source = derivative.vars[index].source
        if isinstance(source, Instruction) and not source.op.view:
            yield from (root(derivative.vars, arg) for arg in source.args)


def root(vars: tuple[Var, ...], index: int) -> int:
    source = vars[index].source
    return root(vars, source.args[0]) if isinstance(source, Instruction) and source.op.view else index


def candidates(derivative: Derivative) -> list[int]:
    """Return the values that a choice may recompute: those that lead to saved values and that no join reads."""
    joined = {
        root(derivative.vars, arg)
        for index in derivative.program.instructions
        for source in [derivative.vars[index].source]
        if isinstance(source, Instruction) and source.op.name in ("concat", "assemble")
        for arg in source.args
    }
    weights = {root(derivative.vars, i) for i in (*read_by(derivative, derivative.weights), *scattered(derivative))}
    seen: set[int] = set()
    stack = [i for i in derivative.saved if i < len(derivative.program.vars)]
    while stack:
        index = root(derivative.vars, stack.pop())
        refused = index in weights or index in joined or is_shared(derivative, index)
        if index not in seen and not refused and may_be_made_again(derivative.vars[index].source):
            seen.add(index)
            source = derivative.vars[index].source
            stack += source.args if isinstance(source, Instruction) else ()
    return sorted(seen)


def scattered(derivative: Derivative) -> Iterator[int]:
    return (i for _, parts in derivative.tables for scatter in parts for i in scatter)


@pytest.mark.cases(2)
@pytest.mark.parametrize("start", range(5))
def test_the_choice_is_the_cheapest_of_all(start: int) -> None:
    for seed in range(start, 10, 5):
        rng, n_chosen = np.random.default_rng(seed), 0
        for derivative in derivatives(seed):
            found = candidates(derivative)
            if not 0 < len(found) <= 9:
                continue
            for _ in range(3):
                prices = Prices(*(rng.integers(1, 9, 4) / 4).tolist())
                chosen = rematerialise(derivative, prices)
                sets = (again for n in range(len(found) + 1) for again in combinations(found, n))
                least = min(cost(derivative, again, prices) for again in sets)
                assert cost(derivative, chosen.again, prices) == pytest.approx(least)
                n_chosen += bool(chosen.again)
        assert n_chosen >= 1


# --- examples ---


def derive(body: Callable[..., Any], width: int = 4, n_ports: int = 2) -> Derivative:
    from autobatch.ir.arguments import Key
    from autobatch.trace.tracer import Tracer

    names = ["x", "y", "z"][:n_ports]
    program: CellProgram = Tracer("hand", {}).trace(
        lambda given: body(*(given[name] for name in names)), {name: Key("value", (width,)) for name in names}
    )[0]
    return differentiate(program)


def ops(derivative: Derivative, indices: Iterable[int]) -> list[str]:
    sources = [derivative.vars[index].source for index in sorted(indices)]
    return [source.op.name for source in sources if isinstance(source, Instruction)]


def test_what_is_cheap() -> None:
    for body, saved, again in [
        (lambda x, y: ab.exp(x * y), ["exp"], []),
        (lambda x, y: ab.exp((1.0 - x) * ab.tanh(y)), ["tanh", "exp"], ["sub"]),
        (lambda x, y: ab.tanh(x * y) * (x + y), ["tanh"], ["add"]),
        (lambda x, y: ab.sqrt(ab.sum(x * y)) * ab.sum(x), ["sum", "sqrt"], []),
        (lambda x, y: ab.where(x > y, x, y) * y, [], ["greater", "where"]),
    ]:
        chosen = rematerialise(derive(body), PRICES["cheap"])
        assert sorted(ops(chosen, chosen.saved)) == sorted(saved)
        assert ops(chosen, chosen.again) == again


def test_more_is_made_again_where_memory_is_slower() -> None:
    """A Tree-LSTM's tanh(c): six ops, one of them a function, on saved values and inputs."""
    derivative = derive(lambda x, y: ab.sigmoid(x) * ab.tanh(ab.sigmoid(x) * y))
    cheap, more = (rematerialise(derivative, PRICES[word]) for word in ("cheap", "more"))
    assert "tanh" in ops(cheap, cheap.saved)
    assert "tanh" in ops(more, more.again)
    assert "computed again" in str(more)
    assert columns(more) < columns(cheap)


def test_draws_products_and_what_the_weights_read_are_kept() -> None:
    matrix = ab.Parameter(np.ones((4, 4)))
    derivative = derive(lambda x, y: (matrix @ (x * y)) * ab.tanh(matrix @ x) * ab.max(y))
    everything = rematerialise(derivative, PRICES["all"])
    assert {"matmul", "mul"} <= set(ops(everything, everything.saved))
    assert not {"matmul", "max"} & set(ops(everything, everything.again))
    for index in everything.again:
        assert may_be_made_again(derivative.vars[index].source)


@pytest.mark.parametrize("op", ["matmul", "tanh"])
def test_the_checker_refuses_operands_that_are_gone(op: str) -> None:
    matrix = ab.Parameter(np.ones((4, 4)))
    derivative = rematerialise(derive(lambda x, y: ab.tanh(matrix @ x) * ab.exp(matrix @ y)), PRICES["all"])
    check_derivative(derivative)
    if op == "matmul":
        product = next(i for i in derivative.saved if "matmul" in ops(derivative, [i]) and i < 9)
        broken = replace(derivative, saved=tuple(i for i in derivative.saved if i != product))
        with pytest.raises(GraphError, match=f"it reads %{product}, which is neither saved nor made before"):
            check_derivative(broken)
    else:
        product = next(i for i in derivative.program.instructions if "matmul" in ops(derivative, [i]))
        with pytest.raises(GraphError, match="must not be computed again"):
            check_derivative(replace(derivative, again=derivative.again | {product}))


def test_words_that_a_planner_does_not_know_are_refused() -> None:
    with pytest.raises(PlanError, match=r"recomputes .* must be one of 'nothing', 'cheap', 'more', 'all', got True"):
        MemoryPlanner(recomputes=True)  # type: ignore[arg-type]
