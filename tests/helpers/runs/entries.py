"""Call the native core's functions with wrong arguments; the calls may return or raise, but must never crash.

`examples` runs a small workload and records the arguments of each function. `call_wrongly` copies such arguments,
corrupts some of them and makes the call; everything random follows from a seed. A separate process runs a range of
seeds and prints each one before its call, so that after a crash the last one is the seed to run again:

    PYTHONPATH=tests:tools:experiments python -m helpers.runs.entries 4711:4712
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import autobatch
from autobatch import _native
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cpu.step import BOUND_STEP
from autobatch.backends.cuda.binding import STEP
from autobatch.backends.options import Options
from autobatch.backends.tables import CallList, arrays_of
from autobatch.blas.packed import panel_words
from autobatch.blas.provider import describe_product
from autobatch.graph import build, dag
from autobatch.graph.build import merge_graphs, split_graph
from autobatch.graph.dag import stack
from autobatch.graph.graph import Graph
from autobatch.graph.growing import NONE, NOWHERE, OUTPUT_PTR, GrowingGraph, KeptRows, OutputSlots, Request, Results
from autobatch.graph.marks import Marks
from autobatch.graph.rewrite import PASSES, explain_sharing, rewrite
from autobatch.ir.flows import join_flows
from autobatch.memplan.placement import CoreOptions, plan_graphs
from autobatch.policies import get
from autobatch.policies.fsm.machine import Machine
from autobatch.policies.fsm.practice import run_episode
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.fsm.table import make_table, with_room
from autobatch.policies.rules.network import OVERALL_FEATURES, TYPE_FEATURES, learned_network
from autobatch.policies.rules.rules import LEARNED
from autobatch.policies.search import reduction
from autobatch.policies.search.exact import search_layers
from autobatch.policies.search.search import local_search
from autobatch.policies.sequences import embed_early, embed_late, to_schedule_at
from autobatch.schedule.schedule import CoreRule
from helpers.programs.graphs import CELL, random_dag, random_toys
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.programs.random_types import draw_instance, draw_kinds
from helpers.programs.waiting_programs import Model, items
from helpers.runs.planned import place_batch

Rng = np.random.Generator
TYPES = Path(autobatch.__file__).parent / "_native.pyi"
REFUSALS = (TypeError, ValueError, OverflowError, MemoryError, autobatch.DataError)
N_EXAMPLES = 6  # number of workloads
IS_SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
MEMORY = 4 << 30  # of a process; larger requests fail
LONG = ("local_search", "search_layers", "multiply_packed", "add_outer_bf16")  # may run for years
SECONDS = 0.3  # time limit of these


def functions() -> dict[str, Callable[..., Any]]:
    """Return the public functions of the core by name."""
    found = {name: value for name, value in vars(_native).items() if callable(value) and not name.startswith("_")}
    return {name: value for name, value in found.items() if not isinstance(value, type)}


def aliases() -> dict[str, str]:
    """Return the definition of each alias in `_native.pyi`."""
    body = ast.parse(TYPES.read_text(encoding="utf-8")).body
    return {ast.unparse(x.target): ast.unparse(x.value) for x in body if isinstance(x, ast.AnnAssign) and x.value}


def play(of_dag: Any, *args: Any) -> None:
    """Play an episode on a course."""
    course = _native.Course(of_dag)
    course.run(*args)
    course.episode()


def simulate(of_dag: Any, node_ptr: Any, kind: Any, types: Any) -> None:
    simulation = _native.Simulation(of_dag, node_ptr)
    for type_id in types:
        simulation.reward(kind, type_id)
        simulation.step(type_id)
        simulation.bound()
        simulation.features()
    simulation.ready(), simulation.unrun(), simulation.batches(), simulation.tables()


def sweep(first: Any, last: Any, addresses: Any, calls: Any) -> None:
    """Open a sweep, make its calls, and close it."""
    found = _native.Sweep()
    number = found.open(first, last)
    found.lead(addresses, calls)
    found.close()
    found.join(number, addresses, calls)


def fold(n: Any, edges: Any, names: Any, values: Any, parents: Any, columns: Any, required: Any, where: Any) -> None:
    """Read a forest and fold it."""
    forest = _native.Forest.from_arrays(n, edges, names, values)
    callee = (lambda *states, **fields: states, columns, required)
    forest.fold(callee, callee, callee, where, False)
    forest.fold(callee, None, True, where, True)
    _native.Forest.from_sequence(n, where, names, values).scan(callee, True, where, n)
    for node in forest.roots[:1]:
        with suppress(KeyError):
            forest.value(node, where)
    _native.Forest.edges_of(parents)
    _native.Forest.count_nodes(edges)
    _native.Forest.from_nested({"children": values}, names, names)
    _native.Forest.from_nested({"children": values}, "children", names)


def plan_ahead(*args: Any) -> None:
    """Plan a mini-batch by a job, and read its result."""
    job = _native.PlanJob(*args)
    job.run()
    job.result()


METHODS: dict[str, Callable[..., Any]] = {
    "Course": play, "Forest": fold, "PlanJob": plan_ahead, "Simulation": simulate, "Sweep": sweep
}  # fmt: skip
"""Functions that use each class of the core."""
GRAPH_PARTS = ("words", "floats", "types", "structures", "keys", "in_range")
"""The parts of a graph that the core reads."""
NEEDS = {"pack": 0, "multiply_packed": 0, "add_outer_bf16": 1}
"""Functions that need special instructions: the position of these in `find_features`."""
UNCHECKED = {"repeat_product"}
"""Functions that call any address that they are given."""


def parameters() -> dict[str, dict[str, str]]:
    """Return the annotated parameters of each function in `_native.pyi`."""
    found = dict[str, dict[str, str]]()
    for node in ast.parse(TYPES.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = {a.arg: ast.unparse(a.annotation) for a in node.args.args if a.annotation is not None}
    return found


@cache
def examples(seed: int) -> dict[str, list[tuple[Any, ...]]]:
    """Collect copies of the arguments that a workload passes to each function, made before the calls."""
    noted = defaultdict[str, list[tuple[Any, ...]]](list)

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            noted[name].append(copied(args))
            return function(*args)

        return note

    with ExitStack() as stack:
        for name, function in functions().items():
            for module in [module for key, module in sys.modules.items() if key.startswith("autobatch")]:
                for alias in [alias for alias, value in vars(module).items() if value is function]:
                    stack.enter_context(patch.object(module, alias, noting(name, function)))
        noted |= work(np.random.default_rng(seed))
    return {**noted, "PlanJob": noted["plan_graphs"]}


def work(rng: Rng) -> dict[str, list[tuple[Any, ...]]]:
    """Call all functions of the core; return arguments for `METHODS`."""
    kinds = draw_kinds(rng)
    toys = [random_toys(int(rng.integers(1000)), int(rng.integers(2, 20))) for _ in range(3)]
    for graphs in (toys, [draw_instance(rng, kinds, wrong=0.0) for _ in range(3)]):
        joined, floats, structures, keys, _, _ = _native.merge_graphs(graphs)
        _native.join_instances(graphs)
        merged = Graph(joined, floats, graphs[0].types, structures, keys)
        build.find_out_of_range(merged)
        str(merged)
        split_graph(merged)
        for passes in (PASSES, PASSES[:4], ("share",)):
            rewrite(merged, passes)
        explain_sharing(merged, "all")
        arrays = merged.types.arrays()
        shapes = zip(np.diff(arrays.out_ptr).tolist(), np.diff(arrays.port_ptr).tolist(), strict=True)
        flows = join_flows([rng.random(shape) < 0.7 for shape in shapes])
        Marks().mark(merged, flows, int(merged.out_slot.max(initial=0)) + 1, [0])
    of_dag = dag.to_dag(random_dag(int(rng.integers(1000)), 20))
    dag.reverse(of_dag)
    dag.chains_ahead(of_dag)
    _native.find_depths(of_dag.edge_ptr, of_dag.edge_src)
    grow(rng, merge_graphs(toys))
    _native.is_set("AUTOBATCH_CHECK")
    _native.pause_collection()
    _native.resume_collection()
    _native.array_key(rng.random(int(rng.integers(4))))
    _native.seal(type("Sealed", (_native.Handle,), {"__slots__": ()}))
    _native.seal_cells(type("Cells", (_native.Cell,), {}))
    place(rng)
    multiply(rng)
    update(rng)
    return schedule(rng, of_dag) | {"Forest": forests(rng), "Sweep": call_nothing(rng)}


def forests(rng: Rng) -> list[tuple[Any, ...]]:
    """Draw a DAG as arrays, with two columns; return arguments for `METHODS`."""
    n = int(rng.integers(1, 9))
    parents = np.array([int(rng.integers(i + 1, n)) if i < n - 1 else -1 for i in range(n)])
    edges = np.array([(i, parents[i]) for i in range(n - 1)] + [(0, n - 1)] * (n > 1), np.int64).reshape(-1, 2)
    values = rng.integers(0, 9, n), rng.random(n)
    return [(n, edges, ("x", "y"), values, parents, (0, 1), (True, False), int(rng.integers(-1, 2)))]


def schedule(rng: Rng, of_dag: dag.Dag) -> dict[str, list[tuple[Any, ...]]]:
    """Schedule a DAG in all ways and search for cheaper schedules; return arguments for `METHODS`."""
    of_dag = of_dag._replace(costs=1 + rng.random(of_dag.n_types) if rng.random() < 0.5 else None)
    for rule in range(5):
        directions, compacts = int(rng.integers(1, 4)), bool(rng.random() < 0.5)
        order = _native.plan_by_rule(of_dag, (rule, directions, compacts, LEARNED))[0]
    longer = np.concatenate([order, order])
    embed_late(of_dag, longer)
    to_schedule_at(of_dag, longer, embed_early(of_dag, longer))
    local_search(of_dag, longer, rng, max_steps=20)
    suffixes = reduction.find_suffixes(reduction.reduce_graph(of_dag).dag)
    search_layers(suffixes, 1 + rng.random(of_dag.n_types), np.inf, 20, 1000)
    _native.longest_chains(of_dag)
    machine = Machine("sort", critical=True, mask=True)
    width, n_batches, rules = machine.width(of_dag.n_types), len(order), QLearning().rules()
    table = with_room(make_table(of_dag.n_types, width), of_dag.type_id.size)
    run_episode(_native.Course(of_dag), table, machine.rules(), rules, 0.5, rng)
    stacked, node_ptr = stack([of_dag, of_dag])
    second = tuple((order + of_dag.n_types).tolist())
    _native.plan_by_machine(of_dag, table, machine.rules(), LEARNED)
    states = _native.visit_states(of_dag, order, of_dag.n_types, machine.rules(), width)
    _native.add_states(with_room(table, n_batches), states)
    network, rows = learned_network(), rng.random((3, len(TYPE_FEATURES)))
    _native.plan_by_network(of_dag, network)
    _native.score_types(network, rows.astype(np.float32), rng.random(len(OVERALL_FEATURES)).astype(np.float32))
    played = of_dag, with_room(table, of_dag.type_id.size), machine.rules(), rules, 0.5, rng.bit_generator
    return {
        "Course": [(*played, np.zeros(0, np.int32)), (*played, order)],
        "Simulation": [(of_dag, None, 0, tuple(order.tolist())), (stacked, node_ptr, 1, second)],
    }


def place(rng: Rng) -> None:
    model = draw_model(rng, smooth=True)
    for is_training in (False, True):
        plan, types = place_batch(model.everything, draw_instances(rng, model, 2), is_training, rewrites=())
        backend, options, rule = Cpu(), Options(get("agenda"), threads=2), CoreRule(4, 3, True, LEARNED)
        backend.prepare(plan, types, options)
        sizes = backend.table_sizes(types, options)
        plan_graphs([plan.graph], plan.graph.types, CoreOptions(PASSES, rule, types))
        plan_graphs(split_graph(plan.graph), plan.graph.types, CoreOptions((), rule, types, *sizes), 0)
        widths = rng.integers(1, 9, plan.tables.out_block.size)
        _native.find_sums(arrays_of(plan), plan.dest.astype(np.int64), widths, plan.size)
    rules = np.array([(0, 1, 0, 32, 256, 1), (0, 0, -1, 0, 1, 1), (0, 0, -1, 32, 256, 1)])
    calls = np.array([(0, 0), (0, 1)]), np.arange(3), np.arange(3), np.zeros(0, bool)
    sum_ptr = np.array([0, int(rng.integers(3))])
    _native.list_device_steps(np.zeros(3, STEP), rules, calls, rng.integers(0, 99, 2), np.array([0, 2]), sum_ptr)
    autobatch.batched(Model().loop, backend="reference", policy="agenda")(items(1, 3))
    first = np.minimum(rng.integers(0, 9, 9), np.arange(9)).astype(np.int32)
    _native.give_out(first, rng.integers(0, 99, 9), 0)


def multiply(rng: Rng) -> None:
    """Multiply matrices with the core's own products, as far as the processor supports them."""
    m, n, inner = rng.integers(1, 99, 3).tolist()
    x, y = (rng.random(shape).astype(np.float32) for shape in ((m, inner), (inner, n)))
    out = np.zeros((m, n), np.float32)
    _native.transpose(x, np.zeros((inner, m), np.float32))
    _native.transpose(y.astype(np.float64), np.zeros((n, inner)))
    features = _native.find_features()
    for is_bf16 in (False, True)[: sum(features[:2])]:
        panels = np.empty(panel_words(inner, n, is_bf16), np.uint32)
        _native.pack(y, panels, is_bf16)
        _native.multiply_packed(x[None], panels, out, is_bf16, False, 2)
    if features[1]:
        _native.add_outer_bf16(np.ascontiguousarray(x.T), y, out, 1)
    _native.repeat_product(0, 4, _native.sgemm_address(), tuple(describe_product(x, y, out)), 0.0, (1, 0, 0))
    _native.step_addresses()


