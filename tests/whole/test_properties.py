"""Random programs give the same outputs and gradients batched in every way as one instance at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.backends.reference import Reference
from autobatch.graph.build import merge_graphs
from autobatch.graph.rewrite import DEFAULT, PASSES
from helpers.programs.random_programs import Instance, RandomModel, draw_instances, draw_model
from helpers.runs.recorded import types_of
from helpers.runs.ways import each

pytestmark = pytest.mark.usefixtures("_checked")
RELATIVE = 1e-10
N_SEEDS = 400
POLICIES = ("unbatched", "depth", "agenda")
WAYS = [
    *((policy, PASSES) for policy in POLICIES),
    *(("agenda", rewrites) for rewrites in ((), DEFAULT, *((name,) for name in PASSES))),
]


@dataclass
class Workload:
    """A random model, instances, and their results one at a time.

    Attributes:
        batched: `RandomModel.everything`, on a buffer full of NaN.
        weights: factors of the losses.
        eager: the result of `everything` for each instance.
        grads: of the weighted losses, with one batch per instance and node, without rewrites.
    """

    model: RandomModel
    instances: list[Instance]
    batched: ab.Batched
    weights: Any
    eager: list[Any]
    grads: dict[str, Any]


@lru_cache(maxsize=1)
def draw_workload(seed: int) -> Workload:
    """Draw a model (smooth for even seeds) and instances; compute them one at a time."""
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    instances = draw_instances(rng, model, n=6)
    weights = rng.uniform(0.5, 2.0, len(instances))
    alone = ab.batched(model.loss, policy="unbatched", backend=Reference(poison=True), rewrites=())
    grads = {name: np.zeros(p.shape) for name, p in model.parameters().items() if p.trainable}
    for weight, instance in zip(weights, instances, strict=True):
        for name, gradient in alone.value_and_grad([instance])[1].items():
            grads[name] += weight * gradient
    batched = ab.batched(model.everything, backend=Reference(poison=True))
    return Workload(model, instances, batched, weights, [model.everything(i) for i in instances], grads)


def assert_close(found: Any, expected: Any, what: str = "") -> None:
    """Check float64 equality within 1e-10 of the largest expected number, or within 1e-13 if all are tiny."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, what
    assert found.dtype == np.float64, what
    scale = np.max(np.abs(expected), initial=1e-3)
    assert np.all(np.abs(found - expected) <= RELATIVE * scale), what


@each("policy, rewrites", WAYS)
@pytest.mark.cases(4, 30)
@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_batched_is_one_at_a_time(seed: int, policy: str, rewrites: tuple[str, ...]) -> None:
    work = draw_workload(seed)
    loss = work.batched
    loss.policy, loss.rewrites = policies.get(policy), rewrites
    ab.testing.check_batched(work.model.everything, loss, work.instances, RELATIVE)
    (value, aux), grads = loss.value_and_grad(work.instances, reduce=work.weights, has_aux=True)
    assert_close(value, work.weights @ [float(eager[0]) for eager in work.eager])
    assert len(aux["some"]) == len(work.instances)
    assert grads.keys() == work.grads.keys()
    for name, gradient in grads.items():
        assert_close(gradient, work.grads[name], name)


@pytest.mark.cases(2, 30)
@pytest.mark.parametrize("seed", range(0, N_SEEDS, 2))
def test_gradients_are_slopes(seed: int) -> None:
    work = draw_workload(seed)
    loss = ab.batched(work.model.loss, backend=Reference(poison=True))
    ab.testing.check_grads(loss, work.instances, work.model, np.random.default_rng(seed), step=3e-6)


@pytest.mark.cases(2, 16)
@pytest.mark.parametrize("seed", range(0, N_SEEDS, 4))
def test_single_precision_is_double_precision_rounded(seed: int) -> None:
    work = draw_workload(seed)
    loss = ab.batched(work.model.loss, backend=Reference(poison=True))
    work.model.astype("float32")  # exact, because parameters are drawn in float32
    value, grads = loss.value_and_grad(work.instances, reduce=work.weights)
    work.model.astype("float64")
    expected = work.weights @ [float(eager[0]) for eager in work.eager]
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
    assert value.dtype == np.float32
    for name, gradient in grads.items():
        assert gradient.dtype == np.float32
        scale = np.max(np.abs(work.grads[name]), initial=1e-2)
        np.testing.assert_allclose(gradient, work.grads[name], atol=1e-3 * scale, rtol=0, err_msg=name)


