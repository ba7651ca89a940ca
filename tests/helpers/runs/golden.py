"""Golden digests of graphs of every model and of random programs at each stage, and of their schedules.

`tests/graph/golden.json` holds a few digits for each stage, which depend neither on the machine nor on the version of
Python. After intended changes of graphs, write the file again:

    PYTHONPATH=tests:tools:experiments python -m helpers.runs.golden
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import autobatch as ab
from autobatch._native import Simulation, data_starts, find_depths
from autobatch.arrays import IntArray
from autobatch.backends.reference import Reference
from autobatch.engine.kept_values import KeptValues
from autobatch.errors import AutobatchError
from autobatch.graph.build import find_out_of_range, merge_graphs, split_graph
from autobatch.graph.dag import Dag, chains_ahead, reverse, to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.growing import GrowingGraph, Moved
from autobatch.graph.marks import Marks
from autobatch.graph.rewrite import DEFAULT, PASSES, rewrite
from autobatch.ir.flows import FlowArrays, join_flows, make_flows
from autobatch.memplan.planner import MemoryPlanner
from autobatch.models.registry import find_model
from autobatch.plan.plan import PlannedTypes
from autobatch.policies import get
from autobatch.policies.fsm.machine import Machine, TypeNames
from autobatch.policies.fsm.practice import REWARDS
from autobatch.policies.fsm.qlearning import QLearning, learn_fsm
from autobatch.policies.fsm.table import ENCODINGS
from autobatch.schedule.make import make_schedule
from autobatch.trace.record import Recorder
from fuzzing.cells import draw_program
from helpers.models.every_model import MODELS
from helpers.programs.graphs import TOYS, ToyTypes, random_batch, random_dag, random_toys
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.twins.cases import AWAITING

FILE = Path(__file__).parents[2] / "graph" / "golden.json"
N_PROGRAMS, N_DRAWN, N_TOYS, N_DAGS = 2000, 60, 300, 100
DIGITS = 4  # per stage
DECIMALS = 4  # of float attributes
STAGES = (
    "recorded", "merged", "split", *PASSES, "default", "all", "digest", "starts", "ranges", "reverse", "readers",
    "depths", "chains", "marks", "schedules", "learned", "training", "inference",
)  # fmt: skip
POLICIES = (
    "depth", "depth+backward", "agenda+both", "sufficient+backward+compact", "critical+both+compact", "score",
    "score+both+compact", "network+both", "search+10",
)  # fmt: skip
PLACES = (
    "row", "type_ptr", "node_at", "block_rows", "base_ptr", "base", "saved_base", "segments", "segment_base",
    "dest_base", "dest_ptr", "dest", "adds", "slot_base", "slot_rows", "gradient_offset", "size", "ints", "floats",
)  # fmt: skip
ROUNDS = ("append", "chosen", "emitted", "moved")


class Drawn(NamedTuple):
    """A mini-batch, the paths of gradients through its types, and its recorder, if any."""

    graphs: list[Graph]
    flows: FlowArrays
    recorder: Recorder | None = None


def digest(*parts: Any) -> str:
    """Hash arrays, numbers and texts to `DIGITS` digits."""
    found = sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype.kind}{part.shape}".encode())
            found.update(part.astype(part.dtype.newbyteorder("<")).tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:DIGITS]


def digests_of(drawn: Drawn) -> dict[str, str]:
    """Return the digests of all stages of a mini-batch of graphs."""
    graphs, flows, _ = drawn
    merged = merge_graphs(graphs)
    dag, arrays = to_dag(merged), merged.types.arrays()
    contents = [part for graph in graphs for part in (graph.words, graph.floats, graph.keys)]
    split = split_graph(merged)
    found = {
        "recorded": digest(*contents),
        "merged": digest(merged.words, merged.floats, merged.keys),
        "split": digest(*[part for graph in split for part in (graph.words, graph.floats, graph.keys)]),
    }
    for name, passes in {**{name: (name,) for name in PASSES}, "default": DEFAULT, "all": PASSES}.items():
        changed, done = rewrite(merged, passes)
        found[name] = digest(changed.words, changed.floats, *astuple(done))
    return found | {
        "digest": digest(merged.digest, *[graph.digest for graph in graphs]),
        "starts": digest(*data_starts(merged.type_id, merged.attr, arrays)),
        "ranges": digest(*[f"{i}: {error}" for i, error in find_out_of_range(_spoilt(merged)).items()]),
        "reverse": digest(*reverse(dag)[:4]),
        "readers": digest(*Simulation(dag).tables()[:2]),
        "depths": digest(find_depths(dag.edge_ptr, dag.edge_src)),
        "chains": digest(chains_ahead(dag)),
        "marks": digest(*_marks_of(merged, flows)),
        "schedules": digest(*[part for policy in POLICIES for part in _scheduled(merged, policy)]),
        "learned": digest(*_learned(dag)),
        "training": digest(*_placed(drawn, merged, training=True)),
        "inference": digest(*_placed(drawn, merged, training=False)),
    }


def _scheduled(graph: Graph, policy: str) -> tuple[Any, ...]:
    schedule = get(policy).schedule(graph)
    return schedule.batch_type, schedule.batch_ptr, schedule.order


def _learned(dag: Dag) -> Iterator[Any]:
    """Yield the tables of machines that learn for a few episodes, and their schedules."""
    names = tuple(f"type {number}" for number in range(dag.n_types))
    for number, encoding in enumerate(ENCODINGS):
        machine = Machine(encoding, critical=number > 0, mask=number > 1)
        settings = QLearning(episodes=6, evaluate_every=3, n_steps=2, reward=REWARDS[number % 2], optimism=number == 0)
        fsm = learn_fsm([dag], TypeNames(names, names), machine, settings, direction="both", seed=number)
        for table in fsm.tables.values():
            yield from (part[: table.n_states[0]] for part in table[:3])
        yield from fsm.plan(dag)


def _placed(drawn: Drawn, merged: Graph, training: bool) -> Iterator[Any]:
    """Yield the plan of a recorded mini-batch, scheduled by the rule `score`."""
    if drawn.recorder is None:
        return
    graph, _ = rewrite(merged, DEFAULT)
    planner = MemoryPlanner()
    cells = [planner.plan_cell(node_type, training) for node_type in drawn.recorder.types.types]
    types = PlannedTypes(cells, list(drawn.recorder.slots.shapes), training)
    plan = vars(planner.place(graph, make_schedule(graph, get("score")), types))
    yield from (plan[name] for name in PLACES)


def _spoilt(graph: Graph) -> Graph:
    """Return the graph with every seventh int attribute of nodes out of range."""
    arrays = graph.types.arrays()
    starts, _ = data_starts(graph.type_id, graph.attr, arrays)
    widths = arrays.int_width[graph.type_id]
    spoilt = Graph(graph.words.copy(), graph.floats, graph.types, graph.structures, graph.keys)
    own = np.repeat(starts[:-1], widths) + _places(widths)
    spoilt.attr[own[::7]] = 2**31 - 1
    return spoilt


def _places(widths: Any) -> Any:
    return np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)


def _marks_of(graph: Graph, flows: FlowArrays) -> Iterator[Any]:
    marks, slots = Marks(), sorted({*graph.out_slot.tolist()})
    for chosen in ([], slots[:1], slots):
        marks.mark(graph, flows, max(slots, default=0) + 1, chosen)
        in_types = np.arange(marks.outputs.shape[1]) < flows.n_outputs[graph.type_id][:, None]
        yield from (marks.nodes.copy(), marks.outputs & in_types, marks.is_whole)


def rounds_of(function: Any, instances: list[Any]) -> dict[str, str]:
    """Return the digests of the changes that the rounds of an async function make to its graph."""
    noted: dict[str, list[Any]] = {name: [] for name in ROUNDS}
    with _noting(noted):
        ab.batched(function, backend=Reference(), policy="agenda")(instances)
    return {name: digest(*parts) for name, parts in noted.items()}


@contextmanager
def _noting(noted: dict[str, list[Any]]) -> Iterator[None]:
    """Record the arguments and results of growing graphs and kept rows."""

    def note(stage: str, before: Callable[..., Any], of: Callable[..., Sequence[Any]], *args: Any) -> Any:
        result = before(*args)
        noted[stage] += [np.array(part) if isinstance(part, np.ndarray) else part for part in of(result, *args)]
        return result

    def noting(owner: type, name: str, stage: str, of: Callable[..., Sequence[Any]]) -> Any:
        before = getattr(owner, name)
        return patch.object(owner, name, lambda *args: note(stage, before, of, *args))

    with (
        noting(GrowingGraph, "append", "append", lambda _, growing, phase, rows: (phase.words, phase.floats, rows)),
        noting(GrowingGraph, "note", "chosen", lambda chosen, *_: (chosen.nodes, chosen.sources, *chosen.kept)),
        noting(GrowingGraph, "emitted", "emitted", lambda graph, *_: (graph.words, graph.floats, graph.keys)),
        noting(KeptValues, "copy", "moved", lambda _, kept, moved: _moved(moved, kept.rows.size)),
    ):
        yield


def _moved(moved: Moved, size: IntArray) -> tuple[Any, ...]:
    """Return the rows that values move between, and the rows of each table; slots without rows do not count."""
    n = int(np.max(np.flatnonzero(size), initial=-1)) + 1
    return (moved.found, moved.rows, moved.ptr[: n + 1], size[:n]) if n else ()


def _rounded(graph: Graph) -> Graph:
    """Round the graph's floats, whose last bits depend on the machine where NumPy computed them."""
    return Graph(graph.words, np.round(graph.floats, DECIMALS), graph.types, graph.structures, graph.keys)