def update(rng: Rng) -> None:
    """Sum rows by their ids, and update parameters with gradients of all or some rows."""
    n_rows, width, n = rng.integers(1, 9, 3).tolist()
    dtype = (np.float32, np.float64)[int(rng.integers(2))]
    work, ids, more = np.zeros((4, n), np.int64), np.zeros(2 * n, np.int64), np.zeros(n, np.int64)
    work[0] = rng.integers(0, n_rows, n)
    values, sums = rng.random(n * width).astype(dtype), np.zeros((2, 2 * n * width), dtype)
    n_more = _native.sum_rows(n, work, values, 0, width, width, more, sums[1])
    work[0] = rng.integers(0, n_rows, n)
    n_ids = _native.sum_rows(n, work, values, 0, width, width, ids, sums[0])
    n_ids = _native.merge_rows(n_ids, ids, sums[0], n_more, more, sums[1], width)
    data, grad = rng.random((2, n_rows * width)).astype(dtype)
    first, second = (None if rng.random() < 0.3 else np.zeros_like(data) for _ in range(2))
    state = first, None if first is None else second
    constants = rng.random(9).astype(dtype)
    _native.changes_all(constants)
    _native.fingerprint(constants)
    _native.update_dense((n_rows, width, width), data, *state, grad, width, constants)
    touched, rows = np.zeros(n_rows, bool), (n_rows, width, width)
    _native.update_rows(rows, data, *state, ids[:n_ids], sums[0], touched, constants, bool(rng.random() < 0.5))