@pytest.mark.cases(2, 16)
@pytest.mark.parametrize("seed", range(0, N_SEEDS, 4))
def test_recorded_graphs_are_the_instances(seed: int) -> None:
    """Recorded together or one by one, merged in any order and with repeats, and after a change of parameters."""
    work = draw_workload(seed)
    loss = ab.batched(work.model.everything, backend=Reference(poison=True), rewrites=())
    graphs = loss.record_all(work.instances)
    merged, direct = merge_graphs(graphs), loss.merged(work.instances)
    loss.rewrites = DEFAULT
    assert merged.words.tobytes() == direct.words.tobytes()
    assert merged.floats.tobytes() == direct.floats.tobytes()
    assert merged.structures == direct.structures
    start = work.model.state_dict()
    for order in np.random.default_rng(seed).integers(len(graphs), size=(3, 8)).tolist():
        for parameter in work.model.parameters().values():
            parameter.data = 0.9 * parameter.data
        expected = [float(work.model.loss(work.instances[i])) for i in order]
        assert_close(loss([graphs[i] for i in order])[0], expected)
    work.model.load_state_dict(start)


@pytest.mark.slow
def test_the_draws_have_all_that_programs_can_have() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=seed % 2 == 0)
        loss = ab.batched(model.loss, rewrites=())
        loss(draw_instances(rng, model, n=6))
        assert loss.last is not None
        note_graph(seen, loss.last.graph)
        note_types(seen, types_of(loss))
        kinds = loss.last.graph.type_id
        without_ports = {t.number for t in types_of(loss) if not t.program.ports}
        n_edges = np.diff(loss.last.graph.edge_ptr)
        seen["a port without edges"] += sum(k not in without_ports for k in kinds[n_edges == 0].tolist())
    everything = {
        "single node", "over 40 nodes", "20 edges at a port", "a port without edges", "a value read often",
        "a node that reaches nothing", "several outputs", "an unused argument", "several groups", "int data",
        "float data", "a shared parameter", "a passed argument", "an output of parameters only",
        "several ports per edge",
    }  # fmt: skip
    assert {what for what, n in seen.items() if n >= 3} == everything


def note_graph(seen: Counter[str], graph: ab.Graph) -> None:
    """Count features of instances."""
    sizes, n_readers = np.diff(graph.instance_ptr), np.bincount(graph.edge_src, minlength=graph.n_nodes)
    seen["single node"] += int(np.count_nonzero(sizes == 1))
    seen["over 40 nodes"] += int(np.count_nonzero(sizes > 40))
    seen["a value read often"] += int(np.count_nonzero(n_readers > 5))
    seen["a node that reaches nothing"] += int(np.count_nonzero(n_readers == 0)) - graph.n_outputs
    reader = np.repeat(np.arange(graph.n_nodes), np.diff(graph.edge_ptr))
    _, per_port = np.unique(np.stack([reader, graph.edge_in]), axis=1, return_counts=True)
    seen["20 edges at a port"] += int(np.count_nonzero(per_port >= 20))


def note_types(seen: Counter[str], types: Any) -> None:
    """Count features of cells."""
    owners: Counter[int] = Counter()
    for node_type in types:
        program = node_type.program
        owners.update(id(p) for p in program.parameters)
        n_leaves = sum(1 for _, key in node_type.arguments for _ in key.leaves())
        domains = [program.vars[p].domain for p in program.ports]
        seen["several outputs"] += len(program.outputs) > 1
        seen["an unused argument"] += n_leaves > len(program.ports)
        seen["several groups"] += program.n_groups > 1
        seen["several ports per edge"] += len(domains) > len(set(domains)) and max(domains) >= 0
        seen["int data"] += program.words(is_float=False) > 0
        seen["float data"] += program.words(is_float=True) > 0
        seen["a passed argument"] += bool(set(program.ports) & set(program.outputs))
        seen["an output of parameters only"] += any(program.vars[o].domain == -2 for o in program.outputs)
    seen["a shared parameter"] += sum(n > 1 for n in owners.values())