def _recorded(function: Any, instances: list[Any]) -> Drawn:
    loss = ab.batched(function)
    graphs = [_rounded(graph) for graph in loss.record_all(instances)]
    flows = make_flows([node_type.program for node_type in loss.recorder.types.types])
    return Drawn(graphs, flows, loss.recorder)


def _model(name: str) -> Drawn:
    model, instances = MODELS[name]()
    return _recorded(model.loss, instances)


def _program(seed: int) -> Drawn:
    program = draw_program(seed, derivatives=seed % 4 == 3)
    return _recorded(program.build().everything, program.items)  # type: ignore[attr-defined]


def _drawn(seed: int) -> Drawn:
    """Draw a program whose instances call cells over random DAGs."""
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    return _recorded(model.everything, draw_instances(rng, model, 5))


def _abstract(graphs: Sequence[Graph], seed: int) -> Drawn:
    """Return graphs of abstract types, with random flows."""
    rng, arrays = np.random.default_rng(seed), graphs[0].types.arrays()
    n_ports = np.diff(arrays.port_ptr) if arrays.port_plain.size else np.full(arrays.sum_type.size, 4)
    shapes = zip(np.diff(arrays.out_ptr).tolist(), n_ports.tolist(), strict=True)
    return Drawn(list(graphs), join_flows([rng.random(shape) < 0.6 for shape in shapes]))