def call_nothing(rng: Rng) -> list[tuple[Any, ...]]:
    """Go through calls of steps that have no function; return arguments for a sweep."""
    sizes, lengths = rng.integers(0, 4, 5), rng.integers(1, 3, 20)
    addresses, calls = np.zeros(3, BOUND_STEP), np.zeros((int(lengths.sum()), 2), np.int64)
    calls[:, 0] = rng.integers(0, 3, len(calls))
    _native.call_steps(addresses, calls, 0, len(calls))
    listed = CallList(calls, np.cumsum([0, *lengths]), np.cumsum([0, *sizes]), rng.random(3) < 0.3)
    return [(0, sizes.size, addresses, listed), (1, 3, addresses, listed)]


def grow(rng: Rng, phase: Graph) -> None:
    """Grow a graph by the same phase repeatedly; half of the edges start at nodes of the first phase."""
    grown, arrays = GrowingGraph(phase.n_instances), phase.types.arrays()
    n_slots = 2
    slot = rng.integers(0, n_slots, arrays.out_ptr[-1]).astype(np.int32)
    slots = OutputSlots(slot, np.full(slot.size, NOWHERE, np.int32), np.zeros(n_slots, np.int32))
    kept, last = KeptRows(grown), np.zeros(0, np.int32)
    ragged = slots.rows.copy()
    ragged[arrays.out_ptr[CELL] + 1] = 0
    _native.count_values(phase.words, arrays, ragged)
    for run in range(3):
        words, first = phase.words.copy(), grown.n_nodes
        if run:
            edges = Graph(words, phase.floats, phase.types, phase.structures)
            before = rng.random(phase.n_edges) < 0.5
            edges.edge_src[before] -= first
        grown.append(Graph(words, phase.floats, phase.types, phase.structures), slots.rows)
        nodes = rng.integers(first, grown.n_nodes, 4).astype(np.int32)
        grown.use(nodes, nodes[:1])
        outputs = grown.nodes.table[OUTPUT_PTR, nodes]
        values = grown.nodes.first_value[outputs]
        grown.hold(values[:1], 1)
        if run % 2:
            grown.pick(grown.sketch(values, phase.types)[0])
        grown.work_by_instance(nodes, phase.types)
        grown.pending_work(phase.types)
        request = Request(NONE if run % 2 else values, slots, run)
        chosen = grown.choose(request, phase.types)
        kept.move(last)
        grown.emit(chosen, request, phase.types)
        last = chosen.kept.values
        _native.find_kept(grown.values, last, run)
        grown.hold(values[:1], -1)
    grown.drop([1])
    results = Results(last[:1], slots.slot[:1].copy(), np.array([0, *[1] * phase.n_instances], np.int32))
    grown.emit_whole(last[:1], slots, results, phase.types, ())


def copied(x: Any) -> Any:
    """Copy arguments deeply, arrays included."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if isinstance(x, tuple):
        parts = [copied(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if isinstance(x, list):
        return [copied(part) for part in x]
    if isinstance(x, Graph):
        found = Graph.__new__(Graph)
        for name in GRAPH_PARTS:
            if hasattr(x, name):
                setattr(found, name, copied(getattr(x, name)))
        return found
    return x


def text_of(x: Any) -> str:
    """Write arguments as text, including graphs that lack parts and so cannot print themselves."""
    if isinstance(x, tuple | list):
        return f"[{', '.join(map(text_of, x))}]"
    if isinstance(x, Graph):
        return f"Graph({', '.join(f'{name}={getattr(x, name, None)!r}' for name in GRAPH_PARTS)})"
    return repr(x)


class Peculiar:
    """An object whose conversions fail."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    @property
    def capsule(self) -> Any:
        raise RuntimeError("no index")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


OBJECTS: tuple[Any, ...] = (
    Peculiar(), None, True, 0, -1, 2**31, 2**63, -(2**70), 1.5, "text", b"bytes", [], [1, 2], (), (1,), {}, object(),
    int, np.int32(3), np.float64(2), np.zeros(0), np.zeros((), np.int32), np.zeros(3, object), np.zeros(3, "S4"),
    range(3), memoryview(b"x"),
)  # fmt: skip
INTS = (
    -(2**63),
    -(2**31) - 1,
    -(2**31),
    -1000,
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    63,
    255,
    256,
    1000,
    2**31 - 1,
    2**31,
    2**63,
    2**70,
)
DTYPES = ("int8", "int16", "int32", "int64", "uint32", "float32", "float64", "bool", ">i4", "object")