def _toys(seed: int) -> Drawn:
    """Draw toy instances, some of them equal; for odd seeds, cells and sums multiply matrices."""
    graphs = [random_toys(7 * seed + k % 5) for k in range(1 + seed % 8)]
    if seed % 2:
        types = ToyTypes(tuple(replace(kind, work=10_000_000 * len(kind.name)) for kind in TOYS.types))
        graphs = [Graph(graph.words, graph.floats, types, graph.structures) for graph in graphs]
    return _abstract(graphs, seed)


def _dags(seed: int) -> Drawn:
    return _abstract([random_batch(seed), random_dag(seed, 100)], seed)


def _rounds(number: int) -> dict[str, str]:
    case = AWAITING[number]
    model, instances = case.draw(seed=3, n_instances=6, dim=5)
    spec = find_model(case.model)
    return rounds_of(getattr(model, spec.predictor), [spec.given(instance) for instance in instances])


def _numbered(name: str, n: int, draw: Callable[[int], Drawn]) -> dict[str, Callable[[], dict[str, str]]]:
    def digests(seed: int) -> dict[str, str]:
        try:
            drawn = draw(seed)
        except AutobatchError as error:  # for example, gradients of ragged rows are refused
            return dict.fromkeys(STAGES, digest(type(error).__name__))
        return digests_of(drawn)

    return {f"{name} {seed}": partial(digests, seed) for seed in range(n)}


GOLDEN: dict[str, Callable[[], dict[str, str]]] = {
    **{name: partial(lambda name: digests_of(_model(name)), name) for name in MODELS},
    **{f"rounds of {case.name}": partial(_rounds, number) for number, case in enumerate(AWAITING)},
    **_numbered("toys", N_TOYS, _toys),
    **_numbered("dags", N_DAGS, _dags),
    **_numbered("drawn", N_DRAWN, _drawn),
    **_numbered("program", N_PROGRAMS, _program),
}
"""Functions that return the digests of a mini-batch, by name."""


def read() -> dict[str, dict[str, str]]:
    """Return the digests in the file by name and stage."""
    held: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: dict(zip(ROUNDS if name.startswith("rounds of ") else STAGES, digits.split(), strict=True))
        for name, digits in held.items()
    }


def differences(names: Collection[str]) -> dict[str, list[str]]:
    """Return the stages that differ from the file, by name."""
    expected, found = read(), {name: GOLDEN[name]() for name in names}
    return {
        name: wrong
        for name, stages in found.items()
        if (wrong := [stage for stage, digits in stages.items() if expected[name][stage] != digits])
    }


def write() -> None:
    lines = [f'"{name}": "{" ".join(make().values())}"' for name, make in GOLDEN.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