def spoilt(rng: Rng, x: Any) -> Any:
    """Replace an argument, mostly by something of its kind."""
    if rng.random() < 0.06:
        return OBJECTS[int(rng.integers(len(OBJECTS)))]
    if isinstance(x, np.ndarray) and x.dtype.kind in "biuf":
        return WAYS[int(rng.integers(len(WAYS)))](rng, x)
    if isinstance(x, Graph):
        found, part = copied(x), GRAPH_PARTS[int(rng.integers(len(GRAPH_PARTS)))]
        if hasattr(found, part):
            setattr(found, part, spoilt(rng, getattr(found, part)))
        if rng.random() < 0.1 and hasattr(found, part):
            delattr(found, part)
        return found
    if isinstance(x, list) and x:
        parts = list(x)
        for k in rng.integers(len(parts), size=int(rng.integers(1, 3))):
            parts[k] = spoilt(rng, parts[k])
        return parts
    if isinstance(x, tuple):
        parts = list(x)
        if rng.random() < 0.1 or not parts:
            return [tuple(parts[1:]), (*parts, 0), parts, tuple(parts[::-1])][int(rng.integers(4))]
        for k in rng.integers(len(parts), size=int(rng.choice([1, 1, 2]))):
            parts[k] = spoilt(rng, parts[k])
        return tuple(parts)
    return INTS[int(rng.integers(len(INTS)))]


def _flipped(rng: Rng, x: Any) -> Any:
    bits = x.copy()
    if bits.size:
        of = bits.reshape(-1).view(np.uint8)
        of[rng.integers(of.size)] ^= np.uint8(1 << rng.integers(8))
    return bits


def _moved(rng: Rng, x: Any) -> Any:
    """Change some numbers slightly, or to numbers from other places or extreme ones."""
    moved = x.copy()
    if moved.size and moved.dtype.kind in "iu":
        flat = moved.reshape(-1)
        for place in rng.integers(flat.size, size=int(rng.integers(1, 4))):
            near = int(flat[rng.integers(flat.size)]) + int(rng.integers(-1, 2))
            limits = np.iinfo(flat.dtype)
            given = near if rng.random() < 0.6 else INTS[int(rng.integers(len(INTS)))]
            flat[place] = min(max(given, int(limits.min)), int(limits.max))
    return moved


def _cast(rng: Rng, x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return x.astype(DTYPES[int(rng.integers(len(DTYPES)))])


def _unaligned(rng: Rng, x: Any) -> Any:
    return np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape) if x.size else x


def _read_only(rng: Rng, x: Any) -> Any:
    found = x.copy()
    found.flags.writeable = False
    return found


WAYS: tuple[Callable[[Rng, Any], Any], ...] = (
    _flipped, _flipped, _moved, _moved, _moved, _unaligned, _read_only,
    lambda rng, x: x[: rng.integers(len(x) + 1)] if x.ndim else x,
    lambda rng, x: x[rng.integers(len(x) + 1) :] if x.ndim else x,
    lambda rng, x: np.concatenate((x, x[: rng.integers(len(x) + 1)])) if x.ndim else x,
    lambda rng, x: x[::2] if x.ndim else x,
    lambda rng, x: x[..., ::-1] if x.ndim else x,
    lambda rng, x: np.asfortranarray(x.reshape(2, -1)) if x.size % 2 == 0 else x[None],
    lambda rng, x: x.reshape(-1),
    lambda rng, x: x[None],
    lambda rng, x: x[..., : rng.integers(x.shape[-1] + 1)] if x.ndim else x,
    lambda rng, x: np.zeros_like(x),
    lambda rng, x: x[:0] if x.ndim else x,
    lambda rng, x: np.zeros((x.shape[0] if x.ndim else 0, 0), x.dtype),
    lambda rng, x: x.tolist(),
    lambda rng, x: x.view(type("Kind", (np.ndarray,), {})),
    _cast,
)  # fmt: skip


def shared(rng: Rng, args: list[Any]) -> None:
    """Replace one array by the memory of another one of its type, so that one is written while the other is read."""
    places = [(args, k) for k, x in enumerate(args) if isinstance(x, np.ndarray)]
    for k, x in enumerate(args):
        if isinstance(x, tuple):
            args[k] = parts = list(x)
            places += [(parts, j) for j, part in enumerate(x) if isinstance(part, np.ndarray)]
    if len(places) > 1:
        (a, i), (b, j) = (places[int(k)] for k in rng.choice(len(places), 2, replace=False))
        one, other = a[i], b[j]
        if one.size >= other.size and one.dtype == other.dtype:
            b[j] = one.reshape(-1)[: other.size].reshape(other.shape)
    args[:] = [tuple(x) if isinstance(x, list) else x for x in args]


def draw_call(seed: int) -> tuple[str, tuple[Any, ...]]:
    """Draw a function and wrong arguments."""
    rng = np.random.default_rng(seed)
    known = examples(int(rng.integers(N_EXAMPLES)))
    names = sorted(known.keys() - UNCHECKED)
    name = names[int(rng.integers(len(names)))]
    args = list(copied(known[name][int(rng.integers(len(known[name])))]))
    if rng.random() < 0.02:
        args = args[:-1] if rng.random() < 0.5 else [*args, None]
    for k in rng.integers(len(args), size=int(rng.choice([0, 1, 1, 1, 2]))) if args else ():
        args[k] = spoilt(rng, args[k])
    if rng.random() < 0.1:
        shared(rng, args)
    return name, tuple(args)


def call_wrongly(seed: int) -> str:
    """Make the wrong call of a seed; return its outcome, which should be "done" or "refused"."""
    name, args = draw_call(seed)
    signal.setitimer(signal.ITIMER_REAL, SECONDS if name in LONG else 0)
    try:
        (functions() | METHODS)[name](*args)
    except (*REFUSALS, Stopped):
        return "refused"
    except RuntimeError as error:
        return "refused" if str(error) in ("no index", "no truth") else f"{name}: {error!r}"
    except BaseException as error:
        return f"{name}: {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "done"


class Stopped(BaseException):
    """Raised by a signal."""


def interrupt(*_: Any) -> None:
    """Interrupt a call that takes too long."""
    raise Stopped


def sizes() -> Iterator[int]:
    """Yield the memory of this process in bytes; always 0 under AddressSanitizer, which retains freed memory."""
    while True:
        yield 0 if IS_SANITIZED else int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(start: int, stop: int) -> None:
    """Make the wrong calls of these seeds; print each seed before its call, and then any wrong outcome."""
    if not IS_SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, interrupt)
    counts = defaultdict[str, int](int)
    for seed in range(start, stop):
        os.write(1, f"{seed}\n".encode())
        ended = call_wrongly(seed)
        counts[ended] += 1
        if ended not in ("done", "refused"):
            os.write(1, f"wrong {seed} {ended}\n".encode())
    os.write(1, f"counts {dict(counts)}\n".encode())


if __name__ == "__main__":
    main(*map(int, sys.argv[1].split(":")))
